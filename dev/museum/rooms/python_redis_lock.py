"""python-redis-lock 4.0.1, unchanged: a lock on one server, whose waiters wait for a signal."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from redis import Redis

from dev.museum import faults
from dev.museum.cell import LOST, STUCK, TWO, Hold, Lock, Setup, fault

if TYPE_CHECKING:
    from dev.museum.stage import Stage


class PythonRedisLock:
    """It waits for a signal (BLPOP). It does not tell until when it has the lock."""

    def __init__(self, setup: Setup) -> None:
        import redis_lock

        # Its BLPOP may wait for the ttl, and redis-py 8 by default for 5 s.
        self.redis = Redis.from_url(setup.urls[0], socket_timeout=None)
        self.seconds = max(1, int(setup.ttl))  # it takes whole ones
        self.lock = redis_lock.Lock(self.redis, setup.name, expire=self.seconds)

    def acquire(self, wait: float) -> Hold | None:
        """It waits for whole seconds, and for no longer than its ttl: ask again."""
        end = time.monotonic() + wait
        while (left := int(end - time.monotonic())) > 0:
            if self.lock.acquire(timeout=min(left, self.seconds)):
                return Hold()
        return Hold() if self.lock.acquire(blocking=False) else None

    def release(self) -> None:
        """It raises where the lock is not its own."""
        from redis_lock import NotAcquired

        with contextlib.suppress(NotAcquired):
            self.lock.release()

    def empty(self) -> None:
        """Delete all locks, as an application may do that starts after a crash."""
        from redis_lock import reset_all

        reset_all(self.redis)


# -- a fault ---------------------------------------------------------------------------------------


@fault(ttl=faults.LONG, patience=0.5)
def woken(stage: Stage) -> None:
    """The first of two that wait is stopped, and the release wakes it."""
    first, woken, second = stage.clients("ABC")
    assert first.take(faults.SOON)
    server = stage.server()
    woken.tell("acquire", wait=faults.SOON)
    stage.wait_for(lambda: server.info("clients")["blocked_clients"] == 1, "a waiter")
    second.tell("acquire", wait=faults.SOON)
    stage.wait_for(lambda: server.info("clients")["blocked_clients"] > 1, "a second waiter")
    woken.stop()
    first.release()
    if second.has_it():
        second.release()
    woken.kill()


# -- what is counted -------------------------------------------------------------------------------

LOCK = Lock(
    "python-redis-lock", "python-redis-lock 4.0.1", PythonRedisLock, peer="python-redis-lock"
)
ONE_WAITER = (
    "A release wakes one waiter. If that one is stopped, the others sleep on until their BLPOP"
    " ends, up to a ttl, though the lock is free."
)
RESET_ALL = (
    "`reset_all`, which it offers for the start of an application, deletes the locks of those that"
    " live, too."
)
CELLS = [
    *LOCK.holds(faults.turns, faults.crowd),
    LOCK.breaks(faults.paused, TWO, LOST, why=faults.NO_END),
    LOCK.breaks(woken, STUCK, why=ONE_WAITER),
    LOCK.breaks(faults.emptied, TWO, LOST, why=RESET_ALL),
]
