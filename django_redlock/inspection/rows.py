"""Rows, sentences and documents of what was found: made once, for the commands and the admin page.

A row is a dictionary of texts; each face shows the columns that it has room for. Here every text
that comes from a node, a client or the settings passes through ``printable``: a client that may
name a lock chooses such a text.

A new field of a node is an entry in ``node``, with its column in ``STATUS_COLUMNS`` or
``CHECK_COLUMNS``, and one in ``_node_values``, with its key in ``STATUS_KEYS`` or ``CHECK_KEYS``.
"""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from django_redlock.core.reasons import action, code_of, describe, printable
from django_redlock.core.slots import shown

from .probe import WORST_FIRST, Examination, Finding, Health, Level, NodeReport, NodeState
from .survey import ONE_OWNERS, UNSETTLED, Cell, HeldLock, LockStatus, Report, Wanted, oldest_first

EXIT: Final = {Health.OK: 0, Health.DEGRADED: 3, Health.NO_MAJORITY: 4, Health.NOT_YET: 5}
WELL: Final = "well"  # in place of a level, where there is no finding
LETTERS: Final = string.ascii_uppercase
MINUTE, HOUR, DAY = 60, 3600, 86400
LONG: Final = 10_000  # seconds, of which nobody reads tenths
# How a state looks: "good", "odd", "bad" or "calm". Equal texts of different kinds look the same.
MOODS: Final[Mapping[str | None, str]] = {
    Health.OK: "good",
    Health.DEGRADED: "odd",
    Health.NOT_YET: "odd",
    Health.NO_MAJORITY: "bad",
    NodeState.UP: "good",
    NodeState.NO_VOTE: "odd",
    NodeState.DOWN: "bad",
    LockStatus.HELD: "good",
    LockStatus.REVOKED: "odd",
    LockStatus.RESTING: "calm",
    LockStatus.DONE: "calm",
    LockStatus.PARTIAL: "odd",
    LockStatus.SPLIT: "odd",
    LockStatus.UNCLEAR: "bad",
    LockStatus.FREE: "calm",
    LockStatus.QUEUED: "calm",
    LockStatus.FINISHED: "calm",
    None: "good",  # no finding
    Level.NOTE: "good",
    Level.WARNING: "odd",
    Level.ERROR: "bad",
}


def age(seconds: float) -> str:
    """Format seconds for people, by the two largest units at most."""
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def seconds(left: float | None) -> str:
    """Format seconds as the page's script does; "" for what never expires."""
    return "" if left is None else f"{left:.{0 if left >= LONG else 1}f}"


def on_nodes(on: int, of: int) -> str:
    """Say on how many nodes something is; nothing of a single one."""
    return f" on {on} of {of} nodes" if of > 1 else ""


# -- rows -----------------------------------------------------------------------------------------

STATUS_COLUMNS: Final = ("node", "state", "version", "uptime", "role", "round_trip", "guard")
CHECK_COLUMNS: Final = (
    *("node", "is", "version", "role", "round_trip", "clock", "full_memory", "keeps", "rights"),
)
LOCK_COLUMNS: Final = ("lock", "holder", "held_for", "on", "seconds_left", "is")
OF_SEVERAL: Final = frozenset({"on"})  # columns that say nothing of a single node
FINDING_COLUMNS: Final = ("node", "is", "what_to_do")
Row: TypeAlias = "dict[str, Any]"


def node(node: NodeReport) -> Row:
    """Make the texts about a node; "" where it told nothing."""
    left = 0.0 if node.guard_left in (None, math.inf) else node.guard_left  # inf: not counted yet
    state, level, warning = node.state, node.level, node.warning
    problem = node.reason or warning
    why = printable(describe(problem, brief=True)) if problem else ""
    full = printable(node.maxmemory_policy or "") if node.maxmemory else "no limit"
    kept = ["append-only file"] * bool(node.append_only) + ["snapshots"] * bool(node.snapshots)
    unknown = node.append_only is node.snapshots is None
    return {
        "node": printable(node.label),
        "state": f"{state}: {why}" if why else state.value,
        "state_mood": "odd" if node.voting and warning else MOODS[state],
        "badge": state.value,
        "why": why,
        "is": level or WELL,
        "is_mood": MOODS[level],
        "version": printable(node.software),
        "role": printable(node.role),
        "uptime": "" if node.uptime is None else age(node.uptime),
        "round_trip": "" if node.round_trip is None else f"{node.round_trip * 1000:.2f} ms",
        "guard": f"{math.ceil(left)} s" if left else "",  # never 0 s while it has no vote
        "guard_seconds": seconds(left) if left else "",
        "clock": "" if node.clock_ahead is None else f"{node.clock_ahead:+.3f} s",
        "full_memory": "" if node.maxmemory is None else full,
        "keeps": "" if unknown else ", ".join(kept) or "nothing",
        "rights": {True: "all", False: "too few", None: ""}[node.rights],
    }


