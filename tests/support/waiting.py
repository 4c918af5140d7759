"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django_redlock.leases.lease import Lease

T = TypeVar("T")


def eventually(
    condition: Callable[[], T], *, within: float = 20.0, every: float = 0.005, what: str = ""
) -> T:
    """Return the first true result of ``condition``, or fail when the seconds are over."""
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() >= deadline
        result = condition()
        if result:
            return result
        assert not late, f"not within {within:g} s: {what or condition}; it was {result!r}"
        time.sleep(every)


def waiters(lease: Lease) -> int:
    """How many of this process stand in line for the name of the lease."""
    group: Any = lease.backend.group
    return len(group.queue.__self__.local.queues.get(f"redlock:queue:{lease.name}", ()))


def release_under_a_waiter(lease: Lease, seconds: float) -> threading.Thread:
    """Release in a thread, once somebody of this process has waited for the name for so long.

    Whoever waited may have the name before the thread has told of its release: join it.
    """

    def release() -> None:
        eventually(lambda: waiters(lease))
        time.sleep(seconds)
        lease.release()

    thread = threading.Thread(target=release)
    thread.start()
    return thread


def slowness() -> float:
    """How many seconds of the clock a second of work takes here, now: 1 where nobody else works."""
    clock, worked = time.monotonic(), time.thread_time()
    while time.thread_time() < worked + 0.25:
        pass
    return (time.monotonic() - clock) / 0.25
