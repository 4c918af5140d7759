"""redis-py 8.1.0 and its own Lock; django-redis 7.0.0, whose `cache.lock` is the same lock."""

from __future__ import annotations

import contextlib
from typing import Any

import redis
import redis.lock
from redis.exceptions import LockNotOwnedError

from dev.museum import faults
from dev.museum.cell import LOST, STUCK, TWO, Hold, Lock, Setup


class RedisPy:
    """It waits by itself. It does not tell until when it has the lock."""

    def __init__(self, setup: Setup) -> None:
        self.lock = self.new_lock(setup)

    def new_lock(self, setup: Setup) -> redis.lock.Lock:
        return redis.lock.Lock(redis.Redis.from_url(setup.urls[0]), setup.name, timeout=setup.ttl)

    def acquire(self, wait: float) -> Hold | None:
        """With its pause of 0.1 s between two tries."""
        had = self.lock.acquire(blocking=wait > 0, blocking_timeout=wait)
        return Hold() if had else None

    def release(self) -> None:
        """It raises where the lock is another's."""
        with contextlib.suppress(LockNotOwnedError):
            self.lock.release()


class DjangoRedis(RedisPy):
    """The lock of a cache."""

    def new_lock(self, setup: Setup) -> redis.lock.Lock:
        from django.conf import settings

        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": setup.urls[0]}
        settings.configure(CACHES={"default": cache})
        from django.core.cache import caches

        django_redis: Any = caches["default"]  # a cache of Django has no locks
        lock: redis.lock.Lock = django_redis.lock(setup.name, timeout=setup.ttl)
        return lock

    def empty(self) -> None:
        """Clear the cache, as anybody does who uses it."""
        from django.core.cache import cache

        cache.clear()


# -- what is counted -------------------------------------------------------------------------------

REDIS_PY = Lock("redis-py", "redis-py 8.1.0, Lock", RedisPy, peer="redis")
DJANGO_REDIS = Lock(
    "django-redis", "django-redis 7.0.0, cache.lock", DjangoRedis, peer="django-redis"
)
OWN_KEY = (
    "By default the client waits 5 s for the reply and asks again, and then its own key is in its"
    " way until the ttl is over."
)
ONE_SERVER = "The lock is on one server, and its replica has not heard of it."
FLUSHED = "The lock is a key of the cache, and `cache.clear()` is FLUSHDB."
CELLS = [
    *REDIS_PY.holds(faults.turns, faults.killed),
    *REDIS_PY.holds(faults.late_release, why=faults.COMPARED),
    REDIS_PY.breaks(faults.paused, TWO, LOST, why=faults.NO_END),
    REDIS_PY.breaks(faults.stopped_acquiring, TWO, LOST, why=faults.HOWEVER_LATE),
    REDIS_PY.breaks(faults.lost_reply, STUCK, why=OWN_KEY),
    REDIS_PY.breaks(faults.failover_lagging, TWO, LOST, why=ONE_SERVER),
    *DJANGO_REDIS.holds(faults.turns),
    DJANGO_REDIS.breaks(faults.paused, TWO, LOST, why=faults.NO_END),
    DJANGO_REDIS.breaks(faults.emptied, TWO, LOST, why=FLUSHED),
]
