"""Processes that are killed with their turn in their hands: what the next one waits."""

from __future__ import annotations

import statistics

import pytest

from tests.faults.test_dead_waiters import die_with_the_turn
from tests.faults.test_waiting import check, rig
from tests.support.waiting import eventually

__all__ = ["rig"]

HARD = 4  # deaths that are looked at


@pytest.mark.parametrize("how", ["take", "task take"])
def test_who_dies_with_the_turn_costs_the_next_a_look(rig, how):
    """The word that woke it is lost with it, and the next has the name in about a second.

    Nobody is told of this. Without a look it would take until the end of the stand: ten minutes.
    """
    (second,) = rig.invite(1)
    waited: list[float] = []
    for turn in range(1, 10 * HARD):
        released, died = die_with_the_turn(rig, second, how)
        had = second.hear("in", turn)
        second.hear("out", turn)
        if had > died:  # else it had just looked, while the first still lived
            waited.append(had - released)
        if len(waited) == HARD:
            break
    assert len(waited) == HARD
    assert statistics.median(waited) < 1.5
    assert max(waited) < 3
    check(rig.people)
    eventually(lambda: rig.blocked() == [])
    eventually(lambda: rig.keys() == [], within=5)
