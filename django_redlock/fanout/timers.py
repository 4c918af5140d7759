"""When to look at the questions of an event loop again: one timer of the loop for all of them.

Nearly every question is answered long before its alarm, and a timer of its own, made, sorted in
and cancelled, would cost more than its answers. An alarm is only dropped when its time comes,
or when those that are void have become many; its question is, when it is over.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    import asyncio


Timer: TypeAlias = list[Any]  # when; which of those; the question, or None when it is over

FEW: Final = 1024  # alarms that are not worth tidying
LATE: Final = 1.0  # seconds after a timer that was interrupted until the next one rings


class Watched(Protocol):
    """A request that is looked at again."""

    answered: asyncio.Future[Any]

    def look_again(self, when: float, now: float) -> None:
        """Look, at ``now``, what was to be looked at ``when``."""


def dismiss(alarm: Timer | None) -> None:
    """Let it ring for nobody."""
    if alarm is not None:
        alarm[2] = None


class TimerHeap:
    """The alarms of one event loop."""

    def __init__(self) -> None:
        self._alarms: list[Timer] = []
        self._order = itertools.count()
        self._many = FEW
        self._timers: tuple[asyncio.TimerHandle, ...] = ()  # the second, should one be interrupted
        self._rings = math.inf  # when the timer does

    def set(self, when: float, inquiry: Watched, loop: asyncio.AbstractEventLoop) -> Timer:
        """Have ``inquiry.look_again`` called at that ``time.monotonic``."""
        if len(self._alarms) >= self._many:
            alarms = [alarm for alarm in self._alarms if alarm[2] is not None]
            heapq.heapify(alarms)
            self._alarms, self._many = alarms, max(FEW, 2 * len(alarms))
        alarm: Timer = [when, next(self._order), inquiry]
        heapq.heappush(self._alarms, alarm)
        if when < self._rings:
            self._arm(loop)
        return alarm

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        before, rings = self._timers, self._alarms[0][0]
        left = max(0.0, rings - time.monotonic())
        timers = [loop.call_later(left + late, self._ring, loop) for late in (0.0, LATE)]
        self._timers, self._rings = tuple(timers), rings
        for timer in before:
            timer.cancel()

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now, self._rings = time.monotonic(), -math.inf  # what is set meanwhile needs no timer yet
        try:
            while self._alarms:
                when, _, inquiry = self._alarms[0]
                over = inquiry is None or inquiry.answered.done()
                if when > now and not over:
                    return
                try:
                    heapq.heappop(self._alarms)
                    if not over:
                        inquiry.look_again(when, now)
                except BaseException:  # a signal handler's: look once more
                    heapq.heappush(self._alarms, [now, next(self._order), inquiry])
                    raise
        finally:
            timers, self._timers, self._rings = self._timers, (), math.inf
            for timer in timers:
                timer.cancel()
            if self._alarms:
                self._arm(loop)
