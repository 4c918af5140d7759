"""redlock-py: one node after the other, by redis-py. It cannot extend."""

from __future__ import annotations

import logging
import sys
import time
from importlib.metadata import version
from typing import Any

from .conversation import serve, settings

told = settings()
logging.disable()  # it logs every error with a trace
if not told.get("hiredis", True):
    sys.modules["hiredis"] = None  # type: ignore[assignment] # as if it were not installed
import redis  # noqa: E402 - now
from redlock import Redlock  # noqa: E402


class Client:
    """One attempt, and no pause worth mentioning after it (0 would mean its defaults)."""

    def __init__(self) -> None:
        # It has no timeout of its own: with one node hung it would wait for ever.
        timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), told.get("timeout"))
        nodes = [redis.Redis.from_url(url, **timeouts) for url in told["urls"]]
        self._locks = Redlock(nodes, retry_count=1, retry_delay=0.000_001)

    def acquire(self, key: str, ttl: float) -> Any:
        return self._locks.lock(key, int(ttl * 1000)) or None

    def wait(self, key: str, ttl: float, seconds: float) -> Any:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if lock := self.acquire(key, ttl):
                return lock
            time.sleep(0.2)  # its default between two attempts
        return None

    def release(self, lock: Any) -> None:
        self._locks.unlock(lock)


serve(f"{version('redlock-py')}, redis-py {version('redis')}", {"threads": Client()})
