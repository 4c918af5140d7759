"""The fixed list of cells: a recipe, a run, and what must be seen."""

from __future__ import annotations

from museum.exhibits import Exhibit

from . import one_server, others, ours, redisson, redlocks
from .cell import Cell

__all__ = ["CELLS", "EXHIBITS", "SHORT", "Cell"]

GROUPS = one_server, redisson, redlocks, others, ours  # ours last
EXHIBITS: list[Exhibit] = [exhibit for group in GROUPS for exhibit in group.EXHIBITS]
CELLS: list[Cell] = [cell for group in GROUPS for cell in group.CELLS]

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
    "django-redlock/killed",
    "django-redlock/paused",
    "django-redlock-fenced/paused",
]
