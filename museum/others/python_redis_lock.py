"""python-redis-lock."""

from __future__ import annotations

import contextlib
import time

import redis_lock
from redis import Redis

from museum.recipes.interface import Hold, Place


class PythonRedisLock:
    """It waits for a signal (BLPOP). It does not tell until when it has the lock."""

    def __init__(self, place: Place) -> None:
        # Its BLPOP may wait for the ttl, and redis-py 8 by default for 5 s.
        self.redis = Redis.from_url(place.urls[0], socket_timeout=None)
        self.seconds = max(1, int(place.ttl))  # it takes whole ones
        self.lock = redis_lock.Lock(self.redis, place.name, expire=self.seconds)

    def acquire(self, wait: float) -> Hold | None:
        """It waits for whole seconds, and for no longer than its ttl: ask again."""
        end = time.monotonic() + wait
        while (left := int(end - time.monotonic())) > 0:
            if self.lock.acquire(timeout=min(left, self.seconds)):
                return Hold()
        return Hold() if self.lock.acquire(blocking=False) else None

    def extend(self) -> Hold | None:
        """For its ttl from now on."""
        try:
            self.lock.extend()
        except redis_lock.NotAcquired:
            return None
        return Hold()

    def release(self) -> None:
        """It raises where the lock is not its own."""
        with contextlib.suppress(redis_lock.NotAcquired):
            self.lock.release()

    def empty(self) -> None:
        """Delete all locks, as an application may do that starts after a crash."""
        redis_lock.reset_all(self.redis)
