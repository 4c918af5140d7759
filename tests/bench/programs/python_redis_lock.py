"""python-redis-lock, on one node: who waits is woken through a list (BLPOP)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from redis import Redis
from redis_lock import Lock

from .crowd import Crowd
from .serve import serve, settings


def main() -> None:
    """Serve the one style there is."""
    told = settings()
    client = Redis.from_url(told["urls"][0])

    def acquire(name: str, seconds: float) -> Any:
        lock = Lock(client, name, expire=int(told["ttl"]))
        return lock if lock.acquire(timeout=int(seconds)) else None

    serve(
        f"{version('python-redis-lock')}, redis-py {version('redis')}",
        {"crowd": Crowd(acquire, lambda lock: lock.release())},
    )


if __name__ == "__main__":
    main()