def lock(lock: HeldLock, nodes: Sequence[NodeReport], majority: int) -> Row:
    """Make the texts about a lock. If several owners have keys, letters tell the keys apart."""
    owners = lock.owners
    letters = {}
    if len(owners) > 1:
        letters = dict(zip([each.owner for each in owners], LETTERS, strict=False))
    labels = [printable(each.label) or "another client" for each in owners]
    if len(owners) > 1 and lock.status not in ONE_OWNERS:
        # Nobody holds it: everybody who left a key, and on how many nodes.
        pairs = zip(labels, owners, strict=True)
        holder = ", ".join([f"{label} on {each.on}" for label, each in pairs])
    else:
        holder = labels[0] if labels else ""
    low, high = seconds(lock.lowest), seconds(lock.highest)
    name = printable(lock.name) + shown(lock.slot, lock.limit)
    is_done, since, old = lock.status is LockStatus.DONE, lock.since, lock.age
    held = "" if old is None else age(old)
    if not lock.on:
        left = ""
    elif not low:
        left = "never expires"
    else:
        left = low if low == high else f"{low} to {high or 'never'}"
    return {
        "lock": name,
        "key": lock.name if lock.is_lock else "",
        "slot": "" if lock.slot is None else str(lock.slot),
        "holder": holder,
        "owners": [
            {"label": label, "letter": letters.get(each.owner, ""), "on": each.on}
            for label, each in zip(labels, owners, strict=True)
        ],
        "fence": "" if lock.fence is None else str(lock.fence),
        "held_for": f"{held} ago" if is_done else held,
        "age": held,
        "since": since,
        "is_done": is_done,
        "again_in": "ever" if lock.highest is None else age(lock.highest),
        "is": lock.status.value,
        "is_mood": MOODS[lock.status],
        "on": f"{lock.on} of {lock.of}",
        "on_nodes": on_nodes(lock.on, lock.of),
        "seconds_left": left,
        "low": low,
        "high": high,
        "majority": lock.on >= majority,
        "waited": lock.waited,
        "cells": [
            _cell(i, cell, each, letters)
            for i, (cell, each) in enumerate(zip(lock.cells, nodes, strict=True), start=1)
        ],
    }


def _cell(number: int, cell: Cell | None, node: NodeReport, letters: Mapping[str, str]) -> Row:
    return {
        "node": number,
        "heard": node.heard,
        "found": cell is not None,
        "left": seconds(cell.left) if cell else "",
        "letter": letters.get(cell.owner, "") if cell else "",
    }


def findings(found: Examination) -> list[Row]:
    """Make the rows of findings, the worst first; what is said of all nodes is said once."""
    nodes: dict[tuple[Level, str], list[str]] = {}
    for each in found.nodes:
        for finding in each.findings:
            nodes.setdefault((finding.level, _sentence(finding)), []).append(each.label)
    for finding in found.findings:
        nodes[finding.level, _sentence(finding)] = ["all nodes"]
    return [
        {"node": printable(label), "what_to_do": text, "is": level, "is_mood": MOODS[level]}
        for (level, text), labels in sorted(nodes.items(), key=lambda e: WORST_FIRST.index(e[0][0]))
        for label in (["all nodes"] if len(labels) == found.size > 1 else labels)
    ]


def _sentence(finding: Finding) -> str:
    do = action(finding.reason)
    return printable(f"{finding.reason}; {do}" if do else str(finding.reason))


# -- what is said beside the tables ---------------------------------------------------------------

TAKE: Final = "manage.py redlock_release NAME takes a lock away from its holder."
AGAIN: Final = "Work that is done: manage.py redlock_release NAME lets it be done again."
CLEAR: Final = (
    "A task that is queued and never runs: manage.py redlock_release --task ID removes its mark."
)


def headline(found: Report | Examination) -> str:
    """Say how an alias is."""
    return f"{printable(found.alias)}: {printable(str(found.summary))}"


