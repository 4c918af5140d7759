"""redis-py's own Lock, on one node: it waits by asking every 0.1 s."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from redis import Redis

from .crowd import Crowd
from .serve import Blocking, serve, settings


def main() -> None:
    """Serve both styles."""
    told = settings()
    client = Redis.from_url(told["urls"][0])

    def acquire(name: str) -> Any:
        lock = client.lock(name, timeout=told["ttl"], blocking=False)
        return lock if lock.acquire() else None

    def wait(name: str, seconds: float) -> Any:
        lock = client.lock(name, timeout=told["ttl"], blocking_timeout=seconds)
        return lock if lock.acquire() else None

    serve(
        version("redis"),
        {
            "threads": Blocking(acquire, lambda lock: lock.release()),
            "crowd": Crowd(wait, lambda lock: lock.release()),
        },
    )


if __name__ == "__main__":
    main()
