"""The JSON document of ``redlock_status --json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .page import worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.inspection.results import HeldLock, Survey
    from django_redlock.inspection.task_list import Task


def as_json(surveys: Sequence[Survey]) -> dict[str, Any]:
    """The document of ``--json``; its keys are listed in the documentation and stay."""
    return {
        "health": worst(surveys).value,
        "aliases": {each.alias: _alias_json(each) for each in surveys},
    }


def _alias_json(found: Survey) -> dict[str, Any]:
    return {
        "health": found.health.value,
        "majority": found.majority,
        "truncated": found.truncated,
        "beyond": found.beyond,
        "nodes": [
            {
                "node": node.label,
                "voting": node.voting,
                "answered": heard,
                "why": node.why,
                "code": node.code,
                "version": node.software,
                "role": node.role,
                "uptime": _rounded(node.uptime),
                "round_trip": node.round_trip
                if node.round_trip is None
                else round(node.round_trip, 6),
                "guard_left": _rounded(node.guard_left),
                "maxmemory": told and told.limit,
                "maxmemory_policy": told and told.policy,
                "evicted_keys": told and told.evicted,
                "evicts": told and told.threatens,
            }
            for i, (node, heard, told) in enumerate(
                zip(found.nodes, found.heard, found.evictions, strict=True)
            )
        ],
        "locks": [_lock_json(lock, found) for lock in found.locks],
        "tasks": [_task_json(task) for task in found.tasks.tasks],
        "tasks_truncated": found.tasks.truncated or found.tasks.beyond > 0,
    }


def _task_json(task: Task) -> dict[str, Any]:
    return {
        "task": task.task,
        "id": task.task_id,
        "state": task.state.value,
        "names": list(task.names),
        "on": task.on,
        "of": task.of,
        "lowest": _rounded(task.lowest),
        "highest": _rounded(task.highest),
    }


def _lock_json(lock: HeldLock, found: Survey) -> dict[str, Any]:
    return {
        "name": lock.name,
        "kind": lock.kind.value,
        "holder": lock.holder,
        "fence": lock.fence,
        "on": lock.on,
        "of": lock.of,
        "lowest": _rounded(lock.lowest),
        "highest": _rounded(lock.highest),
        "cells": [
            {
                "node": node.label,
                "left": _rounded(cell.left),
                "owner": cell.owner,
                "holder": cell.label,
            }
            for node, cell in zip(found.nodes, lock.cells, strict=True)
            if cell is not None
        ],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
