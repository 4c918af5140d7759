"""The soak of counters in small, on each database."""

from __future__ import annotations

from collections import Counter as Count

import pytest

from dev.soak.fencing.counters import Play
from tests.fencing.test_counters import played
from tests.support.databases import KINDS

__all__ = ["played"]

BEFALLS = ("stops", "kills", "stale", "renewed")

MOST = 8  # plays

FEW = 12  # counters, so that a stopped holder nearly always has a successor


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_no_addition_is_lost_or_made_twice(played, kind):
    """Each counter is what the ledger says, until each thing has befallen a process."""
    happened: Count[str] = Count()
    for _ in range(MOST):  # of one play by chance nobody is killed, or none has a successor
        seen, wrong = played(Play(additions=200, counters=FEW, hot=4, long=0.1))
        assert wrong == []
        assert seen["sum"] == seen["additions"] >= 200
        happened.update({what: seen[what] for what in BEFALLS})
        if all(happened[what] for what in BEFALLS):
            break
    assert all(happened[what] for what in BEFALLS), happened


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_additions_are_lost_without_a_claim(played, kind):
    """The check can fail: who relies on the lock alone overwrites what its successor wrote."""
    lost = 0
    for _ in range(MOST):  # by chance nobody may be stopped between a read and its write
        seen, wrong = played(Play(additions=40, counters=2, hot=2, long=0.2, fenced=False))
        assert all("was added to" in each for each in wrong)
        lost += seen["additions"] - seen["sum"]
        if lost:
            break
    assert lost > 0
