"""Wait in a thread so that no interruption leaves anything locked.

A signal handler may raise at any call of the main thread. ``threading.Condition``, ``Event`` and
the others that are written in Python take a lock of theirs in one call and release it in another:
an exception between the two leaves it locked for ever, for all threads. What stands here uses
locks that are written in C, and holds none of them while other code runs.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

LOOK: Final = 1.0  # seconds after which who waits looks for itself


class Latch:
    """A flag that is raised once, and waited for.

    Each who waits has a lock of its own, which only it takes. Raising the flag again wakes those
    whom an interruption of the first time left out; without that they look for themselves.
    """

    __slots__ = ("_raised", "_waiting")

    def __init__(self) -> None:
        self._raised = False
        self._waiting: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Whether the flag is raised."""
        return self._raised

    def set(self) -> None:
        """Raise the flag and wake all who wait."""
        self._raised = True
        for lock in tuple(self._waiting):
            _release(lock)

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is raised, for at most so long; whether it is."""
        end = time.monotonic() + seconds
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        while not self._raised and (left := end - time.monotonic()) > 0:
            lock.acquire(timeout=min(left, LOOK))
        return self._raised


class Bell:
    """Wakes one thread that sleeps; rung while it is awake, the next sleep ends at once."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """End the sleep."""
        _release(self._silent)

    def sleep(self, seconds: float) -> None:
        """Sleep until the bell rings, for at most so long; may be infinite."""
        self._silent.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


def _release(lock: threading.Lock) -> None:
    with suppress(RuntimeError):  # it was released already
        lock.release()
