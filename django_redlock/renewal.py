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

from .background import start_thread
from .protocol import boottime

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
        self._running = False

    def watch(self, lease: Lease) -> None:
        """Look after a lease until it ends."""
        with self._woken:
            self._push(lease)
            if not self._running:
                start_thread(self._run)
                self._running = True

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
        """The next lease that is due, or None after a sleep or for one that has ended.

        Entries stay until they are due, also those of ended leases: so a process that takes
        and releases all the time wakes the watchdog once in a while, not for every lease.
        """
        with self._woken:
            if not self._due:
                self._sleep(None)
                return None
            due, _, reference = self._due[0]
            left = due - boottime()
            if left > 0:
                self._sleep(left, until=due)
                return None
            heapq.heappop(self._due)
            lease = reference()
            return lease if lease is not None and lease.held else None

    def _sleep(self, seconds: float | None, until: float = float("inf")) -> None:
        self._sleeps_until = until
        self._woken.wait(seconds)
        self._sleeps_until = float("-inf")  # awake: no need to be woken


watchdog: Final = Watchdog()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchdog.reset)
