"""Locks whose release is published, on one server."""

from __future__ import annotations

from museum.checker import Break
from museum.exhibits import Exhibit
from museum.runs import holders, network

from .cell import Cell, breaks, holds

FOREVER = Exhibit(
    "pubsub-forever", "Pub/sub, sleeping until a message", "museum.recipes.pubsub:PubSubForever"
)
TTL = Exhibit("pubsub-ttl", "Pub/sub, sleeping for a ttl", "museum.recipes.pubsub:PubSubTtl")

EXHIBITS = [FOREVER, TTL]
CELLS: list[Cell] = [
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
