"""k permits in a list: who takes one out is in, and puts it back. A permit knows no holder."""

from __future__ import annotations

import time
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from redis import Redis

from dev.museum import faults
from dev.museum.cell import MANY, STUCK, Hold, Lock, Setup, fault, poll

if TYPE_CHECKING:
    from dev.museum.stage import Stage

# -- the recipes -----------------------------------------------------------------------------------


class Permits:
    """BLPOP to take a permit, RPUSH to give it back."""

    def __init__(self, setup: Setup) -> None:
        self.redis = Redis.from_url(setup.urls[0], socket_timeout=None)  # its BLPOP may wait
        self.setup, self.key = setup, setup.name
        if self.redis.set(f"{self.key}:made", 1, nx=True):
            self.redis.rpush(self.key, *range(setup.limit))

    def acquire(self, wait: float) -> Hold | None:
        """Wait for a permit in the queue of the server; 0 does not wait."""
        taken: Any = self.redis.blpop([self.key], wait) if wait else self.redis.lpop(self.key)
        self.permit = taken[1] if wait and taken else taken
        return None if taken is None else Hold()

    def release(self) -> None:
        self.redis.rpush(self.key, self.permit)


class PermitsRecovered(Permits):
    """A hash says since when a permit is out; who asks puts those back whose time is over."""

    def acquire(self, wait: float) -> Hold | None:
        return poll(self.attempt, wait)

    def attempt(self) -> bool:
        """Recover, take a permit, and write down when."""
        self.recover()
        is_in = super().acquire(0) is not None
        if is_in:
            self.redis.hset(f"{self.key}:taken", self.permit, time.time())
        return is_in

    def recover(self) -> None:
        """Put back what a client that died has left: of several that see it one does it."""
        for permit, since in self.redis.hgetall(f"{self.key}:taken").items():
            is_over = float(since) + self.setup.ttl < time.time()
            if is_over and self.redis.hdel(f"{self.key}:taken", permit):
                self.redis.rpush(self.key, permit)

    def release(self) -> None:
        self.redis.hdel(f"{self.key}:taken", self.permit)
        super().release()


# -- a fault ---------------------------------------------------------------------------------------


@fault(ttl=faults.LONG, patience=1)
def given_back_late(stage: Stage) -> None:
    """A client is stopped before its release is sent, and goes on when its time is over.

    As many as may have the lock then. When the release has come, one more asks.
    """
    late, *others, more = stage.clients(ascii_uppercase[: stage.limit + 2])
    assert late.take(faults.SOON)
    late.halt_at("release", "release")
    time.sleep(stage.ttl)
    for client in others:
        assert client.take(faults.SOON)
    late.resume()
    late.answer()
    if more.take():
        more.release()
    for client in others:
        client.release()


# -- what is counted -------------------------------------------------------------------------------

PERMITS = Lock("permits", "Permits in a list", Permits, limit=2)
RECOVERED = Lock("permits-recovered", "Permits in a list, recovered", PermitsRecovered, limit=2)
GONE = "The permit was in the process that died, and nobody knows that it is gone."
TWICE = (
    "The permit was recovered, and is given back as well: nothing in it says whose it is. The list"
    " has one more than it was made with, for ever."
)
CELLS = [
    *PERMITS.holds(faults.full, faults.crowd),
    PERMITS.breaks(faults.killed_of_several, STUCK, why=GONE),
    *RECOVERED.holds(faults.full, faults.killed_of_several),
    RECOVERED.breaks(given_back_late, MANY, why=TWICE),
]
