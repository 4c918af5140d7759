"""python-redis-lock, on one node: a waiter is woken through a list (BLPOP).

It writes `lock:` before each key. Its ttl is in whole seconds, at least one.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from redis import Redis
from redis_lock import Lock, NotAcquired

from .conversation import serve, settings


class Client:
    """One attempt."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)

    def _lock(self, key: str, ttl: float) -> Any:
        return Lock(self._redis, key.removeprefix("lock:"), expire=max(1, int(ttl)))

    def acquire(self, key: str, ttl: float) -> Any:
        lock = self._lock(key, ttl)
        return lock if lock.acquire(blocking=False) else None

    def wait(self, key: str, ttl: float, seconds: float) -> Any:
        lock = self._lock(key, ttl)
        return lock if lock.acquire(timeout=int(seconds)) else None

    def extend(self, lock: Any, ttl: float) -> bool:
        try:
            lock.extend(max(1, int(ttl)))
        except NotAcquired:
            return False
        return True

    def release(self, lock: Any) -> bool:
        try:
            lock.release()
        except NotAcquired:
            return False
        return True


named = f"{version('python-redis-lock')}, redis-py {version('redis')}"
serve(named, {"threads": Client(settings()["urls"][0])})
