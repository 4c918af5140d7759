"""The JSON document of ``redlock_check --json``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from django_redlock.core.reasons import code_of

from .page import sentence, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.inspection.examination import Examination, Finding, NodeFacts


def as_json(found: Sequence[Examination]) -> dict[str, Any]:
    """The document of ``--json``; its keys are listed in the documentation and stay."""
    return {"health": worst(found).value, "aliases": {each.alias: _alias(each) for each in found}}


def _alias(found: Examination) -> dict[str, Any]:
    return {
        "health": found.health.value,
        "majority": found.majority,
        "usable": found.usable,
        "voting": found.voting,
        "votes_in": _rounded(found.votes_in, 3),
        "findings": list(map(_finding, found.findings)),
        "nodes": list(map(_node, found.nodes)),
    }


def _node(node: NodeFacts) -> dict[str, Any]:
    eviction = node.eviction
    return {
        "node": node.label,
        "reached": node.reached,
        "voting": node.voting,
        "guard_left": _rounded(node.guard_left, 3),
        "findings": list(map(_finding, node.findings)),
        "version": node.software,
        "role": node.role,
        "uptime": _rounded(node.uptime, 3),
        "round_trip": _rounded(node.round_trip, 6),
        "clock_ahead": _rounded(node.ahead, 6),
        "maxmemory": eviction and eviction.limit,
        "maxmemory_policy": eviction and eviction.policy,
        "evicted_keys": eviction and eviction.evicted,
        "append_only": node.append_only,
        "snapshots": node.snapshots,
        "rights": node.rights,
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "level": finding.level.value,
        "code": code_of(finding.reason),
        "text": sentence(finding),
    }


def _rounded(number: float | None, digits: int) -> float | None:
    return None if number is None or math.isinf(number) else round(number, digits)
