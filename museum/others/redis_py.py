"""redis-py's own Lock."""

from __future__ import annotations

import contextlib

from redis import Redis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

from museum.recipes.interface import Hold, Place


class RedisPy:
    """It waits by itself. It does not tell until when it has the lock."""

    def __init__(self, place: Place) -> None:
        self.lock = self._lock(place)

    def _lock(self, place: Place) -> Lock:
        lock: Lock = Redis.from_url(place.urls[0]).lock(place.name, timeout=place.ttl)
        return lock

    def acquire(self, wait: float) -> Hold | None:
        """With its pause of 0.1 s between two tries."""
        had = self.lock.acquire(blocking=wait > 0, blocking_timeout=wait)
        return Hold() if had else None

    def extend(self) -> Hold | None:
        """To its ttl from now on."""
        try:
            self.lock.reacquire()
        except LockNotOwnedError:
            return None
        return Hold()

    def release(self) -> None:
        """It raises where the lock is another's."""
        with contextlib.suppress(LockNotOwnedError):
            self.lock.release()
