"""redlock-py; arguments: the nodes' URLs. It cannot extend."""

from __future__ import annotations

import sys
from typing import Any

from redlock import Redlock

from .conversation import serve


class Client:
    """One attempt, and no pause worth mentioning after it (0 would mean its defaults)."""

    def __init__(self, urls: list[str]) -> None:
        self.redlock = Redlock(urls, retry_count=1, retry_delay=0.000_001)
        self.lock: Any = None

    def acquire(self, key: str, ttl: int) -> bool:
        """It answers False where it did not get the lock."""
        lock = self.redlock.lock(key, ttl)
        self.lock = lock or self.lock
        return bool(lock)

    def release(self) -> bool:
        """It never tells whether there was something to release."""
        self.redlock.unlock(self.lock)
        return True


serve(Client(sys.argv[1:]))
