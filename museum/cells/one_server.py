"""Locks on one server: from before SET could give a ttl, of SET NX PX, and by messages."""

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
SET_DEL = Exhibit("set-del", "SET NX PX, then DEL", "museum.recipes.set_nx_px:SetDel")
COMPARE = Exhibit(
    "set-compare", "SET NX PX, compare and delete", "museum.recipes.set_nx_px:CompareAndDelete"
)
PULL = Exhibit("pull-mode", "The pull-mode lock", "museum.recipes.pull_mode:PullMode")
PULL_RECOGNISING = Exhibit(
    "pull-recognising", "The pull-mode lock, which recognises its key",
    "museum.recipes.pull_mode:PullModeRecognising",
)  # fmt: skip
FOREVER = Exhibit(
    "pubsub-forever", "Pub/sub, sleeping until a message", "museum.recipes.pubsub:PubSubForever"
)
TTL = Exhibit("pubsub-ttl", "Pub/sub, sleeping for a ttl", "museum.recipes.pubsub:PubSubTtl")

EXHIBITS = [
    SETNX_DEL,
    SETNX_EXPIRE,
    SETNX_GETSET,
    SET_DEL,
    COMPARE,
    PULL,
    PULL_RECOGNISING,
    FOREVER,
    TTL,
]
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
    *holds(FOREVER, network.HAND_OVER),
    breaks(
        FOREVER, network.KILLED_BEFORE_THE_MESSAGE, Break.STUCK,
        why="The key ends by its ttl, and nobody publishes that.",
    ),
    breaks(
        FOREVER, network.RELEASED_BEFORE_SUBSCRIBE, Break.STUCK,
        why="The message went out before the waiter had subscribed, and there is no other one.",
    ),
    breaks(
        FOREVER, network.KILLED_SUBSCRIPTION, Break.STUCK,
        why="The message is lost, and the client library connects again without a word.",
    ),
    *holds(TTL, network.HAND_OVER, holders.TURNS, holders.CROWD, holders.KILLED,
           network.KILLED_BEFORE_THE_MESSAGE, network.RELEASED_BEFORE_SUBSCRIBE),
    breaks(
        TTL, holders.PAUSED, Break.TWO, Break.LOST,
        why="The ttl is over, and the client that goes on does not know it.",
    ),
    breaks(
        TTL, network.KILLED_SUBSCRIPTION, Break.STUCK,
        why="The message is lost, and the waiter sleeps for what was left of the ttl.",
    ),
]  # fmt: skip
