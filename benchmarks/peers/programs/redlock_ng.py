"""redlock-ng, blocking; arguments: the nodes' URLs."""

from __future__ import annotations

import sys
from typing import Any

from redlock import Redlock

from .conversation import serve


class Client:
    """One attempt."""

    def __init__(self, urls: list[str]) -> None:
        self.redlock = Redlock(urls, retry_count=0, retry_delay_min=0, retry_delay_max=0)
        self.lock: Any = None

    def acquire(self, key: str, ttl: int) -> bool:
        """It answers None where it did not get the lock."""
        lock = self.redlock.acquire(key, ttl)
        self.lock = lock or self.lock
        return lock is not None

    def extend(self, ttl: int) -> bool:
        """From now on, whatever was left."""
        return bool(self.redlock.extend(self.lock, ttl))

    def release(self) -> bool:
        """It never tells whether there was something to release."""
        self.redlock.release(self.lock)
        return True


serve(Client(sys.argv[1:]))
