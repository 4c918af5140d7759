"""The watchdog of one event loop: callbacks by the loop's own timers, no thread and no task."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from .batch import Renewal, batches
from .protocol import Ask, boottime
from .rota import Rota

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backend import Backend
    from .extending import Outcome
    from .lease import Lease
    from .protocol import Steps
    from .rota import Reference


class LoopWatchdog:
    """Looks after the leases that were taken in one event loop, by its timers."""

    def __init__(self) -> None:
        self.rota = Rota()
        self._timer = math.inf  # when the next one fires; later ones are out of date
        self._waiting: dict[int, deque[tuple[Backend, Sequence[Reference]]]] = {}

    def watch(self, lease: Lease, loop: asyncio.AbstractEventLoop) -> None:
        """Look after a lease until it ends."""
        self.rota.add(lease)
        self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        when = self.rota.next()
        if when < self._timer:
            self._timer = when
            left = max(0.0, when - boottime())
            # An empty context: the one of whoever took the lock is no business of ours.
            loop.call_later(left, self._look, when, loop, context=contextvars.Context())

    def _look(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        if when != self._timer:
            return
        self._timer = math.inf
        try:
            over, due = self.rota.take(boottime())
            self._tell([lease for lease in over if lease.over()])
            for backend, batch in batches(due):
                kind = id(backend.group)
                if kind in self._waiting:
                    self._waiting[kind].append((backend, batch))
                else:
                    self._waiting[kind] = deque([(backend, batch)])
                    self._ask_next(kind, loop)
        finally:
            self._set_timer(loop)

    def _ask_next(self, kind: int, loop: asyncio.AbstractEventLoop) -> None:
        """Put the next question to these nodes, or be done with them."""
        while self._waiting[kind]:
            backend, batch = self._waiting[kind].popleft()
            renewal = Renewal(backend, batch)
            steps = renewal.steps()
            try:
                question = next(steps)
                assert isinstance(question, Ask)  # an extension waits for nothing
                answered = asyncio.ensure_future(backend.group.aask(question), loop=loop)
            except StopIteration as stop:  # nothing to ask
                self._settle(renewal, stop.value, loop)
            except Exception:  # noqa: BLE001 - as in Watchdog._renew
                self._settle(renewal, renewal.unknown(), loop)
            else:
                heard = partial(self._heard, renewal, steps, kind, loop)
                answered.add_done_callback(heard, context=contextvars.Context())
                return
        del self._waiting[kind]

    def _heard(
        self,
        renewal: Renewal,
        steps: Steps[list[Outcome]],
        kind: int,
        loop: asyncio.AbstractEventLoop,
        answered: asyncio.Future[Any],
    ) -> None:
        outcomes: list[Outcome]
        try:
            steps.send(answered.result())
        except StopIteration as stop:
            outcomes = stop.value
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - as in Watchdog._renew
            outcomes = renewal.unknown()
        self._settle(renewal, outcomes, loop)
        self._ask_next(kind, loop)

    def _settle(
        self, renewal: Renewal, outcomes: list[Outcome], loop: asyncio.AbstractEventLoop
    ) -> None:
        lost = renewal.settle(outcomes)
        for lease in renewal.leases:
            self.rota.renew_later(lease)
        self._set_timer(loop)
        self._tell(lost)

    def _tell(self, lost: Sequence[Lease]) -> None:
        for lease in lost:
            lease.tell_lost()
