"""Make rows of the page's tables: texts that may be shown, and how they look."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Final

from django_redlock.core.reasons import describe
from django_redlock.inspection.results import Health, HeldLock, LockStatus, age, shown
from django_redlock.inspection.task_list import Task, TaskState

if TYPE_CHECKING:
    from django_redlock.inspection.lookup import Cell
    from django_redlock.inspection.results import Survey

LETTERS: Final = string.ascii_uppercase
MOOD: Final = {
    Health.OK: "good",
    Health.DEGRADED: "odd",
    Health.NO_MAJORITY: "bad",
    LockStatus.HELD: "good",
    LockStatus.RESTING: "calm",
    LockStatus.PARTIAL: "odd",
    LockStatus.SPLIT: "odd",
    LockStatus.UNCLEAR: "bad",
    TaskState.RUNNING: "good",
    TaskState.QUEUED: "calm",
    TaskState.FINISHED: "calm",
}


def node(i: int, found: Survey) -> dict[str, Any]:
    """Make a row of the table of nodes."""
    node, heard = found.nodes[i], found.heard[i]
    return {
        "number": i + 1,
        "label": shown(node.label),
        "state": found.state(i),
        "mood": "odd" if found.warning(i) else "good" if node.voting else "odd" if heard else "bad",
        "why": shown(describe(found.reason(i), brief=True)),
        "version": shown(node.software),
        "role": shown(node.role),
        "uptime": "" if node.uptime is None else age(node.uptime),
        "round_trip": "" if node.round_trip is None else f"{node.round_trip * 1000:.2f} ms",
        "guard": _seconds(node.guard_left) if node.guard_left else "",
    }


def lock(lock: HeldLock, found: Survey) -> dict[str, Any]:
    """Make a row of the table. If several owners have keys, letters tell the keys apart."""
    letters = dict(zip((each.owner for each in lock.owners), LETTERS, strict=False))
    if len(letters) == 1:
        letters = {}
    return {
        "name": shown(lock.name),
        "kind": lock.kind.value,
        "mood": MOOD[lock.kind],
        "votes": f"{lock.on} of {lock.of}",
        "majority": lock.on >= found.majority,
        "fence": "" if lock.fence is None else str(lock.fence),
        "owners": [
            {"label": shown(each.label), "letter": letters.get(each.owner, ""), "on": each.on}
            for each in lock.owners
        ],
        "low": _seconds(lock.lowest),
        "high": _seconds(lock.highest),
        "cells": [
            _cell(cell, i, found, letters.get(cell.owner, "") if cell else "")
            for i, cell in enumerate(lock.cells)
        ],
    }


def task(task: Task) -> dict[str, Any]:
    """Make a row of the table of tasks."""
    return {
        "name": shown(task.task),
        "id": shown(task.task_id),
        "names": [shown(name) for name in task.names],
        "state": task.state.value,
        "mood": MOOD[task.state],
        "votes": f"{task.on} of {task.of}",
        "enough": task.state not in {TaskState.PARTIAL, TaskState.UNCLEAR},
        "low": _seconds(task.lowest),
        "high": _seconds(task.highest),
    }


def _cell(cell: Cell | None, i: int, found: Survey, letter: str) -> dict[str, Any]:
    return {
        "node": i + 1,
        "heard": found.heard[i],
        "found": cell is not None,
        "left": _seconds(cell.left) if cell else "",
        "letter": letter,
    }


def _seconds(left: float | None) -> str:
    """Format seconds as page and script do, in any language; "" for a key that never expires."""
    return "" if left is None else f"{left:.1f}"
