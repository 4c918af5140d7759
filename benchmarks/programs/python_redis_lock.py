"""python-redis-lock, on one node: who waits is woken through a list (BLPOP)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from redis import Redis
from redis_lock import Lock

from .crowd import Crowd
from .serve import Blocking, serve, settings


def main() -> None:
    """Serve both styles."""
    told = settings()
    client = Redis.from_url(told["urls"][0])

    def acquire(name: str) -> Any:
        lock = Lock(client, name, expire=int(told["ttl"]))
        return lock if lock.acquire(blocking=False) else None

    def wait(name: str, seconds: float) -> Any:
        lock = Lock(client, name, expire=int(told["ttl"]))
        return lock if lock.acquire(timeout=int(seconds)) else None

    serve(
        f"{version('python-redis-lock')}, redis-py {version('redis')}",
        {
            "threads": Blocking(acquire, lambda lock: lock.release()),
            "crowd": Crowd(wait, lambda lock: lock.release()),
        },
    )


if __name__ == "__main__":
    main()
