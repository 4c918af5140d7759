"""redlock-py: one node after the other, by redis-py."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from typing import Any

from .crowd import Crowd
from .serve import Blocking, serve, settings


def main() -> None:
    """Serve both styles."""
    told = settings()
    if not told.get("hiredis", True):
        sys.modules["hiredis"] = None  # type: ignore[assignment] # as if it were not installed
    import redis
    from redlock import Redlock

    # It has no timeout of its own: with one node hung it would wait for ever.
    timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), told["timeout"])
    locks = Redlock([redis.Redis.from_url(url, **timeouts) for url in told["urls"]])
    ttl = int(told["ttl"] * 1000)
    threads = Blocking(lambda name: locks.lock(name, ttl) or None, locks.unlock)

    def wait(name: str, seconds: float) -> Any:
        until = time.monotonic() + seconds  # it gives up after three tries of its own
        while time.monotonic() < until:
            if lock := locks.lock(name, ttl):
                return lock
        return None

    serve(
        f"{version('redlock-py')}, redis-py {version('redis')}",
        {"threads": threads, "crowd": Crowd(wait, locks.unlock)},
    )


if __name__ == "__main__":
    main()
