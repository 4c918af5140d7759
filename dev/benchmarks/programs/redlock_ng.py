"""redlock-ng: one node after the other, or all at once by asyncio, which cannot extend."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from redlock import AsyncRedlock, Redlock

from .conversation import serve, settings

ONCE = {"retry_count": 0, "retry_delay_min": 0, "retry_delay_max": 0}


class Client:
    """One attempt."""

    def __init__(self, urls: list[str]) -> None:
        self._locks = Redlock(urls, **ONCE)

    def acquire(self, key: str, ttl: float) -> Any:
        return self._locks.acquire(key, int(ttl * 1000))

    def extend(self, lock: Any, ttl: float) -> bool:
        return bool(self._locks.extend(lock, int(ttl * 1000)))

    def release(self, lock: Any) -> None:
        self._locks.release(lock)  # it never tells whether there was something to release


class AsyncClient:
    """The same with coroutines."""

    def __init__(self, urls: list[str]) -> None:
        self._locks = AsyncRedlock(urls, **ONCE)

    async def acquire(self, key: str, ttl: float) -> Any:
        return await self._locks.acquire(key, int(ttl * 1000))

    async def release(self, lock: Any) -> None:
        await self._locks.release(lock)


told = settings()
timeout = told.get("timeout")
query = f"?socket_timeout={timeout}&socket_connect_timeout={timeout}" if timeout else ""
urls = [url + query for url in told["urls"]]
serve(
    f"{version('redlock-ng')}, redis-py {version('redis')}",
    {"threads": Client(urls), "asyncio": AsyncClient(urls)},
)
