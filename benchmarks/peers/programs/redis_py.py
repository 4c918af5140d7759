"""redis-py's own Lock, on one node; argument: its URL."""

from __future__ import annotations

import sys
from typing import Any

from redis import Redis
from redis.exceptions import LockError

from .conversation import serve


class Client:
    """One attempt."""

    def __init__(self, url: str) -> None:
        self.redis = Redis.from_url(url)
        self.lock: Any = None

    def acquire(self, key: str, ttl: int) -> bool:
        """Its ttl is in seconds."""
        lock = self.redis.lock(key, timeout=ttl / 1000, blocking=False)
        had = lock.acquire()
        self.lock = lock if had else self.lock
        return bool(had)

    def extend(self, ttl: int) -> bool:
        """From now on, whatever was left."""
        try:
            return bool(self.lock.extend(ttl / 1000, replace_ttl=True))
        except LockError:
            return False

    def release(self) -> bool:
        """It raises where the lock is not its own, or was released before."""
        try:
            self.lock.release()
        except LockError:
            return False
        return True


serve(Client(sys.argv[1]))
