"""When to look at the requests of an event loop again: one timer of the loop for all of them.

Nearly every request is answered long before it is to be looked at, and a timer of its own, made,
sorted in and cancelled, would cost more than its answers. An entry is only dropped when its time
comes, or when those that are void have become many; its request is, when it is over.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    import asyncio


Timer: TypeAlias = list[Any]  # when; which of those; the request, or None when it is over

FEW: Final = 1024  # entries that are not worth tidying
LATE: Final = 1.0  # seconds after a timer that was interrupted until the next one


class Watched(Protocol):
    """A request that is looked at again."""

    def is_over(self) -> bool:
        """Tell whether there is nothing to look at any more."""

    def look_again(self, when: float, now: float) -> None:
        """Look, at ``now``, what was to be looked at ``when``."""


def cancel(timer: Timer) -> None:
    """Let its time pass unnoticed."""
    timer[2] = None


class TimerHeap:
    """The timers of one event loop."""

    def __init__(self) -> None:
        self._timers: list[Timer] = []
        self._order = itertools.count()
        self._many = FEW
        # The loop's own; the second, should an interruption hit the first.
        self._handles: tuple[asyncio.TimerHandle, ...] = ()
        self._next = math.inf  # when the first of them is due

    def set(self, when: float, request: Watched, loop: asyncio.AbstractEventLoop) -> Timer:
        """Have ``request.look_again`` called at that ``time.monotonic``."""
        if len(self._timers) >= self._many:
            timers = [timer for timer in self._timers if timer[2] is not None]
            heapq.heapify(timers)
            self._timers, self._many = timers, max(FEW, 2 * len(timers))
        timer: Timer = [when, next(self._order), request]
        heapq.heappush(self._timers, timer)
        if when < self._next:
            self._arm(loop)
        return timer

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        before, due = self._handles, self._timers[0][0]
        left = max(0.0, due - time.monotonic())
        handles = [loop.call_later(left + late, self._run, loop) for late in (0.0, LATE)]
        self._handles, self._next = tuple(handles), due
        for handle in before:
            handle.cancel()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        now, self._next = time.monotonic(), -math.inf  # what is set meanwhile needs no handle yet
        try:
            while self._timers:
                when, _, request = self._timers[0]
                over = request is None or request.is_over()
                if when > now and not over:
                    return
                try:
                    heapq.heappop(self._timers)
                    if not over:
                        request.look_again(when, now)
                except BaseException:  # a signal handler's: look once more
                    heapq.heappush(self._timers, [now, next(self._order), request])
                    raise
        finally:
            handles, self._handles, self._next = self._handles, (), math.inf
            for handle in handles:
                handle.cancel()
            if self._timers:
                self._arm(loop)
