"""What befalls processes and nodes while a rig plays, at random times, in one thread."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from django_redlock.testing import EmbeddedNodes

from .notebook import Notebook

Waiting = Iterator[float]  # yields the seconds until it wants to go on


def members(group: int) -> list[int]:
    """Return the processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


class Schedule:
    """Several things that happen beside each other, in one thread, which sleeps in between."""

    def __init__(self, *things: Waiting) -> None:
        self._due = [(time.monotonic(), thing) for thing in things]

    def run(self, over: Callable[[], bool], tick: Callable[[], None], every: float = 0.1) -> None:
        """Let them happen until it is over; then end them."""
        try:
            while not over():
                now = time.monotonic()
                due = [pair for pair in self._due if pair[0] <= now]
                for pair in due:
                    self._due.remove(pair)
                    with suppress(StopIteration):
                        self._due.append((time.monotonic() + next(pair[1]), pair[1]))
                tick()
                time.sleep(every)
        finally:
            for _, thing in self._due:
                thing.close()  # type: ignore[attr-defined] # they are generators


def ill_nodes(
    nodes: EmbeddedNodes,
    guard: float,
    notebook: Notebook,
    draw: random.Random,
    *,
    mortal: Sequence[int] = (0, 1),
    faint: Sequence[int] = (2, 3, 4),
) -> Waiting:
    """Kill one of the mortal nodes and hang one of the faint, in turns; at the end all are up.

    A completion record is on a majority of the nodes, so one is on a node that is never killed.
    A node has no vote for ``guard`` seconds after its restart, so that two are out at the most.
    """

    def note(index: int, does: str) -> None:
        notebook.write("node", index=index, does=does)

    killed = hung = None
    try:
        yield draw.uniform(1, 2)
        while True:
            killed = draw.choice(mortal)
            note(killed, "kill")
            nodes.kill(killed)
            yield draw.uniform(0.5, 1.5)
            nodes.restart(killed)
            note(killed, "restart")
            killed = None
            yield draw.uniform(0.5, 1) * guard
            hung = draw.choice(faint)
            note(hung, "hang")
            nodes.pause(hung)
            yield draw.uniform(1, 2.5)
            nodes.resume(hung)
            note(hung, "resume")
            hung = None
            yield draw.uniform(0.5, 1.5)
    finally:
        if killed is not None:
            nodes.restart(killed)
        if hung is not None:
            nodes.resume(hung)
