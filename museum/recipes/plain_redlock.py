"""Redlock as its page on redis.io describes it, and as it is told when one sentence is missed."""

from __future__ import annotations

import random
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

import redis

from .interface import Hold, Place
from .polling import client_of

DELETE = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""
DRIFT = 0.01  # of the ttl: by so much clocks may differ in speed
PAUSE = 0.01, 0.05  # seconds before the next attempt, by chance


class Redlock:
    """One value for each attempt, all servers, a majority, and the time that this has taken."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.servers = [client_of(place, index) for index in range(len(place.urls))]
        self.value = ""

    def acquire(self, wait: float) -> Hold | None:
        """Make attempts until one works, or the wait is over."""
        end = time.monotonic() + wait
        while (hold := self.attempt()) is None and time.monotonic() < end:
            time.sleep(random.uniform(*PAUSE))  # noqa: S311 - so that clients get out of step
        return hold

    def attempt(self) -> Hold | None:
        """Ask the servers; what has failed is undone on all of them."""
        self.value = self.new_value()
        began = time.monotonic()
        votes = list(self.votes())
        until = self.end(began)
        if votes.count(True) >= self.majority(votes) and time.monotonic() < until:
            return Hold(until)
        self.release()
        return None

    def release(self) -> None:
        """Delete the key on each server, where it has our value."""
        for server in self.servers:
            with suppress(redis.RedisError):
                server.eval(DELETE, 1, self.place.name, self.value)

    # -- the sentences that are missed --------------------------------------------------------

    def new_value(self) -> str:
        """Return what nobody has used before."""
        return secrets.token_hex(20)

    def votes(self) -> Iterator[bool | None]:
        """Ask all servers; None: one has not answered."""
        return map(self.vote, self.servers)

    def majority(self, votes: Sequence[bool | None]) -> int:  # noqa: ARG002 - one looks at them
        """Return how many must agree."""
        return len(self.servers) // 2 + 1

    def end(self, began: float) -> float:
        """Return when the lock ends: counted from before the first question."""
        return began + self.place.ttl * (1 - DRIFT) - 0.002

    def vote(self, server: redis.Redis) -> bool | None:
        """Set the key on one server, if there is none."""
        ttl = round(self.place.ttl * 1000)
        try:
            return bool(server.set(self.place.name, self.value, nx=True, px=ttl))
        except redis.RedisError:
            return None


class CountedFromTheEnd(Redlock):
    """The lock ends a ttl after the votes are in."""

    def end(self, began: float) -> float:  # noqa: ARG002 - this is the mistake
        """Return when the lock ends; what the votes took is forgotten."""
        return super().end(time.monotonic())


class OneValue(Redlock):
    """A client has one value for all its attempts, such as its host and process."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.name = super().new_value()

    def new_value(self) -> str:
        """Return the client's."""
        return self.name


class MajorityOfAnswers(Redlock):
    """Servers that do not answer do not count."""

    def majority(self, votes: Sequence[bool | None]) -> int:
        """Return the majority of those that have answered, and one at the least."""
        answered = sum(vote is not None for vote in votes)
        return answered // 2 + 1


class StopsAtTheMajority(Redlock):
    """The last servers are not asked when it is clear that the lock is had."""

    def votes(self) -> Iterator[bool | None]:
        """Ask until a majority has agreed."""
        agreed = 0
        for vote in super().votes():
            yield vote
            agreed += vote is True
            if agreed == self.majority([]):
                return


class FencedOnWrites(Redlock):
    """What the lock guards refuses a write whose fence is lower than that of the last write."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.store = ComparingStore(f"{place.store}.sqlite3")

    def attempt(self) -> Hold | None:
        """Take the lock, and the next fence."""
        hold = super().attempt()
        return hold and hold._replace(fence=self.store.new_fence())


class ComparingStore:
    """A row with a number and a fence; the fences are a sequence of the same database."""

    def __init__(self, path: str) -> None:
        self.path, self.fence = path, 0
        with closing(self.open()) as database:
            database.execute("CREATE TABLE IF NOT EXISTS fences (id INTEGER PRIMARY KEY)")
            database.execute("CREATE TABLE IF NOT EXISTS counter (value INTEGER, fence INTEGER)")
            database.execute(
                "INSERT INTO counter SELECT 0, 0 WHERE NOT EXISTS (SELECT * FROM counter)"
            )

    def open(self) -> sqlite3.Connection:
        """Return a connection; each statement is a transaction."""
        return sqlite3.connect(self.path, timeout=30, isolation_level=None)

    def new_fence(self) -> int:
        """Take the next one."""
        with closing(self.open()) as database:
            self.fence = database.execute("INSERT INTO fences DEFAULT VALUES").lastrowid or 0
        return self.fence

    def read(self) -> int:
        """Return the number; the fence is not looked at."""
        with closing(self.open()) as database:
            return int(database.execute("SELECT value FROM counter").fetchone()[0])

    def write(self, value: int) -> bool:
        """Write it, unless a later holder has written."""
        with closing(self.open()) as database:
            done = database.execute(
                "UPDATE counter SET value = ?, fence = ? WHERE fence <= ?",
                (value, self.fence, self.fence),
            )
            return done.rowcount == 1
