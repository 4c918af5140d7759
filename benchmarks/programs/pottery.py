"""pottery: a thread for each node and question, or all nodes at once by asyncio; by redis-py."""

from __future__ import annotations

import logging
from importlib.metadata import version

import redis
import redis.asyncio
from pottery import AIORedlock, Redlock

from .crowd import Crowd
from .serve import Asyncio, Blocking, serve, settings


def main() -> None:
    """Serve all styles."""
    told = settings()
    logging.disable()  # it logs every error with a trace
    timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), told["timeout"])
    masters = {redis.Redis.from_url(url, **timeouts) for url in told["urls"]}
    amasters = {redis.asyncio.Redis.from_url(url, **timeouts) for url in told["urls"]}

    def acquire(name: str) -> Redlock | None:
        lock = Redlock(key=name, masters=masters, auto_release_time=told["ttl"])
        return lock if lock.acquire(blocking=False) else None

    async def aacquire(name: str) -> AIORedlock | None:
        lock = AIORedlock(key=name, masters=amasters, auto_release_time=told["ttl"])
        return lock if await lock.acquire(blocking=False) else None

    def wait(name: str, seconds: float) -> Redlock | None:
        lock = Redlock(key=name, masters=masters, auto_release_time=told["ttl"])
        return lock if lock.acquire(timeout=seconds) else None

    serve(
        f"{version('pottery')}, redis-py {version('redis')}",
        {
            "threads": Blocking(acquire, lambda lock: lock.release()),
            "asyncio": Asyncio(aacquire, lambda lock: lock.release()),
            "crowd": Crowd(wait, lambda lock: lock.release()),
        },
    )


if __name__ == "__main__":
    main()
