"""The production algorithm in simulated worlds, and broken variants of it, which must be caught."""

import os
from collections import Counter

import pytest

from tests.docs.test_promises_page import missing

from .checker import Broken, Checker, Violation
from .kinds import KINDS, play, quietly
from .mutants import MUTANTS, Mutant, broken, hunt
from .page import (
    MUTANT_HEAD,
    PAGE,
    REAL_HEAD,
    edited,
    reals,
    rows_below,
)
from .profiles import PROFILES, Profile, profile
from .world import World

SAMPLE = 12  # worlds of each profile, in CI
WORLDS = 80  # in `make nightly`
CHUNK = 34  # in one test of it
FIRST = int(os.environ.get("WORLD_SEED", "0"))
WRITE = "write: python -m tests.simulation --table docs/dev/mutants.md"
REPLAYED = {"rough", "queued", "cut"}  # in CI: taking, waiting, renewing

MISFORTUNES = {
    "rough": {"lost request", "lost reply", "cancelled", "extended", "adopted", "raise", "rest"},
    "calm": {"granted", "extended", "adopted", "LockTaken", "LeaseLost"},
    "minority": {"granted", "extended", "LockTaken"},
    "restarts": {"restarts", "flushed", "saved", "NodesUnavailable"},
    "booting": {"restarts", "clock set", "wrong clock", "NodesUnavailable"},
    "contended": {"granted", "LockTaken"},
    "handovers": {"given away", "adopted", "LeaseLost"},
    "expiring": {"gone for ever"},
    "tenacious": {"extended", "rest", "lost request"},
    "crowded": {"raise", "LockTaken"},
    "ahead": {"restarts", "raise"},
    "stepped": {"wall clock set", "suspended", "extended"},
    "repeated": {"comes again", "adopted"},
    "slipping": {"out of step", "extended"},
    "wishless": {"raise"},
    "clockless": {"raise", "clock jumps", "comes again"},
    "revoked": {"revoked", "told of the revoker", "extended", "heal", "adopted"},
    "deleted": {"deleted", "extended", "heal", "adopted", "written", "write refused"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "worlds"),
    [
        (FIRST, SAMPLE),
        *(
            pytest.param(first, CHUNK, marks=pytest.mark.nightly)
            for first in range(FIRST + SAMPLE, FIRST + WORLDS, CHUNK)
        ),
    ],
)
@pytest.mark.parametrize("where", PROFILES, ids=lambda where: where.name)
def test_no_world_breaks_a_promise(where: Profile, first: int, worlds: int) -> None:
    """Whatever happens: one believer, distinct and increasing tokens, nothing left behind."""
    met: Counter[str] = Counter()
    for seed in range(first, first + worlds):
        met += play(seed, where).met
    assert MISFORTUNES[where.name] | {"granted"} <= met.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_broken_rule_is_caught(mutant: Mutant) -> None:
    """A simulation that would not notice a broken rule proves nothing about it."""
    last = {row[0]: int(row[4]) for row in rows_below(MUTANT_HEAD)}.get(mutant.name, 1)
    # The world in which it was caught when the page was written; where it is not any more, all.
    with quietly():
        found = hunt(mutant, worlds=1, first=last - 1) or hunt(mutant, worlds=mutant.worlds)
    assert found is not None, mutant.does


def test_a_belief_that_lasts_longer_than_it_should_is_noticed() -> None:
    """The look after every event sees two holders even when neither asked for anything."""
    world = play(0, profile("calm"))
    grants = [client.belief.grant for client in world.clients if client.belief][:2]
    checker, target = Checker(exclusive=True, reachable=False), grants[0].target
    for number, grant in enumerate(grants):
        checker.attempt(grant.nonce, target.entries)
        grants[number] = grant._replace(target=target, fence=number + 1)
    first = checker.granted("first", grants[0], now=0.0, until=1.0)
    checker.look(0.9)
    checker.granted("second", grants[1], now=1.1, until=2.0)
    first.until = 1.5
    with pytest.raises(Violation) as caught:
        checker.look(1.2)
    assert caught.value.promise is Broken.ALONE


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(each, marks=[pytest.mark.nightly] * (each.name not in REPLAYED), id=each.name)
        for each in KINDS
    ],
)
def test_a_seed_replays_its_world(where: Profile) -> None:
    """The same seed is the same world, to the last event: taking, waiting, renewing."""
    with quietly():
        first, second = (play(7, where) for _ in range(2))
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


def test_the_page_lists_every_mutant() -> None:
    """The docs name each broken variant with its bound, and that it is caught within it."""
    rows = rows_below(MUTANT_HEAD)
    assert [[row[0], row[1], row[3], row[5], row[6]] for row in rows] == [
        [each.name, each.does, each.profile, str(each.worlds), edited(each)] for each in MUTANTS
    ], WRITE
    assert all(int(row[4]) <= int(row[5]) for row in rows)


def test_what_only_the_simulation_breaks_is_tested_elsewhere() -> None:
    """A variant that edits no production code names the test that fails where the real one does."""
    assert [each.name for each in MUTANTS if bool(each.real) == bool(each.edited)] == []
    assert REAL_HEAD + reals() in PAGE.read_text(), WRITE
    assert missing(reals()) == []
    assert sum(not each.edited for each in MUTANTS) < 10
