"""What is done to workers while messages are on their way, at random times."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from dev.soak.ailing import Waiting, members
from dev.soak.notebook import Notebook
from tests.support.waiting import eventually


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
