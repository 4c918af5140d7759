"""Redlock as its page describes it, and told wrongly: each time one sentence is missed."""

from __future__ import annotations

from museum.checker import Break
from museum.exhibits import Exhibit
from museum.runs import asking, clocks, holders, late, majorities, network, servers

from .cell import Cell, breaks, holds


def _exhibit(key: str, title: str, recipe: str) -> Exhibit:
    return Exhibit(key, title, f"museum.recipes.plain_redlock:{recipe}", servers=3)


FROM_THE_END = _exhibit("redlock-end", "Redlock, counted from the end", "CountedFromTheEnd")
ONE_VALUE = _exhibit("redlock-one-value", "Redlock, one value for all attempts", "OneValue")
NO_GUARD = _exhibit("redlock-no-guard", "Redlock, no restart guard", "Redlock")
ANSWERS = _exhibit("redlock-answers", "Redlock, majority of the answers", "MajorityOfAnswers")
STOPS = _exhibit("redlock-stops", "Redlock, stops at the majority", "StopsAtTheMajority")
ON_WRITES = _exhibit("redlock-fence", "Redlock, fence compared on writes", "FencedOnWrites")
PLAIN = _exhibit("redlock", "Redlock, by its page", "Redlock")

LATE_WRITE = "No lock stops a write that is already on its way: the row must refuse it."
JUMPS = "The key of a server whose clock jumps is gone before its time."
FORGOTTEN = "A server that has forgotten the lock makes a second majority."

EXHIBITS = [FROM_THE_END, ONE_VALUE, NO_GUARD, ANSWERS, STOPS, ON_WRITES, PLAIN]
CELLS: list[Cell] = [
    *holds(FROM_THE_END, holders.TURNS, holders.CROWD),
    breaks(
        FROM_THE_END, asking.STOPPED_IN_ACQUIRE, Break.TWO, Break.LOST,
        why="The ttl has run on the servers while the client was asking, and it begins anew.",
    ),
    *holds(ONE_VALUE, holders.TURNS, holders.CROWD),
    breaks(
        ONE_VALUE, late.LATE_RELEASE, Break.TWO, Break.LOST,
        why="The release of an earlier attempt has the value of the later one, and deletes it.",
    ),
    *holds(NO_GUARD, holders.TURNS, holders.CROWD),
    breaks(NO_GUARD, servers.RESTARTED, Break.TWO, Break.LOST, why=FORGOTTEN),
    *holds(ANSWERS, holders.TURNS, holders.CROWD),
    breaks(
        ANSWERS, majorities.SPLIT, Break.TWO, Break.LOST,
        why="One of one is a majority, and two of two are another one.",
    ),
    *holds(STOPS, holders.TURNS, holders.CROWD),
    breaks(
        STOPS, majorities.RESTARTED_ONE, Break.TWO, Break.LOST,
        why="The lock was written on two servers, so it does not survive that one forgets it.",
    ),
    *holds(ON_WRITES, holders.TURNS, holders.CROWD, holders.PAUSED),
    breaks(
        ON_WRITES, late.WRITES_BETWEEN, Break.LOST,
        why="The row knows of the newer holder only when that writes, which is too late.",
    ),
    *holds(
        PLAIN, holders.TURNS, holders.CROWD, holders.KILLED, asking.STOPPED_IN_ACQUIRE,
        late.LATE_RELEASE, servers.MINORITY, majorities.RESTARTED_ONE, majorities.RESTARTED_LATE,
        majorities.SPLIT, network.LOST_REPLY, clocks.ASKS_AHEAD,
    ),
    breaks(PLAIN, holders.PAUSED, Break.LOST, why=LATE_WRITE),
    breaks(PLAIN, late.WRITES_BETWEEN, Break.LOST, why=LATE_WRITE),
    breaks(PLAIN, servers.RESTARTED, Break.TWO, Break.LOST, why=FORGOTTEN),
    breaks(
        PLAIN, servers.FAILOVER_LAGGING, Break.TWO, Break.LOST,
        why="A promoted replica that has not heard of the lock makes a second majority.",
    ),
    breaks(PLAIN, majorities.JUMPS, Break.TWO, Break.LOST, why=JUMPS),
    breaks(PLAIN, majorities.JUMPED, Break.TWO, Break.LOST, why=JUMPS),
]  # fmt: skip
