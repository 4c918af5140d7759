"""Renewal in simulated worlds; broken variants of it are among those of ``test_worlds``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from .worlds.kinds import play, quietly
from .worlds.mutants import hunt
from .worlds.mutants.renewing import RENEWAL
from .worlds.profiles import Profile
from .worlds.renewing import PROFILES, KeepingWorld

WORLDS = 60  # of each profile
MET = {
    "kept": {"shared"},
    "cut": {"cut", "lost reply", "told", "shared", "NodesUnavailable"},
    "cut-and-paused": {"cut", "suspended", "told"},
    "forgotten": {"vanishes", "told", "shared"},
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing."""
    with quietly():
        yield


@pytest.mark.parametrize("where", PROFILES, ids=lambda where: where.name)
def test_no_renewed_lease_breaks_a_promise(where: Profile) -> None:
    """FM-6: a loss is told at the deadline, and never to who has a majority and time left."""
    met: Counter[str] = Counter()
    for seed in range(WORLDS):
        met += play(seed, where).met
    assert MET[where.name] | {"granted", "extended", "renewal"} <= met.keys()


def test_a_seed_replays_its_world_of_renewal() -> None:
    """The same seed is the same world, to the last event."""
    first, second = KeepingWorld(7, PROFILES[1]), KeepingWorld(7, PROFILES[1])
    first.run()
    second.run()
    assert first.log == second.log
    assert first.met == second.met


def test_what_a_callback_sees_wrong_ends_the_world() -> None:
    """A violation that on_lost notices is not swallowed with a user's errors."""
    mutant = next(mutant for mutant in RENEWAL if mutant.name == "unknown-is-lost")
    found = hunt(mutant, worlds=mutant.worlds)
    assert found is not None
    assert "told of a loss" in str(found[1])
