"""The table: all cells, in the order in which they are shown."""

from __future__ import annotations

from .cell import Cell, Lock
from .rooms import (
    checked_set,
    counter,
    fencekit,
    getset,
    node_redlock,
    ours,
    permits,
    pottery,
    pubsub,
    pull_mode,
    python_redis_lock,
    redis_py,
    redisson,
    redlock,
    redlock_ng,
    redlock_py,
    set_nx_px,
    setnx,
)

TOLD = [setnx, getset, set_nx_px, pull_mode, pubsub, redisson, redlock]
LIMITS = [counter, permits, checked_set]
LIBRARIES = [redlock_py, redlock_ng, pottery, node_redlock, python_redis_lock, redis_py, fencekit]
CELLS: list[Cell] = [cell for room in [*TOLD, *LIMITS, *LIBRARIES, ours] for cell in room.CELLS]
LOCKS: list[Lock] = list(dict.fromkeys(cell.lock for cell in CELLS))

# A choice that is played within a minute, by their keys.
SHORT: list[str] = [
    "setnx-del/turns",
    "setnx-del/killed",
    "setnx-expire/killed-between",
    "setnx-getset/overwritten",
    "set-del/late-release",
    "set-compare/failover-lagging",
    "pull-mode/lost-reply",
    "pubsub-forever/early-release",
    "redisson-redlock/stopped-acquiring",
    "redlock/paused",
    "redlock/restarted",
    "counter/each-in-its-order",
    "django-redlock/killed",
    "django-redlock/paused",
    "django-redlock-fenced/paused",
]
