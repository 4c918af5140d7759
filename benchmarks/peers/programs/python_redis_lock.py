"""python-redis-lock, on one node; argument: its URL. It writes `lock:` before each key."""

from __future__ import annotations

import sys
from typing import Any

from redis import Redis
from redis_lock import Lock, NotAcquired

from .conversation import serve


class Client:
    """One attempt."""

    def __init__(self, url: str) -> None:
        self.redis = Redis.from_url(url)
        self.lock: Any = None

    def acquire(self, key: str, ttl: int) -> bool:
        """Its ttl is in whole seconds, at least one."""
        lock = Lock(self.redis, key.removeprefix("lock:"), expire=max(1, ttl // 1000))
        had = lock.acquire(blocking=False)
        self.lock = lock if had else self.lock
        return bool(had)

    def extend(self, ttl: int) -> bool:
        """From now on, whatever was left."""
        try:
            self.lock.extend(max(1, ttl // 1000))
        except NotAcquired:
            return False
        return True

    def release(self) -> bool:
        """It raises where the lock is not its own."""
        try:
            self.lock.release()
        except NotAcquired:
            return False
        return True


serve(Client(sys.argv[1]))
