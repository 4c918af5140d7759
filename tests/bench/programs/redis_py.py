"""redis-py's own Lock, on one node: who waits asks every 0.1 s."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from redis import Redis

from .crowd import Crowd
from .serve import serve, settings


def main() -> None:
    """Serve the one style there is."""
    told = settings()
    client = Redis.from_url(told["urls"][0])

    def acquire(name: str, seconds: float) -> Any:
        lock = client.lock(name, timeout=told["ttl"], blocking_timeout=seconds)
        return lock if lock.acquire() else None

    serve(version("redis"), {"crowd": Crowd(acquire, lambda lock: lock.release())})


if __name__ == "__main__":
    main()
