"""Watch the leases of one event loop by callbacks of its own timers; no thread and no task.

An exception may end any of these callbacks at any call: that of a signal handler, or the exit that
a listener wants. So a callback gives back what it took, in a ``finally``; the future of a request
says whether the request is on its way; and each timer that fires looks at the schedule, also one
that is out of date. What an exception makes the loop miss, the thread renews a little later.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from django_redlock.core.policy import boottime
from django_redlock.core.protocol import Request

from .batch import RenewalBatch, Wounded, batches
from .schedule import RenewalSchedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.hold import Outcome
    from django_redlock.core.protocol import Steps

    from .lease import Lease
    from .schedule import Reference


class LoopWatchdog:
    """Watch the leases that were taken in one event loop, by its timers."""

    def __init__(self) -> None:
        self.schedule = RenewalSchedule()
        self._timer = math.inf  # when the next one fires
        self._queued: dict[int, deque[tuple[Backend, Sequence[Reference]]]] = {}
        self._wounded: dict[int, Wounded] = {}
        self._asked: dict[int, tuple[Sequence[Reference], asyncio.Future[Any]]] = {}

    def watch(self, lease: Lease, loop: asyncio.AbstractEventLoop) -> None:
        """Watch a lease until it ends."""
        if self.schedule.add(lease) < self._timer or self._timer <= boottime():
            self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        when, now = self.schedule.next(), boottime()
        # A timer that should have fired may have been interrupted.
        if when < self._timer or (self._timer <= now and when < math.inf):
            left = max(0.0, when - now)
            # In an empty context: that of the lock's caller is not the timer's.
            loop.call_later(left, self._look, when, loop, context=contextvars.Context())
            self._timer = when

    def _look(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        if when == self._timer:
            self._timer = math.inf
        due: list[Lease] = []
        try:
            over, due = self.schedule.take(boottime())
            for backend, batch in batches(due):
                self._queued.setdefault(id(backend.group), deque()).append((backend, batch))
            due = []
            self._tell([lease for lease in over if lease.over() or lease.untold], loop)
            for kind in tuple(self._queued):
                self._ask_next(kind, loop)
        finally:
            self._renew_later(due, loop)

    def _ask_next(self, kind: int, loop: asyncio.AbstractEventLoop) -> None:
        """Send the next renewal, or else a heal, to this group, unless one is on its way."""
        asked = self._asked.get(kind)
        if asked is not None:
            if not asked[1].done():
                return
            self._asked.pop(kind, None)  # an interruption kept it from being heard
            leases = (reference() for reference in asked[0])
            self._renew_later([lease for lease in leases if lease is not None], loop)
        while (renewal := self._next(kind)) is not None:
            try:
                replied = self._go_on(renewal, renewal.steps(), kind, loop)
                if replied is not None:
                    self._asked[kind] = tuple(map(weakref.ref, renewal.leases)), replied
                    return
            except BaseException:
                self._renew_later(renewal.leases, loop)
                raise

    def _next(self, kind: int) -> RenewalBatch | None:
        """Take out what this group is asked next: no heal while a renewal waits."""
        if queue := self._queued.get(kind):
            return RenewalBatch(*queue.popleft())
        self._queued.pop(kind, None)
        if wounded := self._wounded.get(kind):
            return wounded.next_one()
        self._wounded.pop(kind, None)
        return None

    def _go_on(
        self,
        renewal: RenewalBatch,
        steps: Steps[list[Outcome]],
        kind: int,
        loop: asyncio.AbstractEventLoop,
        replied: asyncio.Future[Any] | None = None,
    ) -> asyncio.Future[Any] | None:
        """Send the next request of a renewal to its group; return None if that was the last.

        The first request extends the leases, others heal some of them.
        """
        over = True
        try:
            request = steps.send(None if replied is None else replied.result())
            assert isinstance(request, Request)  # a renewal waits for nothing but replies
            asked = asyncio.ensure_future(renewal.backend.group.aask(request), loop=loop)
            heard = partial(self._heard, renewal, steps, kind, loop)
            asked.add_done_callback(heard, context=contextvars.Context())
            over = False
        except StopIteration:
            return None
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - as in Watchdog._renew
            renewal.fail()
            return None
        finally:
            if over:
                self._renew_later(renewal.leases, loop)
                self._tell(renewal.lost, loop)
                if renewal.wounded:
                    self._wounded.setdefault(kind, Wounded()).update(renewal.wounded)
        return asked

    def _heard(
        self,
        renewal: RenewalBatch,
        steps: Steps[list[Outcome]],
        kind: int,
        loop: asyncio.AbstractEventLoop,
        replied: asyncio.Future[Any],
    ) -> None:
        before = self._asked.get(kind)
        ours = before is not None and before[1] is replied
        again: asyncio.Future[Any] | None = None
        try:
            again = self._go_on(renewal, steps, kind, loop, replied)
        finally:
            if ours and before is not None:
                if again is None:
                    self._asked.pop(kind, None)
                else:
                    self._asked[kind] = before[0], again
            self._ask_next(kind, loop)

    def _renew_later(self, leases: Sequence[Lease], loop: asyncio.AbstractEventLoop) -> None:
        for lease in leases:
            self.schedule.renew_later(lease)
        self._set_timer(loop)

    def _tell(self, lost: Sequence[Lease], loop: asyncio.AbstractEventLoop) -> None:
        """Tell the holders, each by a callback of its own: one that raises leaves none untold."""
        for lease in lost:
            loop.call_soon(lease.tell_lost, context=contextvars.Context())
