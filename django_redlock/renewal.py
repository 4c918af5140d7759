"""The one watchdog of a process: it keeps leases alive and tells their holders when one is lost.

A thread that sleeps until the next lease is due, prolongs it at a third of its ttl, and at a
lease's own deadline, whatever the network does, tells that it is lost. It holds leases weakly:
a lease that nobody can release any more is not kept alive. It starts with the first lease, is a
daemon (silent at exit), and a forked child begins with none.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .lease import Lease


class Watchdog:
    """Renews leases and watches their deadlines."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all leases, as a forked child must: they are its parent's."""
        self._woken = threading.Condition(threading.RLock())
        self._due: list[tuple[float, int, weakref.ref[Lease]]] = []
        self._order = itertools.count()
        self._sleeps_until = float("inf")
        self._thread: threading.Thread | None = None

    def watch(self, lease: Lease) -> None:
        """Look after a lease until it ends."""
        with self._woken:
            self._push(lease)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="redlock-watchdog", daemon=True
                )
                self._thread.start()

    def _push(self, lease: Lease) -> None:
        due = lease.next_look()
        heapq.heappush(self._due, (due, next(self._order), weakref.ref(lease)))
        if due < self._sleeps_until:
            self._woken.notify()

    def _run(self) -> None:
        while True:
            lease = self._next()
            if lease is not None and lease.look_after():
                with self._woken:
                    self._push(lease)
            del lease  # the watchdog must not be what keeps it

    def _next(self) -> Lease | None:
        """The next lease that is due, or None after a change."""
        with self._woken:
            while self._due and not _alive(self._due[0][2]):
                heapq.heappop(self._due)
            if not self._due:
                self._sleep(None)
                return None
            due, _, reference = self._due[0]
            lease = reference()
            if lease is None:
                return None
            left = due - lease.clock()
            if left > 0:
                del lease
                self._sleep(left, until=due)
                return None
            heapq.heappop(self._due)
            return lease

    def _sleep(self, seconds: float | None, until: float = float("inf")) -> None:
        self._sleeps_until = until
        self._woken.wait(seconds)
        self._sleeps_until = float("-inf")  # awake: no need to be woken


def _alive(reference: weakref.ref[Lease]) -> bool:
    lease = reference()
    return lease is not None and lease.held


watchdog: Final = Watchdog()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchdog.reset)