def slots(found: Report, *, counts: bool = True) -> Iterator[str]:
    """Say of each limited lock how many of its slots are held, and where its holders disagree.

    Args:
        counts: whether the report has all slots of the locks that it has.
    """
    names: dict[str, list[HeldLock]] = {}
    for each in found.locks:
        if each.slot is not None:
            names.setdefault(each.name, []).append(each)
    counts = counts and found.complete and not found.truncated
    for name, locks in names.items():
        limits = sorted({each.limit for each in locks if each.limit is not None})
        held = sum(each.status is LockStatus.HELD for each in locks)
        most = f" of {limits[0]}" if len(limits) == 1 else ""
        if counts:
            yield f"{printable(name)}: {held}{most} held; slots are numbered from 0."
        if len(limits) > 1:
            different = " and ".join(map(str, limits))
            yield f"{printable(name)}: its holders have different limits, {different}."


def notes(found: Report, wanted: Wanted) -> Iterator[str]:
    """Say what is missing below the table of locks, and what can be done about what is in it."""
    yield from slots(found, counts=not wanted.filters)
    if found.complete:
        yield from wanted.unmet(found)
    elif not found.locks:
        yield "Too few nodes vote to know what is held."
    if found.beyond:
        yield f"{found.beyond} more match{'' if found.beyond > 1 else 'es'}; --limit shows more."
    elif found.truncated and wanted.filters and not found.unsearched:
        yield "More locks are held than were looked at; --limit looks at more."
    elif found.truncated and not wanted.texts:
        yield f"There is more than these {len(found.locks)} rows; --limit shows more."
    if found.unsearched:
        yield "More names are held than were looked at: others may match, too."
    if wanted.older_than is not None and found.locks:
        yield TAKE
    statuses = {(each.is_lock, each.status) for each in found.locks}
    if (True, LockStatus.DONE) in statuses:
        yield AGAIN
    if any(not is_lock and status is not LockStatus.FINISHED for is_lock, status in statuses):
        yield CLEAR


# -- --json ---------------------------------------------------------------------------------------


def document(found: Sequence[Report | Examination]) -> dict[str, Any]:
    """Make the document of ``--json``; its keys are listed in the documentation and stay."""
    health = Health.worst(each.health for each in found)
    return {"health": health.value, "aliases": {each.alias: _values(each) for each in found}}


def _values(found: Report | Examination) -> dict[str, Any]:
    return _status_values(found) if isinstance(found, Report) else _check_values(found)


STATUS_KEYS: Final = (
    *("node", "voting", "answered", "why", "code", "version", "role", "uptime", "round_trip"),
    *("guard_left", "maxmemory", "maxmemory_policy", "evicted_keys", "evicts"),
)
CHECK_KEYS: Final = (
    *("node", "reached", "voting", "guard_left", "findings", "version", "role", "uptime"),
    *("round_trip", "clock_ahead", "maxmemory", "maxmemory_policy", "evicted_keys"),
    *("append_only", "snapshots", "rights"),
)


def _node_values(node: NodeReport) -> dict[str, Any]:
    return {
        "node": node.label,
        "answered": node.heard,
        "reached": node.heard,
        "voting": node.voting,
        "why": node.why,
        "code": node.code,
        "findings": list(map(_finding_values, node.findings)),
        "version": node.software,
        "role": node.role,
        "uptime": _rounded(node.uptime),
        "round_trip": _rounded(node.round_trip, 6),
        "guard_left": _rounded(node.guard_left),
        "clock_ahead": _rounded(node.clock_ahead, 6),
        "maxmemory": node.maxmemory,
        "maxmemory_policy": node.maxmemory_policy,
        "evicted_keys": node.evicted_keys,
        "evicts": node.evicts,
        "append_only": node.append_only,
        "snapshots": node.snapshots,
        "rights": node.rights,
    }


def _rounded(number: float | None, digits: int = 3) -> float | None:
    return None if number is None or math.isinf(number) else round(number, digits)


def _only(keys: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in keys}


def _status_values(found: Report) -> dict[str, Any]:
    return {
        "health": found.health.value,
        "majority": found.majority,
        "truncated": found.truncated,
        "beyond": found.beyond,
        "waiting": found.waiting,
        "nodes": [_only(STATUS_KEYS, _node_values(each)) for each in found.nodes],
        "locks": [_lock_values(each, found.nodes) for each in found.locks],
    }


