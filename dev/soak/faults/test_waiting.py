"""Real processes that wait for a name, while processes and nodes die at random."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.faults.test_waiting import NAME, Person, Rig, check, flush, kill, restart, rig, stop

__all__ = ["rig"]


def waits(person: Person) -> list[float]:
    """The seconds for which somebody waited, turn by turn."""
    pairs = zip(person.said("asking"), person.said("in"), strict=False)
    return [float(had[-1]) - float(asked[-1]) for asked, had in pairs]


@pytest.mark.parametrize("mishap", [stop, kill, restart, flush])
def test_the_node_with_the_queue_may_go(rig, mishap: Callable[[Rig], None]):
    """Four processes take turns: nobody starves, one at a time is in, no turn waits for the ttl."""
    rig.alias.update(rig.nodes.settings(MAX_TTL=6, NODE_TIMEOUT=0.2), RESTART_GUARD=True)
    people = rig.invite(4)
    for person in people:
        person.tell(f"turns {NAME} 30 0.005")
    for person in people:
        person.hear("out", 5)
    mishap(rig)
    counts = [len(person.said("out")) for person in people]
    for person, count in zip(people, counts, strict=True):
        person.hear("out", count + 20)
    check(people)
    assert not any(person.said("refused") for person in people)
    assert not any(person.said("over") for person in people)
    assert max(seconds for person in people for seconds in waits(person)) < 4


def test_people_who_die_at_random_starve_nobody(rig):
    """Processes that are killed and stopped at random: one at a time, and the turns go on."""
    chance = random.Random(7)
    rig.alias["TTL"] = 0.5
    people = rig.invite(5)
    for person in people[:4]:
        person.tell(f"turns {NAME} 30 0.005")
    for _ in range(60):
        victim = chance.choice(people[1:4])
        victim.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0, 0.2))  # how long it stands still
        victim.signal(signal.SIGCONT)
        time.sleep(chance.uniform(0, 0.05))  # how long it runs
    people[0].hear("out", 20)
    before = len(people[0].said("out"))
    for person in people[1:4]:
        person.signal(signal.SIGKILL)
    people[4].tell(f"turns {NAME} 30 0.005")
    people[4].hear("out", 20)
    people[0].hear("out", before + 20)
