"""pottery 3.0.1, unchanged: Redlock, measured with a clock that nobody sets."""

from __future__ import annotations

import contextlib
import time

from dev.museum import faults
from dev.museum.cell import LOST, TWO, Hold, Lock, Setup, clients_of


class Pottery:
    """It waits by itself, and tells when asked how long it still has the lock."""

    def __init__(self, setup: Setup) -> None:
        from pottery import Redlock

        masters = set(clients_of(setup))
        self.lock = Redlock(key=setup.name, masters=masters, auto_release_time=setup.ttl)

    def acquire(self, wait: float) -> Hold | None:
        """It looks at ``timeout`` before each attempt: 0 would be none at all."""
        had = self.lock.acquire(timeout=wait) if wait else self.lock.acquire(blocking=False)
        asked = time.monotonic()
        return Hold(asked + self.lock.locked()) if had else None

    def release(self) -> None:
        """It raises where a majority does not have the lock."""
        from pottery import ReleaseUnlockedLock

        with contextlib.suppress(ReleaseUnlockedLock):
            self.lock.release()


# -- what is counted -------------------------------------------------------------------------------

LOCK = Lock("pottery", "pottery 3.0.1", Pottery, servers=3, peer="pottery")
CELLS = [
    *LOCK.holds(faults.turns, faults.crowd, faults.down),
    *LOCK.holds(faults.stopped_acquiring, why=faults.IN_TIME),
    *LOCK.holds(faults.votes_split, why=faults.TAKEN_BACK),
    *LOCK.holds(faults.clock_set_right, why="It measures with a clock that nobody sets."),
    LOCK.breaks(faults.restarted, TWO, LOST, why=faults.NO_GUARD),
]
