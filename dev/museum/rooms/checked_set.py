"""A sorted set with an entry for each holder; its score is the time at which the holder came."""

from __future__ import annotations

import secrets
import time
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final

from dev.museum import faults
from dev.museum.cell import MANY, Hold, Lock, Setup, client_of, fault, poll

if TYPE_CHECKING:
    from dev.museum.stage import Stage

CHECKED: Final = "about to take a slot"

# -- the recipes -----------------------------------------------------------------------------------


class CheckedSet:
    """ZREMRANGEBYSCORE for those whose time is over, ZCARD for the limit, ZADD to come in."""

    def __init__(self, setup: Setup) -> None:
        self.redis, self.setup, self.key = client_of(setup), setup, setup.name

    def acquire(self, wait: float) -> Hold | None:
        self.value = secrets.token_hex(16)
        return poll(self.attempt, wait)

    def attempt(self) -> bool:
        """Check the limit, and then come in: two commands."""
        now = time.time()
        self.redis.zremrangebyscore(self.key, "-inf", now - self.setup.ttl)
        if self.redis.zcard(self.key) >= self.setup.limit:
            return False
        self.setup.point(CHECKED)
        self.redis.zadd(self.key, {self.value: now})
        return True

    def release(self) -> None:
        self.redis.zrem(self.key, self.value)


ENTER: Final = """
redis.call('zremrangebyscore', KEYS[1], '-inf', ARGV[2] - ARGV[3])
if redis.call('zcard', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
return redis.call('zadd', KEYS[1], ARGV[2], ARGV[4])
"""


class ScriptedSet(CheckedSet):
    """The same in one script. The time in it is the client's."""

    def attempt(self) -> bool:
        self.setup.point(CHECKED)
        words = self.setup.limit, time.time(), self.setup.ttl, self.value
        return bool(self.redis.eval(ENTER, 1, self.key, *map(str, words)))


# -- the faults ------------------------------------------------------------------------------------


@fault(ttl=faults.LONG, patience=1)
def both_checked(stage: Stage) -> None:
    """One slot is free, and two pass the check before one of them takes it."""
    *inside, first, second = stage.clients(ascii_uppercase[: stage.limit + 1])
    for client in inside:
        assert client.take(faults.SOON)
    for client in (first, second):
        client.halt_at(CHECKED, "acquire", wait=faults.SHORTLY)
    for client in (first, second):
        client.resume()
    inside += [client for client in (first, second) if client.has_it()]
    assert len(inside) >= stage.limit
    for client in inside:
        client.release()


@fault(ttl=faults.LONG, patience=1)
def clock_jumps(stage: Stage) -> None:
    """No slot is free, and the clock of one more jumps 30 s ahead before it asks."""
    inside = stage.clients(ascii_uppercase[: stage.limit])
    more = stage.client(ascii_uppercase[stage.limit], ahead=0)
    for client in inside:
        assert client.take(faults.SOON)
    stage.set_clock_ahead(more, faults.AHEAD)
    if more.take(faults.SHORTLY):
        more.release()
    for client in inside:
        client.release()


# -- what is counted -------------------------------------------------------------------------------

SET = Lock("checked-set", "ZCARD, then ZADD", CheckedSet, limit=2)
SCRIPT = Lock("checked-set-script", "ZCARD and ZADD in a script", ScriptedSet, limit=2)
TWO_COMMANDS = "Between the check and the ZADD of one client the other one checks, too."
ITS_CLOCK = "By the clock of the one that asks the time of all others is over: it removes them."
CELLS = [
    *SET.holds(faults.full, faults.killed_of_several),
    SET.breaks(both_checked, MANY, why=TWO_COMMANDS),
    SET.breaks(clock_jumps, MANY, why=ITS_CLOCK),
    *SCRIPT.holds(faults.full, both_checked),
    SCRIPT.breaks(clock_jumps, MANY, why=ITS_CLOCK),
]
