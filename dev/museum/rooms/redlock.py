"""Redlock as its page on redis.io describes it, and as it is told when one sentence is missed."""

from __future__ import annotations

import random
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

import redis

from dev.museum import faults
from dev.museum.cell import LOST, TWO, Hold, Lock, Setup, clients_of, fault

if TYPE_CHECKING:
    from dev.museum.stage import Stage

# -- the recipes -----------------------------------------------------------------------------------

DELETE: Final = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""
DRIFT = 0.01  # of the ttl: by so much clocks may differ in speed
PAUSE = 0.01, 0.05  # seconds before the next attempt, by chance


class Redlock:
    """One value for each attempt, all servers, a majority, and the time that this has taken."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.servers = setup, clients_of(setup)

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
                server.eval(DELETE, 1, self.setup.name, self.value)

    def vote(self, server: redis.Redis) -> bool | None:
        """Set the key on one server, if there is none; None: it has not answered."""
        px = self.setup.milliseconds
        try:
            return bool(server.set(self.setup.name, self.value, nx=True, px=px))
        except redis.RedisError:
            return None

    # The sentences that are missed.

    def new_value(self) -> str:
        """Return what nobody has used before."""
        return secrets.token_hex(20)

    def votes(self) -> Iterator[bool | None]:
        """Ask all servers."""
        return map(self.vote, self.servers)

    def majority(self, votes: Sequence[bool | None]) -> int:  # noqa: ARG002 - one looks at them
        """Return how many must agree."""
        return len(self.servers) // 2 + 1

    def end(self, began: float) -> float:
        """Return when the lock ends: counted from before the first question."""
        return began + self.setup.ttl * (1 - DRIFT) - 0.002


class CountedFromTheEnd(Redlock):
    """The lock ends a ttl after the votes are in."""

    def end(self, began: float) -> float:  # noqa: ARG002 - this is the mistake
        """Return when the lock ends; what the votes took is forgotten."""
        return super().end(time.monotonic())


class OneValue(Redlock):
    """A client has one value for all its attempts, such as its host and process."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.name = super().new_value()

    def new_value(self) -> str:
        return self.name


class MajorityOfAnswers(Redlock):
    """Servers that do not answer do not count."""

    def majority(self, votes: Sequence[bool | None]) -> int:
        """Return the majority of those that have answered, and one at the least."""
        return sum(vote is not None for vote in votes) // 2 + 1


class StopsAtTheMajority(Redlock):
    """The last servers are not asked when it is clear that the lock is had."""

    def votes(self) -> Iterator[bool | None]:
        agreed = 0
        for vote in super().votes():
            yield vote
            agreed += vote is True
            if agreed == self.majority([]):
                return


class FencedOnWrites(Redlock):
    """What the lock guards refuses a write whose fence is lower than that of the last write."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.store = ComparingRow(setup.database)

    def attempt(self) -> Hold | None:
        """Take the lock, and the next fence."""
        hold = super().attempt()
        return hold and hold._replace(fence=self.store.new_fence())


class ComparingRow:
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
        with closing(self.open()) as database:
            self.fence = database.execute("INSERT INTO fences DEFAULT VALUES").lastrowid or 0
        return self.fence

    def read(self) -> int:
        """Return the number; the fence is not looked at."""
        with closing(self.open()) as database:
            return int(database.execute("SELECT value FROM counter").fetchone()[0])

    def write(self, value: int) -> bool:
        """Write it, unless a later holder has written."""
        sql = "UPDATE counter SET value = ?, fence = ? WHERE fence <= ?"
        with closing(self.open()) as database:
            return database.execute(sql, (value, self.fence, self.fence)).rowcount == 1


# -- a fault ---------------------------------------------------------------------------------------


@fault(ttl=2)
def restarted_late(stage: Stage) -> None:
    """A server of the majority restarts empty, a ttl later.

    As the page of Redlock asks.
    """
    last = len(stage.nodes) // 2
    first = stage.client("A", without=range(last + 1, len(stage.nodes)))
    second = stage.client("B", without=range(last))
    assert first.take(faults.SOON)
    first.use()
    stage.kill_node(last)
    time.sleep(stage.ttl)
    stage.restart_empty(last)
    assert second.take_a_turn(faults.SOON)


# -- what is counted -------------------------------------------------------------------------------

END = Lock("redlock-end", "Redlock, counted from the end", CountedFromTheEnd, servers=3)
ONE_VALUE = Lock("redlock-one-value", "Redlock, one value for all attempts", OneValue, servers=3)
NO_GUARD = Lock("redlock-no-guard", "Redlock, no restart guard", Redlock, servers=3)
ANSWERS = Lock("redlock-answers", "Redlock, majority of the answers", MajorityOfAnswers, servers=3)
STOPS = Lock("redlock-stops", "Redlock, stops at the majority", StopsAtTheMajority, servers=3)
FENCE = Lock("redlock-fence", "Redlock, fence compared on writes", FencedOnWrites, servers=3)
PLAIN = Lock("redlock", "Redlock, by its page", Redlock, servers=3)

BEGINS_ANEW = "The ttl has run on the servers while the client was asking, and it begins anew."
EARLIER = "The release of an earlier attempt has the value of the later one, and deletes it."
FORGOTTEN = "A server that has forgotten the lock makes a second majority."
TWO_MAJORITIES = "One of one is a majority, and two of two are another one."
ON_TWO = "The lock was written on two servers, so it does not survive that one forgets it."
TOO_LATE = "The row knows of the newer holder only when that writes, which is too late."
PROMOTED = "A promoted replica that has not heard of the lock makes a second majority."
JUMPS = "The key of a server whose clock jumps is gone before its time."
CELLS = [
    *END.holds(faults.turns, faults.crowd),
    END.breaks(faults.stopped_acquiring, TWO, LOST, why=BEGINS_ANEW),
    *ONE_VALUE.holds(faults.turns, faults.crowd),
    ONE_VALUE.breaks(faults.release_on_its_way, TWO, LOST, why=EARLIER),
    *NO_GUARD.holds(faults.turns, faults.crowd),
    NO_GUARD.breaks(faults.restarted, TWO, LOST, why=FORGOTTEN),
    *ANSWERS.holds(faults.turns, faults.crowd),
    ANSWERS.breaks(faults.split, TWO, LOST, why=TWO_MAJORITIES),
    *STOPS.holds(faults.turns, faults.crowd),
    STOPS.breaks(faults.restarted_one, TWO, LOST, why=ON_TWO),
    *FENCE.holds(faults.turns, faults.crowd, faults.paused),
    FENCE.breaks(faults.writes_between, LOST, why=TOO_LATE),
    *PLAIN.holds(
        *faults.USUAL, faults.stopped_acquiring, faults.release_on_its_way, faults.minority
    ),
    *PLAIN.holds(
        faults.restarted_one, restarted_late, faults.split, faults.lost_reply, faults.clock_ahead
    ),
    PLAIN.breaks(faults.paused, LOST, why=faults.LATE_WRITE),
    PLAIN.breaks(faults.writes_between, LOST, why=faults.LATE_WRITE),
    PLAIN.breaks(faults.restarted, TWO, LOST, why=FORGOTTEN),
    PLAIN.breaks(faults.failover_lagging, TWO, LOST, why=PROMOTED),
    PLAIN.breaks(faults.server_clock, TWO, LOST, why=JUMPS),
    PLAIN.breaks(faults.server_clock_seen, TWO, LOST, why=JUMPS),
]
