"""redis-py's own Lock, on one node; a waiter asks every 0.1 s."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from redis import Redis
from redis.exceptions import LockError

from .conversation import serve, settings


class Client:
    """One attempt."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)

    def acquire(self, key: str, ttl: float) -> Any:
        lock = self._redis.lock(key, timeout=ttl, blocking=False)
        return lock if lock.acquire() else None

    def wait(self, key: str, ttl: float, seconds: float) -> Any:
        lock = self._redis.lock(key, timeout=ttl, blocking_timeout=seconds)
        return lock if lock.acquire() else None

    def extend(self, lock: Any, ttl: float) -> bool:
        try:
            return bool(lock.extend(ttl, replace_ttl=True))
        except LockError:
            return False

    def release(self, lock: Any) -> bool:
        try:
            lock.release()
        except LockError:  # not its own, or released before
            return False
        return True


serve(version("redis"), {"threads": Client(settings()["urls"][0])})
