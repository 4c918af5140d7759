"""Processes that die with their turn in their hands: woken, and then killed."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.conf import settings

from django_redlock import redlock
from django_redlock.testing import EmbeddedNodes
from django_redlock.testing.server import process_state
from tests.support.waiting import eventually

from .test_waiting import NAME, Person, Rig, check

HARD = 4  # deaths that are looked at


@pytest.fixture
def rig(patient_nodes: EmbeddedNodes) -> Iterator[Rig]:
    """Keys that last for a minute: no expiry helps."""
    with ExitStack() as stack:
        yield Rig(patient_nodes, settings.REDLOCK["default"], stack)


def queue_up(rig: Rig, person: Person, how: str) -> None:
    """Have somebody wait, and see that they are the next in the queue."""
    before = len(rig.blocked())
    person.tell(f"{how} {NAME} 60 0")
    eventually(lambda: len(rig.blocked()) == before + 1)


def die_with_the_turn(rig: Rig, second: Person, how: str) -> tuple[float, float]:
    """The moments of a release that woke a process, and of this one's death."""
    (first,) = rig.invite(1)
    held = redlock(NAME, wait=20).acquire()
    queue_up(rig, first, how)
    queue_up(rig, second, how)
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
def test_who_dies_with_the_turn_costs_the_next_a_look(rig, how):
    """The word that woke it is lost with it, and the next has the name in about a second.

    Nobody is told of this. Without a look it would take until the end of the stand: ten seconds.
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
