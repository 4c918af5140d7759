"""pottery's AIORedlock; arguments: the nodes' URLs. It writes `redlock:` before each key."""

from __future__ import annotations

import sys
from typing import Any

from pottery import AIORedlock, ExtendUnlockedLock, ReleaseUnlockedLock
from redis.asyncio import Redis

from .conversation import serve_asyncio


class Client:
    """One attempt."""

    def __init__(self, urls: list[str]) -> None:
        self.masters = {Redis.from_url(url) for url in urls}
        self.lock: Any = None

    async def acquire(self, key: str, ttl: int) -> bool:
        """Its ttl is in seconds, and belongs to the lock."""
        name = key.removeprefix("redlock:")
        lock = AIORedlock(key=name, masters=self.masters, auto_release_time=ttl / 1000)
        had = await lock.acquire(blocking=False)
        self.lock = lock if had else self.lock
        return bool(had)

    async def extend(self, ttl: int) -> bool:
        """From now on, whatever was left."""
        self.lock.auto_release_time = ttl / 1000
        try:
            await self.lock.extend()
        except ExtendUnlockedLock:
            return False
        return True

    async def release(self) -> bool:
        """It raises where a majority does not have the lock."""
        try:
            await self.lock.release()
        except ReleaseUnlockedLock:
            return False
        return True


serve_asyncio(Client(sys.argv[1:]))
