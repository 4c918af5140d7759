"""Processes whose event loops wait for a name, while the node with its queue goes."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Callable

import pytest

from tests.faults.queued import SELDOM
from tests.faults.test_waiting import NAME, Person, Rig, check, flush, kill, restart, rig, stop

__all__ = ["rig"]


def turn(people: list[Person], more: int) -> None:
    """See everybody have so many more turns."""
    counts = [len(person.said("out")) for person in people]
    for person, count in zip(people, counts, strict=True):
        person.hear("out", count + more)


def waits(person: Person) -> list[float]:
    """Seconds from each asking to being in."""
    return [
        float(had[-1]) - float(asked[-1])
        for asked, had in zip(person.said("asking"), person.said("in"), strict=False)
    ]


@pytest.mark.parametrize("mishap", [stop, kill, restart, flush])
def test_the_node_with_the_queue_may_go_under_tasks(rig, mishap: Callable[[Rig], None]):
    """Tasks of four processes: one at a time is in, nobody starves, and all are woken again soon.

    So it is too when a node that hung goes on. One round of it is in ``test_waiting``.
    """
    rig.alias["NODE_TIMEOUT"] = 0.2
    people = rig.invite(4)
    for person in people:
        person.tell(f"task turns {NAME} 30 0.005")
    turn(people, 5)
    mishap(rig)
    turn(people, 20)
    if rig.nodes[rig.place].is_paused:
        rig.nodes[rig.place].resume()
        turn(people, 20)
    assert max(check(people)) < 3
    for person in people:
        assert max(waits(person)) < 5
        person.signal(signal.SIGUSR2)
    turn(people, 25)
    check(people)
    for person in people:
        assert not person.said("refused")
        assert not person.said("over")
        assert statistics.median(waits(person)[-20:]) < SELDOM / 2  # woken; nobody looks so soon
