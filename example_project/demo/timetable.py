"""Kill nodes and bring them back while the site is open: by the clock, and for visitors.

Both command the same nodes. So nothing happens by the clock while a node is as a visitor's button
has left it, nor for REST seconds after a visitor pressed one; then it goes on where it was. A
visitor may leave: LEFT seconds after the last press such nodes are brought back.
"""

import math
import time
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from django_redlock.testing import EmbeddedNodes

from . import endings, stage
from .facts import Traffic

REST = 20.0  # seconds
LEFT = 180.0  # seconds; enough to order, and to read what the pages say


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


class Trouble(NamedTuple):
    """What happens by the clock: when in each period, and what the demo then does, in words."""

    at: float
    words: str
    happen: Callable[[EmbeddedNodes, Traffic], None]


PERIOD = 70.0  # seconds after which the troubles begin again
TROUBLES = (
    Trouble(10, "kills node 2", kill),
    Trouble(25, "brings node 2 back", restart),
    Trouble(45, "lets node 4 hang", hang),
    Trouble(55, "lets node 4 go on", wake),
)
BY_ITSELF = (
    f"The demo lets nodes fail by itself, too: every {PERIOD:g} seconds it "
    f"{', '.join(trouble.words for trouble in TROUBLES[:-1])} and {TROUBLES[-1].words}."
)


class Timetable:
    """The troubles by the clock, and those that visitors make; one thread commands the nodes."""

    def __init__(self, nodes: EmbeddedNodes, traffic: Traffic, now: float) -> None:
        self._nodes = nodes
        self._traffic = traffic
        self._due = (
            trouble._replace(at=round_ * PERIOD + trouble.at)
            for round_ in count()
            for trouble in TROUBLES
        )
        self._next = next(self._due)
        self._passed, self._looked = 0.0, now
        self._changed: set[int] = set()  # by visitors: killed or hung
        self._pressed = now
        self._rests_until = now

    def rests(self, now: float) -> bool:
        """Return whether visitors are at the nodes, so that nothing happens by the clock."""
        return bool(self._changed) or now < self._rests_until

    def look(self, now: float) -> None:
        """Let happen what is due; the clock does not go on while visitors are at the nodes."""
        if self._changed and now >= self._pressed + LEFT:
            self._put_right(now)
        if not self.rests(now):
            self._passed += now - self._looked
        self._looked = now
        if self._passed >= self._next.at:
            with endings.after_this():
                self._next.happen(self._nodes, self._traffic)
            self._next = next(self._due)

    def outlook(self, now: float) -> list[str]:
        """Say in sentences what happens by the clock, and when."""
        if self._changed:
            left = _seconds(self._pressed + LEFT - now)
            told = (
                "It does nothing while a node is as a button has left it. If nobody "
                f"presses a button for {left}, it brings such nodes back and goes on."
            )
            return [BY_ITSELF, told]
        if now < self._rests_until:
            rest = _seconds(self._rests_until - now)
            told = f"A button was pressed: it does nothing for {rest}. Then it {self._next.words}."
            return [BY_ITSELF, told]
        due = _seconds(self._next.at - self._passed)
        return [BY_ITSELF, f"Next it {self._next.words}, in {due}."]

    def carry_out(self, wanted: str) -> str:
        """Do what a visitor wants; return what to tell the visitor."""
        self._pressed = time.monotonic()
        self._rests_until = self._pressed + REST
        with endings.after_this():
            match wanted:
                case "kill":
                    return self.kill_one()
                case "hang":
                    return self.hang_one()
                case "bring back":
                    return self.bring_one_back()
        return "There is no such button."

    def kill_one(self) -> str:
        alive = [i for i, node in enumerate(self._nodes) if node.is_running]
        if not alive:
            return "No node is left that could be killed."
        place = min(alive, key=lambda i: (self._nodes[i].is_paused, i))
        self._nodes.kill(place)
        self._changed.add(place)
        self._traffic.lose_node(f"a visitor kills node {place + 1} (SIGKILL)")
        return f"Node {place + 1} was killed."

    def hang_one(self) -> str:
        for place, node in enumerate(self._nodes):
            if node.is_running and not node.is_paused:
                self._nodes.pause(place)
                self._changed.add(place)
                self._traffic.lose_node(f"a visitor lets node {place + 1} hang (SIGSTOP)")
                return f"Node {place + 1} hangs: it keeps its connections and does not reply."
        return "No node is left that could hang."

    def bring_one_back(self) -> str:
        dead = [i for i, node in enumerate(self._nodes) if not node.is_running]
        if dead:
            place = dead[0]
            self._nodes.restart(place)
            self._changed.discard(place)
            self._traffic.note(f"a visitor brings node {place + 1} back, empty: no vote yet")
            return f"Node {place + 1} is back, empty: it waits before it votes."
        for place, node in enumerate(self._nodes):
            if node.is_paused:
                self._nodes.resume(place)
                self._changed.discard(place)
                self._traffic.note(f"a visitor lets node {place + 1} go on")
                return f"Node {place + 1} hung, and goes on."
        return "All nodes run."

    def _put_right(self, now: float) -> None:
        """Bring all nodes back that visitors have left killed or hung."""
        with endings.after_this():
            for place in sorted(self._changed):
                if not self._nodes[place].is_running:
                    self._nodes.restart(place)
                elif self._nodes[place].is_paused:
                    self._nodes.resume(place)
                self._traffic.note(f"the demo brings node {place + 1} back: its visitor has left")
                self._changed.discard(place)
        self._rests_until = now + REST  # a node that was killed does not vote at once


def _seconds(left: float) -> str:
    return f"{max(1, math.ceil(left))} s"
