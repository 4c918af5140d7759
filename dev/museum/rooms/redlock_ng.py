"""redlock-ng 2.0.4, unchanged: Redlock, with retries after a delay of its own."""

from __future__ import annotations

import math
import time

from dev.museum import faults
from dev.museum.cell import LOST, TWO, Hold, Lock, Setup

RETRY_DELAY = 0.2  # seconds, the middle of its default


class RedlockNg:
    """It waits by retries."""

    def __init__(self, setup: Setup) -> None:
        from redlock import Redlock, RedlockConfig

        timeouts = {"socket_timeout": setup.timeout, "socket_connect_timeout": setup.timeout}
        self.redlock = Redlock(RedlockConfig(masters=list(setup.urls), **timeouts))
        self.setup = setup

    def acquire(self, wait: float) -> Hold | None:
        """Ask as often as its delay between two attempts allows."""
        self.redlock.retry_count = math.ceil(wait / RETRY_DELAY)
        lock = self.redlock.acquire(self.setup.name, self.setup.milliseconds)
        if lock is None:
            return None
        self.lock = lock
        return Hold(time.monotonic() + lock.validity / 1000)

    def release(self) -> None:
        self.redlock.release(self.lock)


# -- what is counted -------------------------------------------------------------------------------

LOCK = Lock("redlock-ng", "redlock-ng 2.0.4", RedlockNg, servers=3, peer="redlock-ng")
CELLS = [
    *LOCK.holds(faults.turns, faults.down),
    *LOCK.holds(faults.stopped_acquiring, why=faults.IN_TIME),
    LOCK.breaks(faults.clock_set_right, TWO, why=faults.WALL_CLOCK),
    LOCK.breaks(faults.restarted, TWO, LOST, why=faults.NO_GUARD),
]
