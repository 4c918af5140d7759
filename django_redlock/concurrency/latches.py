"""Wait in a thread so that no interruption leaves a lock locked.

A signal handler may raise at any call of the main thread. ``threading.Condition``, ``Event`` and
the others that are written in Python acquire a lock in one call and release it in another: an
exception between the two leaves it locked for ever, for all threads. The classes here use locks
that are written in C, and hold none of them while other code runs.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

LOOK: Final = 1.0  # seconds after which a waiting thread looks at the flag itself


class Latch:
    """A flag that is raised once, for which threads wait.

    Each waiting thread has a lock of its own, which no other acquires. If ``set`` is interrupted,
    calling it again wakes the threads that it left out; without that they look at the flag.
    """

    __slots__ = ("_raised", "_waiting")

    def __init__(self) -> None:
        self._raised = False
        self._waiting: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Tell whether the flag is raised."""
        return self._raised

    def set(self) -> None:
        """Raise the flag and wake all waiting threads."""
        self._raised = True
        for lock in tuple(self._waiting):
            _release(lock)

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is raised, for at most so many seconds; return whether it is."""
        end = time.monotonic() + seconds
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        while not self._raised and (left := end - time.monotonic()) > 0:
            lock.acquire(timeout=min(left, LOOK))
        return self._raised


class Bell:
    """Wake one thread that sleeps; if it is awake, its next sleep ends at once."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """End the sleep."""
        _release(self._silent)

    def sleep(self, seconds: float) -> None:
        """Sleep until the bell rings, for at most so many seconds; may be infinite."""
        self._silent.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


def _release(lock: threading.Lock) -> None:
    with suppress(RuntimeError):  # it was released already
        lock.release()
