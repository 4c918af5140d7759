"""Kill nodes and bring them back while the site is open: by the clock, and for visitors.

Both command the same nodes. So nothing happens by the clock while a node is down that a visitor
has killed, nor for REST seconds after a visitor pressed a button; then it goes on where it was.
"""

import time
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from django_redlock.testing import EmbeddedNodes

from . import endings, stage
from .facts import Traffic

REST = 20.0  # seconds

Trouble: TypeAlias = Callable[[EmbeddedNodes, Traffic], None]


def kill(nodes: EmbeddedNodes, traffic: Traffic) -> None:
    nodes.kill(1)
    traffic.lose_node(stage.KILLED)


def restart(nodes: EmbeddedNodes, traffic: Traffic) -> None:
    if not nodes[1].is_running:  # else a visitor has brought it back
        nodes.restart(1)
        traffic.note("node 2 is back, empty: no vote until all it may have granted is over")


def hang(nodes: EmbeddedNodes, traffic: Traffic) -> None:
    nodes.pause(3)
    traffic.lose_node("node 4 hangs (SIGSTOP): it is not waited for")


def wake(nodes: EmbeddedNodes, traffic: Traffic) -> None:
    if nodes[3].is_paused:
        nodes.resume(3)
        traffic.note("node 4 goes on")


PERIOD = 70.0  # seconds after which the troubles begin again
TROUBLES: tuple[tuple[float, Trouble], ...] = ((10, kill), (25, restart), (45, hang), (55, wake))


class Timetable:
    """The troubles by the clock, and those that visitors make; one thread commands the nodes."""

    def __init__(self, nodes: EmbeddedNodes, traffic: Traffic, now: float) -> None:
        self._nodes = nodes
        self._traffic = traffic
        self._due = (
            (round_ * PERIOD + at, happen) for round_ in count() for at, happen in TROUBLES
        )
        self._at, self._happen = next(self._due)
        self._passed, self._looked = 0.0, now
        self._killed: set[int] = set()  # by visitors
        self._rests_until = now

    def rests(self, now: float) -> bool:
        """Return whether visitors are at the nodes, so that nothing happens by the clock."""
        return bool(self._killed) or now < self._rests_until

    def look(self, now: float) -> None:
        """Let happen what is due; the clock does not go on while visitors are at the nodes."""
        if not self.rests(now):
            self._passed += now - self._looked
        self._looked = now
        if self._passed >= self._at:
            with endings.after_this():
                self._happen(self._nodes, self._traffic)
            self._at, self._happen = next(self._due)

    def carry_out(self, wanted: str) -> str:
        """Do what a visitor wants; return what to tell the visitor."""
        self._rests_until = time.monotonic() + REST
        with endings.after_this():
            match wanted:
                case "kill":
                    return self._kill_one()
                case "bring back":
                    return self._bring_one_back()
        return "There is no such button."

    def _kill_one(self) -> str:
        alive = [i for i, node in enumerate(self._nodes) if node.is_running]
        if not alive:
            return "No node is left that could be killed."
        place = min(alive, key=lambda i: (self._nodes[i].is_paused, i))
        self._nodes.kill(place)
        self._killed.add(place)
        self._traffic.lose_node(f"a visitor kills node {place + 1} (SIGKILL)")
        return f"Node {place + 1} was killed."

    def _bring_one_back(self) -> str:
        dead = [i for i, node in enumerate(self._nodes) if not node.is_running]
        if dead:
            place = dead[0]
            self._nodes.restart(place)
            self._killed.discard(place)
            self._traffic.note(f"a visitor brings node {place + 1} back, empty: no vote yet")
            return f"Node {place + 1} is back, empty: it waits before it votes."
        for place, node in enumerate(self._nodes):
            if node.is_paused:
                self._nodes.resume(place)
                self._traffic.note(f"a visitor lets node {place + 1} go on")
                return f"Node {place + 1} hung, and goes on."
        return "All nodes run."
