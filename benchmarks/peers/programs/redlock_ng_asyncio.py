"""redlock-ng under asyncio; arguments: the nodes' URLs. It cannot extend."""

from __future__ import annotations

import sys
from typing import Any

from redlock import AsyncRedlock

from .conversation import serve_asyncio


class Client:
    """One attempt."""

    def __init__(self, urls: list[str]) -> None:
        self.redlock = AsyncRedlock(urls, retry_count=0, retry_delay_min=0, retry_delay_max=0)
        self.lock: Any = None

    async def acquire(self, key: str, ttl: int) -> bool:
        """It answers None where it did not get the lock."""
        lock = await self.redlock.acquire(key, ttl)
        self.lock = lock or self.lock
        return lock is not None

    async def release(self) -> bool:
        """It never tells whether there was something to release."""
        await self.redlock.release(self.lock)
        return True


serve_asyncio(Client(sys.argv[1:]))
