"""pottery: a thread for each node and question, or all nodes at once by asyncio; by redis-py.

It writes `redlock:` before each key. The ttl belongs to its lock.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Any

import redis
import redis.asyncio
from pottery import AIORedlock, ExtendUnlockedLock, Redlock, ReleaseUnlockedLock

from .conversation import serve, settings

PREFIX = "redlock:"


class Client:
    """One attempt."""

    def __init__(self, urls: list[str], timeouts: dict[str, Any]) -> None:
        self._masters = {redis.Redis.from_url(url, **timeouts) for url in urls}

    def _lock(self, key: str, ttl: float) -> Any:
        name = key.removeprefix(PREFIX)
        return Redlock(key=name, masters=self._masters, auto_release_time=ttl)

    def acquire(self, key: str, ttl: float) -> Any:
        lock = self._lock(key, ttl)
        return lock if lock.acquire(blocking=False) else None

    def wait(self, key: str, ttl: float, seconds: float) -> Any:
        lock = self._lock(key, ttl)
        return lock if lock.acquire(timeout=seconds) else None

    def extend(self, lock: Any, ttl: float) -> bool:
        lock.auto_release_time = ttl
        try:
            lock.extend()
        except ExtendUnlockedLock:
            return False
        return True

    def release(self, lock: Any) -> bool:
        try:
            lock.release()
        except ReleaseUnlockedLock:
            return False
        return True


class AsyncClient:
    """The same with coroutines."""

    def __init__(self, urls: list[str], timeouts: dict[str, Any]) -> None:
        self._masters = {redis.asyncio.Redis.from_url(url, **timeouts) for url in urls}

    async def acquire(self, key: str, ttl: float) -> Any:
        name = key.removeprefix(PREFIX)
        lock = AIORedlock(key=name, masters=self._masters, auto_release_time=ttl)
        return lock if await lock.acquire(blocking=False) else None

    async def extend(self, lock: Any, ttl: float) -> bool:
        lock.auto_release_time = ttl
        try:
            await lock.extend()
        except ExtendUnlockedLock:
            return False
        return True

    async def release(self, lock: Any) -> bool:
        try:
            await lock.release()
        except ReleaseUnlockedLock:
            return False
        return True


told = settings()
logging.disable()  # it logs every error with a trace
timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), told.get("timeout"))
serve(
    f"{version('pottery')}, redis-py {version('redis')}",
    {"threads": Client(told["urls"], timeouts), "asyncio": AsyncClient(told["urls"], timeouts)},
)
