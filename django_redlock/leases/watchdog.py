"""Renew the leases of a process, and tell their holders when one is lost.

A process has one watchdog thread for all its leases, and each event loop has a timer for the
leases that were taken in it. A lease is renewed at a third of its ttl, together with all others
of its group that are nearly due. At its deadline, whatever the network does, it is lost.

The thread neither asks the nodes nor calls ``on_lost`` itself: a node that hangs or a callback
that blocks would make it late for other leases. Both are jobs for workers: renewals of a group
one after the other, and several callbacks at once, of which one may block for ever.

In an event loop nothing blocks but the loop, so its watchdog needs no workers, and no task
either: ``asyncio.run`` would cancel a task before the holders' own clean-up, and a loop that is
closed would warn about it. The timer keeps the watchdog, and nothing keeps the loop. The thread
watches these leases too, a little later: it steps in when the loop is blocked, suspended or
closed.

A daemon thread, silent at exit; a forked child begins with no leases. The thread sleeps on a
``ThreadWakeup``, and no other thread takes a lock that an interruption could leave locked.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from django_redlock.concurrency.loops import PerLoop, running_loop
from django_redlock.concurrency.threads import WorkerThreads, start_thread
from django_redlock.core.policy import boottime
from django_redlock.interruption import ThreadWakeup

from .batch import RenewalBatch, Wounded, batches
from .loop_watchdog import LoopWatchdog
from .schedule import RenewalSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend

    from .lease import Lease
    from .schedule import Reference

logger = logging.getLogger("django_redlock")

# The thread leaves the leases of an event loop to the loop …
LAG: Final = 1 / 6  # … for this part of a ttl after they were due,
GRACE: Final = 0.1  # … and for this many seconds after their deadline.
MOST_TOLD: Final = 32  # holders that are being told of a loss at the same time


class Healer:
    """Heal leases of one group in its worker, each behind the renewals that wait."""

    def __init__(self, workers: WorkerThreads, kind: int) -> None:
        self.wounded = Wounded()
        self._workers, self._kind = workers, kind

    def go_on(self) -> None:
        """Heal the next one; where there is no thread, the next renewal finds it again."""
        self._workers.offer(self._kind, self._heal_one, again=False)

    def _heal_one(self) -> None:
        healing = self.wounded.next_one()
        if healing is not None:
            try:
                _run(healing)
            finally:
                self.go_on()


class Watchdog:
    """Watch the leases of a process; those of an event loop by a timer there."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all leases, as a forked child must: they are its parent's."""
        self._lock = threading.RLock()  # re-entrant: a signal handler may lock, too
        self._wakeup = ThreadWakeup()
        self._own = RenewalSchedule()
        self._of_loops = RenewalSchedule(lag=LAG, grace=GRACE)
        self._workers = WorkerThreads()
        self._healers: dict[int, Healer] = {}  # by group
        self._sleeps_until = self._woken_for = math.inf
        self._running = False
        self._in_loops = PerLoop(LoopWatchdog)

    def watch(self, lease: Lease) -> None:
        """Watch a lease until it ends."""
        loop = running_loop()
        if loop is not None:
            self._in_loops.of(loop).watch(lease, loop)
        with self._lock:
            when = (self._own if loop is None else self._of_loops).add(lease)
            if when < self._sleeps_until:
                self._woken_for = min(when, self._woken_for)
                self._wakeup.wake()
        if not self._running:
            try:
                start_thread(self._run)
            except RuntimeError as error:  # the next lease tries again
                logger.warning("no watchdog: leases end with their ttl, untold: %s", error)

    def _next(self) -> float:
        return min(self._own.next(), self._of_loops.next())

    def _wake(self) -> None:
        if self._next() < self._sleeps_until:
            self._wakeup.wake()

    def _run(self) -> None:
        with self._lock:
            if self._running:  # of several that were started one is enough
                return
            self._running = True
        try:
            while True:
                self._attend()  # a call of its own: no variable here keeps a lease alive
        finally:
            self._running = False  # the next lease starts another

    def _attend(self) -> None:
        """Wait until there is something to do, and have it done.

        A lease that woke the thread may be released by now. The thread wakes at its time all the
        same: so the next ones, which are due later, wake it no more.
        """
        schedules = (self._own, self._of_loops)
        with self._lock:
            self._sleeps_until = min(self._woken_for, self._next())
        left = self._sleeps_until - boottime()
        if left > 0:
            self._wakeup.sleep(left)
        with self._lock:
            self._sleeps_until = -math.inf  # awake: no need to be woken
            now = boottime()
            if self._woken_for <= now:
                self._woken_for = math.inf
            taken = [(schedule, *schedule.take(now)) for schedule in schedules]
        for schedule, over, due in taken:
            self._tell([lease for lease in over if lease.over() or lease.untold])
            for backend, batch in batches(due):
                self._workers.do(id(backend.group), partial(self._renew, schedule, backend, batch))

    def _renew(
        self, schedule: RenewalSchedule, backend: Backend, batch: Sequence[Reference]
    ) -> None:
        renewal = RenewalBatch(backend, batch)
        try:
            _run(renewal)
        finally:  # a listener may want to exit; the leases are still to be watched
            with self._lock:
                for lease in renewal.leases:
                    schedule.renew_later(lease)
                self._wake()
            self._tell(renewal.lost)
            if renewal.wounded:
                kind = id(backend.group)
                healer = self._healers.setdefault(kind, Healer(self._workers, kind))
                healer.wounded.update(renewal.wounded)
                healer.go_on()

    def _tell(self, lost: Sequence[Lease]) -> None:
        for lease in lost:
            self._workers.do("tell", lease.tell_lost, most=MOST_TOLD)


def _run(renewal: RenewalBatch) -> None:
    try:
        renewal.backend.run(renewal.steps())
    except Exception:  # noqa: BLE001 - logged; the leases last until their deadlines
        renewal.fail()


watchdog: Final = Watchdog()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watchdog.reset)
