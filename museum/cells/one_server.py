"""Locks of SET NX PX, on one server."""

from __future__ import annotations

from museum.checker import Break
from museum.exhibits import Exhibit
from museum.runs import clocks, holders, network, servers

from .cell import Cell, breaks, holds

SET_DEL = Exhibit("set-del", "SET NX PX, then DEL", "museum.recipes.set_nx_px:SetDel")
COMPARE = Exhibit(
    "set-compare", "SET NX PX, compare and delete", "museum.recipes.set_nx_px:CompareAndDelete"
)
PULL = Exhibit("pull-mode", "The pull-mode lock", "museum.recipes.pull_mode:PullMode")
PULL_RECOGNISING = Exhibit(
    "pull-recognising", "The pull-mode lock, which recognises its key",
    "museum.recipes.pull_mode:PullModeRecognising",
)  # fmt: skip

EXHIBITS = [SET_DEL, COMPARE, PULL, PULL_RECOGNISING]
CELLS: list[Cell] = [
    *holds(SET_DEL, holders.TURNS, holders.CROWD, holders.KILLED),
    breaks(
        SET_DEL, holders.PAUSED, Break.TWO, Break.LOST,
        why="The ttl is over, and the client that goes on does not know it.",
    ),
    breaks(
        SET_DEL, holders.STOPPED_IN_RELEASE, Break.TWO, Break.LOST,
        why="DEL deletes the key of the next holder, and a third client comes in.",
    ),
    *holds(
        COMPARE, holders.TURNS, holders.CROWD, holders.KILLED, holders.STOPPED_IN_RELEASE,
        clocks.ASKS_AHEAD, servers.FAILOVER,
    ),
    breaks(
        COMPARE, holders.PAUSED, Break.TWO, Break.LOST,
        why="The ttl is over, and the client that goes on does not know it.",
    ),
    breaks(
        COMPARE, servers.RESTARTED, Break.TWO, Break.LOST,
        why="The server has forgotten the key, and gives the lock a second time.",
    ),
    breaks(
        COMPARE, servers.FAILOVER_LAGGING, Break.TWO, Break.LOST,
        why="Replication is asynchronous: the new master has never heard of the key.",
    ),
    breaks(
        COMPARE, network.LOST_REPLY, Break.STUCK,
        why="The key is there, and no client knows that it has the lock, until the ttl is over.",
    ),
    *holds(PULL, holders.TURNS, holders.CROWD, holders.KILLED),
    breaks(
        PULL, holders.PAUSED, Break.TWO, Break.LOST,
        why="The ttl is over, and the client that goes on does not know it.",
    ),
    breaks(
        PULL, network.LOST_REPLY, Break.STUCK,
        why="The client takes the timeout for a refusal, and waits for the end of its own key.",
    ),
    breaks(
        PULL, holders.OVERTAKEN, Break.STARVED,
        why="Nobody keeps the lock for a client that sleeps between two tries: who comes gets it.",
    ),
    *holds(PULL_RECOGNISING, holders.TURNS, network.LOST_REPLY),
    breaks(
        PULL_RECOGNISING, network.RECOGNISED_LATE, Break.TWO, Break.LOST,
        why="The server counts the ttl from the SET, and the client from when it found its key.",
    ),
]  # fmt: skip
