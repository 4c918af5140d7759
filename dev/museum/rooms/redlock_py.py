"""redlock-py 1.0.8, unchanged: Redlock, with retries after a fixed delay."""

from __future__ import annotations

import math
import time

from dev.museum import faults
from dev.museum.cell import STUCK, TWO, Hold, Lock, Setup, clients_of


class RedlockPy:
    """It waits by retries; where it raises because of a server, its user asks again."""

    def __init__(self, setup: Setup) -> None:
        self.servers, self.setup = clients_of(setup), setup

    def acquire(self, wait: float) -> Hold | None:
        """Ask as often as its delay between two attempts allows."""
        from redlock import MultipleRedlockException, Redlock

        end, delay = time.monotonic() + wait, Redlock.default_retry_delay
        while True:
            tries = max(1, math.ceil((end - time.monotonic()) / delay))
            self.redlock = Redlock(self.servers, retry_count=tries)
            try:
                self.lock = self.redlock.lock(self.setup.name, self.setup.milliseconds)
            except MultipleRedlockException:
                if time.monotonic() >= end:
                    raise
                time.sleep(delay)
                continue
            return Hold(time.monotonic() + self.lock.validity / 1000) if self.lock else None

    def release(self) -> None:
        self.redlock.unlock(self.lock)


# -- what is counted -------------------------------------------------------------------------------

LOCK = Lock("redlock-py", "redlock-py 1.0.8", RedlockPy, servers=3, peer="redlock-py")
RAISES = (
    "One server that is down makes it raise, though it has the votes of the others. It leaves their"
    " keys, and so nobody gets the lock."
)
CELLS = [
    *LOCK.holds(faults.turns, faults.killed),
    *LOCK.holds(faults.stopped_acquiring, why=faults.IN_TIME),
    LOCK.breaks(faults.down, STUCK, why=RAISES),
    LOCK.breaks(faults.clock_set_right, TWO, why=faults.WALL_CLOCK),
]
