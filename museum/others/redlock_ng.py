"""redlock-ng."""

from __future__ import annotations

import math
import time

from redlock import Redlock, RedlockConfig

from museum.recipes.interface import Hold, Place

RETRY_DELAY = 0.2  # seconds, the middle of its default


class RedlockNg:
    """It waits by retries."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.config = RedlockConfig(
            masters=list(place.urls),
            socket_timeout=place.timeout,
            socket_connect_timeout=place.timeout,
        )
        self.redlock = Redlock(self.config)

    def acquire(self, wait: float) -> Hold | None:
        """Ask as often as its delay between two attempts allows."""
        self.redlock.retry_count = math.ceil(wait / RETRY_DELAY)
        lock = self.redlock.acquire(self.place.name, self.ttl)
        if lock is None:
            return None
        self.lock = lock
        return Hold(time.monotonic() + lock.validity / 1000)

    def extend(self) -> Hold | None:
        """It tells whether a majority did, not until when."""
        asked = time.monotonic()
        if not self.redlock.extend(self.lock, self.ttl):
            return None
        return Hold(asked + self.place.ttl)

    def release(self) -> None:
        """It never tells whether there was something to release."""
        self.redlock.release(self.lock)

    @property
    def ttl(self) -> int:
        """In milliseconds."""
        return int(self.place.ttl * 1000)
