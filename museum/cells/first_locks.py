"""The first locks with Redis, on one server: from before SET could give a ttl."""

from __future__ import annotations

from museum.checker import Break
from museum.exhibits import Exhibit
from museum.runs import clocks, holders, network, servers

from .cell import Cell, breaks, holds

SETNX_DEL = Exhibit("setnx-del", "SETNX, then DEL", "museum.recipes.setnx:SetnxDel")
SETNX_EXPIRE = Exhibit("setnx-expire", "SETNX, then EXPIRE", "museum.recipes.setnx:SetnxExpire")
SETNX_GETSET = Exhibit(
    "setnx-getset", "SETNX with a time, and GETSET", "museum.recipes.getset:SetnxGetset"
)

EXHIBITS = [SETNX_DEL, SETNX_EXPIRE, SETNX_GETSET]
CELLS: list[Cell] = [
    # Without a ttl it is safe as long as its server remembers, and waits as long as a holder does.
    *holds(SETNX_DEL, holders.TURNS, holders.CROWD, holders.PAUSED, clocks.ASKS_AHEAD),
    breaks(
        SETNX_DEL, holders.KILLED, Break.STUCK,
        why="Nobody deletes the key of a client that died.",
    ),
    breaks(
        SETNX_DEL, servers.RESTARTED, Break.TWO, Break.LOST,
        why="The server has forgotten the key, and gives the lock a second time.",
    ),
    breaks(
        SETNX_DEL, network.LOST_REPLY, Break.STUCK,
        why="The server has made the key, and no client knows that it has the lock.",
    ),
    *holds(SETNX_EXPIRE, holders.TURNS, holders.CROWD, holders.KILLED),
    breaks(
        SETNX_EXPIRE, holders.KILLED_AFTER_SETNX, Break.STUCK,
        why="The client died between two commands, so its key has no ttl.",
    ),
    breaks(
        SETNX_EXPIRE, holders.PAUSED, Break.TWO, Break.LOST,
        why="The ttl is over, and the client that goes on does not know it.",
    ),
    breaks(
        SETNX_EXPIRE, holders.STOPPED_IN_RELEASE, Break.TWO, Break.LOST,
        why="DEL deletes the key of the next holder, and a third client comes in.",
    ),
    breaks(
        SETNX_EXPIRE, network.LOST_REPLY, Break.STUCK,
        why="The client does not know that it made the key, and sends no EXPIRE.",
    ),
    *holds(SETNX_GETSET, holders.TURNS, holders.CROWD, holders.KILLED, clocks.THREE_AT_ONCE),
    breaks(
        SETNX_GETSET, holders.PAUSED, Break.TWO, Break.LOST,
        why="The time is over, and the client that goes on does not know it.",
    ),
    breaks(
        SETNX_GETSET, holders.STOPPED_IN_RELEASE, Break.TWO, Break.LOST,
        why="DEL deletes the key of the next holder, and a third client comes in.",
    ),
    breaks(
        SETNX_GETSET, clocks.ASKS_AHEAD, Break.TWO, Break.LOST,
        why="By the clock of the one that asks the holder's time has passed.",
    ),
    breaks(
        SETNX_GETSET, clocks.DIES_AHEAD, Break.STUCK,
        why="The time that the dead client wrote is 30 s off by the clock of the others.",
    ),
    breaks(
        SETNX_GETSET, clocks.OVERWRITTEN, Break.TWO, Break.LOST,
        why="A client that does not get the lock has overwritten the holder's time with its own.",
    ),
]  # fmt: skip
