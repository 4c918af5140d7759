"""Ours, under the same runs as all others."""

from __future__ import annotations

from museum.checker import Break
from museum.exhibits import Exhibit
from museum.runs import asking, clocks, holders, late, majorities, network, servers

from .cell import Cell, breaks, holds


def _exhibit(key: str, title: str, recipe: str) -> Exhibit:
    return Exhibit(key, title, f"museum.recipes.{recipe}", servers=3, guarded=True)


RENEWED = _exhibit("django-redlock-renewed", "django-redlock, renewed", "redlock:OursRenewed")
OURS = _exhibit("django-redlock", "django-redlock", "redlock:Ours")
FENCED = _exhibit("django-redlock-fenced", "django-redlock, fenced", "fenced:Fenced")

LATE_WRITE = "No lock stops a write that is already on its way: the row must refuse it."
JUMPS = (
    "The key of a server whose clock jumps is gone before its time, and connections that are older "
    "than the jump do not see it."
)

EXHIBITS = [RENEWED, OURS, FENCED]
CELLS: list[Cell] = [
    *holds(RENEWED, majorities.ONE_BY_ONE, majorities.HANGS),
    *holds(
        OURS, holders.TURNS, holders.CROWD, holders.KILLED, holders.STOPPED_IN_RELEASE,
        servers.MINORITY, servers.RESTARTED, servers.FAILOVER_LAGGING, network.LOST_REPLY,
        clocks.ASKS_AHEAD, asking.STOPPED_IN_ACQUIRE, late.LATE_RELEASE, majorities.RESTARTED_ONE,
        majorities.SPLIT, majorities.JUMPED,
    ),
    breaks(OURS, holders.PAUSED, Break.LOST, why=LATE_WRITE),
    breaks(OURS, late.WRITES_BETWEEN, Break.LOST, why=LATE_WRITE),
    breaks(OURS, majorities.JUMPS, Break.TWO, Break.LOST, why=JUMPS),
    *holds(
        FENCED, holders.TURNS, holders.CROWD, holders.KILLED, holders.PAUSED, late.WRITES_BETWEEN,
        servers.MINORITY, servers.RESTARTED, servers.FAILOVER_LAGGING, network.LOST_REPLY,
        clocks.ASKS_AHEAD,
    ),
    breaks(
        FENCED, majorities.JUMPS, Break.TWO,
        why="Two believe to hold the lock, and the row takes the writes of the later one only.",
    ),
]  # fmt: skip
