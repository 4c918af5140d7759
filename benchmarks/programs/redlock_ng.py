"""redlock-ng: one node after the other, or all at once by asyncio; both by redis-py."""

from __future__ import annotations

from importlib.metadata import version

from redlock import AsyncRedlock, Redlock, RedlockConfig

from .serve import Asyncio, Blocking, serve, settings


def main() -> None:
    """Serve both styles."""
    told = settings()
    config = RedlockConfig(
        masters=told["urls"],
        socket_timeout=told["timeout"],
        socket_connect_timeout=told["timeout"],
    )
    locks, alocks, ttl = Redlock(config), AsyncRedlock(config), int(told["ttl"] * 1000)
    serve(
        f"{version('redlock-ng')}, redis-py {version('redis')}",
        {
            "threads": Blocking(lambda name: locks.acquire(name, ttl), locks.release),
            "asyncio": Asyncio(lambda name: alocks.acquire(name, ttl), alocks.release),
        },
    )


if __name__ == "__main__":
    main()
