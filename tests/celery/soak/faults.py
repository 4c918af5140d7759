"""What is done to workers and lock nodes while messages are on their way, at random times."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from django_redlock.testing import EmbeddedNodes
from tests.support.waiting import eventually

from .history import Notebook

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


def kill_group(group: int, notebook: Notebook) -> None:
    """Kill a worker with all its children, and write down when they were dead.

    A process to which SIGKILL was sent does nothing any more when ``kill`` returns.
    """
    pids = members(group)
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    notebook.write("dead", group=group, pids=pids)


def kill_main(group: int, notebook: Notebook) -> None:
    """Kill the main process of a worker, and write down when its children were dead.

    Celery has asked the system to kill them with it.
    """
    pids = members(group)
    with suppress(ProcessLookupError):
        os.kill(group, signal.SIGKILL)
    eventually(lambda: not members(group), what=f"the end of {pids}")
    notebook.write("dead", group=group, pids=pids)


def kill_child(pid: int, notebook: Notebook) -> None:
    """Kill one process, as the system does when memory runs out."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    notebook.write("dead", group=None, pids=[pid])


class Schedule:
    """Several things that happen beside each other, in one thread, which sleeps in between."""

    def __init__(self, *things: Waiting) -> None:
        self._due = [(time.monotonic(), thing) for thing in things]

    def run(self, seconds: float, tick: Callable[[], None], every: float = 0.1) -> None:
        """Let them happen for so long; then end them."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            due = [pair for pair in self._due if pair[0] <= now]
            for pair in due:
                self._due.remove(pair)
                with suppress(StopIteration):
                    self._due.append((time.monotonic() + next(pair[1]), pair[1]))
            tick()
            time.sleep(every)
        for _, thing in self._due:
            thing.close()  # type: ignore[attr-defined] # they are generators


def ill_nodes(
    nodes: EmbeddedNodes, guard: float, notebook: Notebook, draw: random.Random
) -> Waiting:
    """Kill one of the first two nodes and hang one of the others, in turns; at the end all are up.

    A completion record is on a majority of the nodes, so one is on a node that is never killed.
    A node has no vote for ``guard`` seconds after its restart, so that two are out at the most.
    """

    def note(index: int, does: str) -> None:
        notebook.write("node", index=index, does=does)

    killed = hung = None
    try:
        yield draw.uniform(1, 2)
        while True:
            killed = draw.choice((0, 1))
            note(killed, "kill")
            nodes.kill(killed)
            yield draw.uniform(0.5, 1.5)
            nodes.restart(killed)
            note(killed, "restart")
            killed = None
            yield draw.uniform(0.5, 1) * guard
            hung = draw.choice((2, 3, 4))
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


def dying_workers(
    groups: Callable[[], Sequence[int]],
    at_work: Callable[[int], Sequence[int]],
    notebook: Notebook,
    draw: random.Random,
) -> Waiting:
    """Kill a worker that is at work every few seconds: all of it, one child, or its main process.

    Args:
        groups: returns those of the workers that take messages.
        at_work: returns the processes of a group in which a body runs.
    """
    for way in itertools.cycle(("worker", "child", "main")):
        yield draw.uniform(2, 4)
        # Looked at once: a body may end before a second look.
        while not (busy := [(group, found) for group in groups() if (found := at_work(group))]):
            yield 0.1
        group, children = draw.choice(busy)
        if way == "worker":
            kill_group(group, notebook)
        elif way == "child":
            kill_child(draw.choice(children), notebook)
        else:
            kill_main(group, notebook)
