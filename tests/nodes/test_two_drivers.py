"""The same schedule of replies by threads and by an event loop: votes, requests, what is undone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[2]


def differences(first: int, last: int, variant: str = "") -> list[str]:
    """How the two drivers differ, in the schedules of these seeds."""
    command = [sys.executable, "-m", "tests.nodes.two_drivers", str(first), str(last)]
    if variant:
        command.append(variant)
    played = subprocess.run(
        command, check=False, cwd=HERE, capture_output=True, text=True, timeout=500
    )
    assert played.returncode == 0, played.stderr
    found = [json.loads(line) for line in played.stdout.splitlines()]
    assert [seed for seed, _ in found] == list(range(first, last))
    return [
        f"seed {seed}: {what}\nthreads {by['threads'][what]}\nloops   {by['loops'][what]}"
        for seed, by in found
        for what in ("votes", "received", "left")
        if not same(what, by["threads"][what], by["loops"][what])
    ]


def same(what: str, threads: list[Any], loops: list[Any]) -> bool:
    """Whether these are the same but for what is to differ."""
    if what != "votes":
        return threads == loops
    return len(threads) == len(loops) and all(map(_same_votes, threads, loops))


def _same_votes(thread: Any, task: Any) -> bool:
    """Whether the votes of a request are the same, but for how long it waits when it is decided.

    Threads and tasks call other nodes prompt, and a task begins to wait before a node is connected.
    While replies are late a thread may have another connection, on which the node owes less.
    """
    if isinstance(thread, str) or isinstance(task, str):
        return bool(thread == task)
    (behind, lingers, *votes), (_, _, *others) = thread, task
    return behind or all(
        one == other or (lingers and "not_waited_for" in (*one, *other))
        for one, other in zip(votes, others, strict=True)
    )


@pytest.mark.parametrize("first", range(0, 500, 125))
def test_threads_and_tasks_get_the_same(first):
    """Votes, the requests that each node receives, and what is undone, in 500 schedules."""
    assert differences(first, first + 125) == []


@pytest.mark.parametrize("variant", ["overtakes", "hastens"])
def test_a_driver_that_does_something_else_is_noticed(variant):
    """The check can fail."""
    assert differences(0, 8, variant)
