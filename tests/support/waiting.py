"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from django_redlock.core.protocol import Request, Vote
from django_redlock.leases.lease import Lease
from django_redlock.nodes import connection, node

T = TypeVar("T")
MINUTE = 60.0
PATIENTLY = {"NODE_TIMEOUT": 10, "MAX_TTL": 60, "RESTART_GUARD": False}  # of an alias


def eventually(
    condition: Callable[[], T],
    *,
    within: float = 20.0,
    every: float = 0.005,
    what: str | Callable[[], str] = "",
) -> T:
    """Return the first true result of ``condition``, or fail when the seconds are over.

    It looks ever more seldom, and for at most a third of the time: others work meanwhile.

    Args:
        what: what is waited for, or tells what there is instead.
    """
    start = time.monotonic()
    while True:
        began = time.monotonic()
        result = condition()
        if result:
            return result
        waited = began - start
        if waited >= within:
            told = what() if callable(what) else what or condition
            raise AssertionError(f"not within {within:g} s: {told}; it was {result!r}")
        took = time.monotonic() - began
        time.sleep(max(every, min(waited / 20, 0.05), min(2 * took, 0.5)))


def in_time(condition: Callable[[], object], within: float) -> bool:
    """Tell whether a condition became true; for rigs, which are judged by what they have played."""
    late = time.monotonic() + within

    def over() -> str:
        return "true" if condition() else "late" * (time.monotonic() >= late)

    return eventually(over, within=math.inf) == "true"


def waiters(lease: Lease) -> int:
    """How many of this process stand in line for the name of the lease."""
    group: Any = lease.backend.group
    return len(group.queue.__self__.local.queues.get(f"redlock:queue:{lease.name}", ()))


def release_under_a_waiter(lease: Lease, seconds: float) -> threading.Thread:
    """Release in a thread, once somebody of this process has waited for the name for so long.

    A waiter may have the name before the thread has told of its release: join it.
    """

    def release() -> None:
        eventually(lambda: waiters(lease))
        time.sleep(seconds)
        lease.release()

    thread = threading.Thread(target=release)
    thread.start()
    return thread


@contextmanager
def waiting_for_silent_nodes(group: Any, requests: int) -> Iterator[None]:
    """Let so many requests of threads wait for NODE_TIMEOUT; one more that waits takes a minute.

    So requests are counted that wait for a node which does not answer. How many seconds they take
    depends on what else this machine does, and so decides nothing.
    """
    ask, threads, left = group.ask, group._threads, requests

    def counted(request: Request) -> list[Vote]:
        nonlocal left
        if left == 0:
            threads.timeout = MINUTE
        left -= 1
        votes: list[Vote] = ask(request)
        return votes

    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(patch.object(node, "OPEN_TIMEOUT", MINUTE))  # no end of connecting
        # A stall of this machine excuses no silence, which would be one more request that waits.
        stack.enter_context(patch.object(connection, "UNSEEN", math.inf))
        stack.enter_context(patch.object(threads, "timeout", threads.timeout))  # for its end
        stack.enter_context(patch.object(group, "ask", counted))
        yield
    assert time.monotonic() - began < MINUTE / 2
    assert left <= 0, "the requests that may wait were not all asked"


def slowness() -> float:
    """How many seconds of the clock a second of work takes here, now: 1 where nobody else works."""
    clock, worked = time.monotonic(), time.thread_time()
    while time.thread_time() < worked + 0.25:
        pass
    return (time.monotonic() - clock) / 0.25
