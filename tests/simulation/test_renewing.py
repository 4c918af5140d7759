"""Renewal in simulated worlds; broken variants of it are among those of ``test_worlds``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from .kinds import play, quietly
from .mutants import hunt
from .mutants.renewing import RENEWAL
from .profiles import Profile
from .renewing import PROFILES

SAMPLE = 12  # worlds of each profile, in CI
WORLDS = 60  # in `make nightly`
MET = {
    "kept": {"shared"},
    "cut": {"cut", "lost reply", "told", "shared", "NodesUnavailable"},
    "cut-and-paused": {"cut", "suspended", "told"},
    "forgotten": {"vanishes", "told", "shared", "heal"},
    "rolling": {"restarts", "heal", "shared"},
    "restarted": {"restarts", "heal", "told"},
    "revoked-and-renewed": {"revoked", "told of the revoker", "heal", "cut"},
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing."""
    with quietly():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("worlds", [SAMPLE, pytest.param(WORLDS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("where", PROFILES, ids=lambda where: where.name)
def test_no_renewed_lease_breaks_a_promise(where: Profile, worlds: int) -> None:
    """A loss is told at the deadline, and never to who has a majority and time left."""
    met: Counter[str] = Counter()
    for seed in range(worlds):
        met += play(seed, where).met
    assert MET[where.name] | {"granted", "extended", "renewal"} <= met.keys()


def test_what_a_callback_sees_wrong_ends_the_world() -> None:
    """A violation that on_lost notices is not swallowed with a user's errors."""
    mutant = next(mutant for mutant in RENEWAL if mutant.name == "unknown-is-lost")
    found = hunt(mutant, worlds=mutant.worlds)
    assert found is not None
    assert "told of a loss" in str(found[1])
