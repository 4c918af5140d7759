"""Processes that die with their turn in their hands: woken, and then killed."""

from __future__ import annotations

import signal
import time

import pytest

from django_redlock import redlock
from django_redlock.testing.server import process_state
from tests.support.waiting import eventually

from .test_waiting import NAME, Person, Rig, check, rig

__all__ = ["rig"]


def die_with_the_turn(rig: Rig, second: Person, how: str) -> tuple[float, float]:
    """The moments of a release that woke a process, and of this one's death."""
    (first,) = rig.invite(1)
    held = redlock(NAME, wait=20).acquire()
    rig.queue_up(first, how=how)
    rig.queue_up(second, how=how)
    first.signal(signal.SIGSTOP)
    eventually(lambda: process_state(first.pid) == "T")
    released = time.monotonic()
    held.release()
    # Served: the word is on its way to the first. Where this process was slow to ask, the second
    # has looked meanwhile, and stands in no queue either.
    eventually(lambda: len(rig.blocked()) <= 1)
    first.signal(signal.SIGKILL)
    died = time.monotonic()
    assert first.said("in") == []
    return released, died


@pytest.mark.slow
@pytest.mark.parametrize("how", ["take", "task take"])
def test_who_dies_with_the_turn_leaves_it_to_the_next(rig, how, monkeypatch):
    """The word that woke it is lost with it, and the next has the name all the same.

    Nobody is told of this. The next one looks: its stand, and the keys, last for longer than that.
    """
    # The next one may look while the first still lives: it is refused for so many milliseconds.
    monkeypatch.setattr("django_redlock.core.hold.RESERVED", 3000)
    (second,) = rig.invite(1)
    for turn in range(1, 40):
        _, died = die_with_the_turn(rig, second, how)
        had = second.hear("in", turn)
        second.hear("out", turn)
        if had > died:
            break  # else the first has lived for longer
    else:
        pytest.fail("nobody waited for longer than the first one lived")
    check(rig.people)
    eventually(lambda: rig.blocked() == [])
    eventually(lambda: rig.keys() == [])