def _lock_values(lock: HeldLock, nodes: Sequence[NodeReport]) -> dict[str, Any]:
    return {
        "name": lock.name,
        "slot": lock.slot,
        "limit": lock.limit,
        "kind": lock.status.value,
        "holder": lock.holder,
        "task": lock.task,
        "id": lock.task_id,
        "fence": lock.fence,
        "since": (since := lock.since) and since.isoformat(),
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
            for node, cell in zip(nodes, lock.cells, strict=True)
            if cell is not None
        ],
    }


def _check_values(found: Examination) -> dict[str, Any]:
    return {
        "health": found.health.value,
        "majority": found.majority,
        "usable": found.usable,
        "voting": found.voting,
        "votes_in": _rounded(found.votes_in),
        "findings": list(map(_finding_values, found.findings)),
        "nodes": [_only(CHECK_KEYS, _node_values(each)) for each in found.nodes],
    }


def _finding_values(finding: Finding) -> dict[str, str]:
    return {
        "level": finding.level.value,
        "code": code_of(finding.reason),
        "text": _sentence(finding),
    }


# -- redlock_status --prometheus ------------------------------------------------------------------

GAUGES: Final = {
    "redlock_majority": "Nodes that must vote for a lock.",
    "redlock_node_up": "Whether the node replied.",
    "redlock_node_voting": "Whether the node votes.",
    "redlock_node_evicts": "Whether the node may delete locks when its memory is full.",
    "redlock_node_round_trip_seconds": "Seconds of a small command to the node.",
    "redlock_names_held": "Names that are held; of a limited lock, each slot.",
    "redlock_names_waited_for": "Names that somebody waits for; of a limited lock, each slot.",
    "redlock_names_unsettled": "Names that are partial, split or unclear.",
    "redlock_names_oldest_hold_seconds": "Seconds since the holder that holds for longest asked.",
    "redlock_tasks": "Tasks that are queued or running.",
    "redlock_truncated": "Whether there is more than --limit allowed to count.",
}
Sample: TypeAlias = tuple[str, float, dict[str, str]]  # a gauge, its value, labels beside the alias
IN_A_LABEL: Final = str.maketrans({"\\": r"\\", '"': r"\""})  # printable text has no line break


def exposition(found: Sequence[Report]) -> str:
    """Make the text of ``--prometheus``; its gauges are listed in the documentation and stay.

    No name of a lock or a task is a label: there is no end to names.
    """
    samples: dict[str, list[str]] = {gauge: [] for gauge in GAUGES}
    for each in found:
        for gauge, value, more in _samples(each):
            labels = ({"alias": each.alias} | more).items()
            pairs = (f'{key}="{printable(text).translate(IN_A_LABEL)}"' for key, text in labels)
            samples[gauge].append(f"{gauge}{{{','.join(pairs)}}} {value:.9g}")
    lines = [
        line
        for gauge, text in GAUGES.items()
        if samples[gauge]
        for line in (f"# HELP {gauge} {text}", f"# TYPE {gauge} gauge", *samples[gauge])
    ]
    return "".join(f"{line}\n" for line in lines)


def _samples(found: Report) -> Iterator[Sample]:
    """Yield what is known; what too few nodes could tell has no sample."""
    yield "redlock_majority", found.majority, {}
    for node in found.nodes:
        which = {"node": node.label}
        yield "redlock_node_up", node.heard, which
        yield "redlock_node_voting", node.voting, which
        if node.evicts is not None:
            yield "redlock_node_evicts", node.evicts, which
        if node.round_trip is not None:
            yield "redlock_node_round_trip_seconds", node.round_trip, which
    if not found.complete:
        return
    kinds = Counter(each.status for each in found.locks if each.is_lock)
    yield "redlock_names_held", kinds[LockStatus.HELD], {}
    if found.waiting is not None:
        yield "redlock_names_waited_for", found.waiting, {}
    yield "redlock_names_unsettled", sum(kinds[each] for each in UNSETTLED), {}
    for oldest in oldest_first(found.locks)[:1]:
        yield "redlock_names_oldest_hold_seconds", oldest.age or 0.0, {}
    for state, kind in {"queued": LockStatus.QUEUED, "running": LockStatus.HELD}.items():
        ids = {(each.task, each.task_id) for each in found.locks if each.status is kind}
        yield "redlock_tasks", len(ids - {("", "")}), {"state": state}
    yield "redlock_truncated", found.truncated, {}
