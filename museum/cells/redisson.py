"""Redisson's locks over several servers."""

from __future__ import annotations

from museum.checker import Break
from museum.exhibits import Exhibit
from museum.runs import asking, holders, late, majorities, network, servers

from .cell import Cell, breaks, holds

MULTI = Exhibit(
    "redisson-multilock", "Redisson MultiLock", "museum.recipes.redisson:MultiLock", servers=3
)
RED = Exhibit("redisson-redlock", "Redisson RedLock", "museum.recipes.redisson:RedLock", servers=3)
WATCHED = Exhibit(
    "redisson-watchdog", "Redisson RedLock, watchdog", "museum.recipes.redisson:WatchedRedLock",
    servers=3,
)  # fmt: skip

EXHIBITS = [MULTI, RED, WATCHED]
CELLS: list[Cell] = [
    *holds(MULTI, holders.TURNS, holders.CROWD, holders.KILLED, majorities.RESTARTED_ONE),
    breaks(
        MULTI, holders.PAUSED, Break.TWO, Break.LOST,
        why="Nobody tells the client until when it has the lock, and it goes on.",
    ),
    breaks(
        MULTI, servers.MINORITY, Break.STUCK,
        why="All servers must give the lock, so nobody gets it while one is down.",
    ),
    *holds(
        RED, holders.TURNS, holders.CROWD, holders.KILLED, servers.MINORITY, network.LOST_REPLY,
        majorities.RESTARTED_ONE, majorities.SPLIT,
    ),
    breaks(
        RED, holders.PAUSED, Break.TWO, Break.LOST,
        why="Nobody tells the client until when it has the lock, and it goes on.",
    ),
    breaks(
        RED, asking.STOPPED_IN_ACQUIRE, Break.TWO, Break.LOST,
        why="It counts the servers, and not the time that asking them has taken.",
    ),
    breaks(
        RED, late.LATE_RELEASE, Break.TWO, Break.LOST,
        why="Its owner is the same for each attempt, so an old unlock fits the new lock.",
    ),
    breaks(
        RED, servers.RESTARTED, Break.TWO, Break.LOST,
        why="A server that has forgotten the lock gives it to the next one.",
    ),
    breaks(
        RED, servers.FAILOVER_LAGGING, Break.TWO, Break.LOST,
        why="A promoted replica that has not heard of the lock gives it to the next one.",
    ),
    *holds(WATCHED, holders.TURNS, holders.CROWD, holders.KILLED),
    breaks(
        WATCHED, holders.PAUSED, Break.TWO, Break.LOST,
        why="The watchdog stood still with its process, and the client goes on.",
    ),
    breaks(
        WATCHED, majorities.ONE_BY_ONE, Break.TWO, Break.LOST,
        why="The watchdog ends silently on each server where its key is gone; nobody is told.",
    ),
    breaks(
        WATCHED, majorities.HANGS, Break.STUCK,
        why="The watchdog renews as long as the process lives, whatever its work does.",
    ),
]  # fmt: skip
