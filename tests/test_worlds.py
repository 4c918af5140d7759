"""The production algorithm in simulated worlds, and broken variants of it, which must be caught."""

import os
from collections import Counter

import pytest

from .worlds import PROFILES, Profile, profile
from .worlds.checker import Violation
from .worlds.mutants import MUTANTS, Edit, Mutant, broken, hunt
from .worlds.world import World, play

WORLDS = 185  # of each profile
CHUNK = 37
FIRST = int(os.environ.get("WORLD_SEED", "0"))

MISFORTUNES = {
    "rough": {"lost request", "lost reply", "cancelled", "extended", "adopted", "raise", "rest"},
    "calm": {"granted", "extended", "adopted", "LockTaken", "LeaseLost"},
    "restarts": {"restarts", "flushed", "saved", "NodesUnavailable"},
    "contended": {"granted", "LockTaken"},
    "handovers": {"given away", "adopted", "LeaseLost"},
    "expiring": {"gone for ever"},
    "tenacious": {"extended", "rest", "lost request"},
    "crowded": {"raise", "LockTaken"},
    "ahead": {"restarts", "raise"},
    "wishless": {"raise"},
    "clockless": {"raise", "clock jumps"},
}


@pytest.mark.parametrize("start", range(FIRST, FIRST + WORLDS, CHUNK))
@pytest.mark.parametrize("where", PROFILES, ids=lambda where: where.name)
def test_no_world_breaks_a_promise(where: Profile, start: int) -> None:
    """Whatever happens: one believer, distinct and increasing tokens, nothing left behind."""
    met: Counter[str] = Counter()
    for seed in range(start, start + CHUNK):
        met += play(seed, where).met
    assert MISFORTUNES[where.name] | {"granted"} <= met.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_broken_rule_is_caught(mutant: Mutant) -> None:
    """A simulation that would not notice a broken rule proves nothing about it."""
    assert hunt(mutant, worlds=mutant.worlds) is not None, mutant.breaks


def test_a_seed_replays_its_world() -> None:
    """The same seed is the same world, to the last event."""
    first, second = (play(7, profile("rough")) for _ in range(2))
    assert first.log == second.log
    assert first.met == second.met


def test_a_violation_tells_how_to_see_it_again() -> None:
    """A failing world prints its profile, its seed and its last events, and fails again."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "half-is-enough")
    found = hunt(mutant, worlds=mutant.worlds)
    assert found is not None
    seed, story = found[0] - 1, str(found[1])
    assert f"--profile {mutant.profile} --worlds 1 --seed {seed}" in story
    assert " grant " in story
    with broken(mutant), pytest.raises(Violation) as caught:
        World(seed, profile(mutant.profile)).run()
    assert str(caught.value) == story


def test_a_mutant_that_fits_no_more_fails() -> None:
    """An edit of code that has changed is an error, never a test of nothing."""
    edit = Edit(World, "run", "a text that is not there", "")
    with pytest.raises(LookupError), broken(Mutant("", "", "rough", 1, (edit,))):
        pass


def test_mutants_leave_no_trace() -> None:
    """After a hunt the production code is itself again."""
    before = [vars(edit.owner)[edit.name] for mutant in MUTANTS for edit in mutant.edits]
    for mutant in MUTANTS:
        with broken(mutant):
            pass
    after = [vars(edit.owner)[edit.name] for mutant in MUTANTS for edit in mutant.edits]
    assert before == after
