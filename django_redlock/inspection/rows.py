"""Rows, sentences and documents of what was found: made once, for the commands and the admin page.

A row is a dictionary of texts; each face shows the columns that it has room for. Here every text
that comes from a node, a client or the settings passes through ``printable``: a client that may
name a lock chooses such a text.

The texts of rows and blocks are in the language that is active; documents, and the gauges for
Prometheus, are English.

A new field of a node is an entry in ``node``, with its column in ``STATUS_COLUMNS`` or
``CHECK_COLUMNS``, and one in ``_node_values``, with its key in ``STATUS_KEYS`` or ``CHECK_KEYS``.
"""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from django.utils.translation import gettext, ngettext, pgettext

from django_redlock.core.errors import RedlockError
from django_redlock.core.reasons import (
    Reason,
    Sentence,
    Translate,
    action,
    code_of,
    describe,
    printable,
)
from django_redlock.events import EventKind

from .examination import Examination
from .probe import WORST_FIRST, Finding, Level, NodeReport, NodeState
from .recent import Past
from .survey import (
    ONE_OWNERS,
    UNSETTLED,
    Cell,
    Health,
    HeldLock,
    LockStatus,
    Report,
    Wanted,
    oldest_first,
)
from .tasks import Task, TaskState

EXIT: Final = {Health.OK: 0, Health.DEGRADED: 3, Health.NO_MAJORITY: 4, Health.NOT_YET: 5}
NOTHING: Final = "-"
WELL: Final = "well"  # in place of a level, where there is no finding
LETTERS: Final = string.ascii_uppercase
MINUTE, HOUR, DAY = 60, 3600, 86400
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
    LockStatus.PARTIAL: "odd",
    LockStatus.SPLIT: "odd",
    LockStatus.UNCLEAR: "bad",
    LockStatus.FREE: "calm",
    TaskState.RUNNING: "good",
    TaskState.QUEUED: "calm",
    TaskState.FINISHED: "calm",
    EventKind.ACQUIRED: "good",
    EventKind.REFUSED: "calm",
    EventKind.UNAVAILABLE: "bad",
    EventKind.UNKNOWN: "odd",
    EventKind.RELEASED: "calm",
    EventKind.GIVEN: "calm",
    EventKind.LOST: "bad",
    None: "good",  # no finding
    Level.NOTE: "good",
    Level.WARNING: "odd",
    Level.ERROR: "bad",
}


class Span(NamedTuple):
    """A text and how it looks: a mood, "strong", "quiet" or ""."""

    text: str
    mood: str = ""


class Table(NamedTuple):
    """Rows under their heads; the texts of the columns that are ``folded`` may be long."""

    heads: tuple[str, ...]
    rows: list[list[Span]]
    folded: tuple[int, ...] = (0, 1)


Paragraph: TypeAlias = tuple[Span, ...]  # an empty one separates
Blocks: TypeAlias = Iterator[Paragraph | Table]


def word(text: str) -> str:
    """Translate a word, or a template of ``core.reasons``.

    The context keeps short words such as "on" from those of the site's other apps.
    """
    return pgettext("redlock", text)


def said(what: Reason | Exception | str | None, *, brief: bool = False) -> str:
    """Say a reason, a sentence or why there was an error, in the language that is active."""
    if isinstance(what, RedlockError):
        return printable(what.sentence(word))
    if isinstance(what, Exception):
        text = what.args[0] if what.args else ""
        what = text if isinstance(text, Sentence) else str(what)
    return printable(describe(what, brief=brief, translate=word))


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
    """Make a table of some columns of rows; the mood of a text is beside it."""
    heads = tuple(word(column.replace("_", " ")) for column in columns)
    cells = [
        [Span(row[each] or NOTHING, row.get(f"{each}_mood", "")) for each in columns]
        for row in rows
    ]
    return Table(heads, cells)


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
    """Format seconds as the page's script does, in any language; "" for what never expires."""
    return "" if left is None else f"{left:.1f}"


# -- rows -----------------------------------------------------------------------------------------

STATUS_COLUMNS: Final = ("node", "state", "version", "uptime", "role", "round_trip", "guard")
CHECK_COLUMNS: Final = (
    *("node", "is", "version", "role", "round_trip", "clock", "full_memory", "keeps", "rights"),
)
LOCK_COLUMNS: Final = ("lock", "holder", "held_for", "on", "seconds_left", "is")
TASK_COLUMNS: Final = ("task", "locks", "id", "on", "seconds_left", "is")


def node(node: NodeReport) -> dict[str, str]:
    """Make the texts about a node; "" where it told nothing."""
    state = node.state
    left = 0.0 if node.guard_left in (None, math.inf) else node.guard_left  # inf: not counted yet
    why = said(node.reason or node.warning, brief=True)
    limited = node.maxmemory_policy if node.maxmemory else word("no limit")
    kept = [word("append-only file")] if node.append_only else []
    kept += [word("snapshots")] if node.snapshots else []
    keeps = ", ".join(kept) or word("nothing")
    if node.append_only is node.snapshots is None:
        keeps = ""
    badge = word(state)
    return {
        "node": printable(node.label),
        "state": f"{badge}: {why}" if why else badge,
        "state_mood": "odd" if node.voting and node.warning else MOODS[state],
        "badge": badge,
        "why": why,
        "is": word(node.level or WELL),
        "is_mood": MOODS[node.level],
        "version": printable(node.software),
        "role": printable(node.role),
        "uptime": "" if node.uptime is None else age(node.uptime),
        "round_trip": "" if node.round_trip is None else f"{node.round_trip * 1000:.2f} ms",
        "guard": f"{math.ceil(left)} s" if left else "",  # never 0 s while it has no vote
        "guard_seconds": seconds(left) if left else "",
        "clock": "" if node.clock_ahead is None else f"{node.clock_ahead:+.3f} s",
        "full_memory": "" if node.maxmemory is None else printable(limited or ""),
        "keeps": keeps,
        "rights": {True: word("all"), False: word("too few"), None: ""}[node.rights],
    }


def lock(lock: HeldLock, nodes: Sequence[NodeReport], majority: int) -> dict[str, Any]:
    """Make the texts about a lock. If several owners have keys, letters tell the keys apart."""
    owners = lock.owners
    letters = dict(zip((each.owner for each in owners), LETTERS, strict=False))
    letters = letters if len(owners) > 1 else {}
    labels = [printable(each.label) or word("another client") for each in owners]
    if len(owners) > 1 and lock.kind not in ONE_OWNERS:
        # Nobody holds it: everybody who left a key, and on how many nodes.
        holder = ", ".join(
            gettext("%(holder)s on %(count)s") % {"holder": label, "count": each.on}
            for label, each in zip(labels, owners, strict=True)
        )
    else:
        holder = labels[0] if labels else ""
    return {
        "lock": printable(lock.name),
        "key": lock.name,
        "holder": holder,
        "owners": [
            {"label": printable(each.label), "letter": letters.get(each.owner, ""), "on": each.on}
            for each in owners
        ],
        "fence": "" if lock.fence is None else str(lock.fence),
        "held_for": "" if (held := lock.age) is None else age(held),
        "since": lock.since,
        "is": word(lock.kind),
        "is_mood": MOODS[lock.kind],
        **_left(lock),
        "majority": lock.on >= majority,
        "waited": lock.waited,
        "cells": [
            _cell(i, cell, each, letters)
            for i, (cell, each) in enumerate(zip(lock.cells, nodes, strict=True), start=1)
        ],
    }


def _cell(
    number: int, cell: Cell | None, node: NodeReport, letters: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "node": number,
        "heard": node.heard,
        "found": cell is not None,
        "left": seconds(cell.left) if cell else "",
        "letter": letters.get(cell.owner, "") if cell else "",
    }


def event(past: Past) -> dict[str, Any]:
    """Make the texts about something that happened to a lock; ``when`` is a time."""
    waited = past.kind in (EventKind.ACQUIRED, EventKind.REFUSED, EventKind.UNAVAILABLE)
    after = gettext("a wait of %(seconds)s s") if waited else gettext("a hold of %(seconds)s s")
    return {
        "when": datetime.fromtimestamp(past.when, UTC),
        "what": word(past.kind),
        "what_mood": MOODS[past.kind],
        "after": after % {"seconds": f"{past.seconds:.3f}"},
        "fence": "" if past.fence is None else str(past.fence),
        "why": "" if past.error is None else said(past.error),
    }


def task(task: Task) -> dict[str, Any]:
    """Make the texts about a task."""
    names = [printable(name) for name in task.names]
    return {
        "task": printable(task.task),
        "locks": ", ".join(names),
        "names": names,
        "id": printable(task.task_id),
        "is": word(task.state),
        "is_mood": MOODS[task.state],
        **_left(task),
        "majority": task.state not in {TaskState.PARTIAL, TaskState.UNCLEAR},
    }


def _left(what: HeldLock | Task) -> dict[str, str]:
    """Make the texts that locks and tasks have alike: on how many nodes, and for how long."""
    low, high = seconds(what.lowest), seconds(what.highest)
    if not what.on:
        left = ""
    elif not low:
        left = word("never expires")
    elif not high:
        left = gettext("%(low)s to never") % {"low": low}
    else:
        left = gettext("%(low)s to %(high)s") % {"low": low, "high": high} if low != high else low
    on = gettext("%(on)s of %(of)s") % {"on": what.on, "of": what.of}
    return {"on": on, "seconds_left": left, "low": low, "high": high}


# -- redlock_status -------------------------------------------------------------------------------


def status(found: Report, wanted: Wanted) -> Blocks:
    """Yield the sentence, the nodes, the locks and the tasks of one alias."""
    yield _headline(found)
    yield ()
    nodes = found.unwell if wanted.problems else found.nodes
    if nodes:
        yield _table(STATUS_COLUMNS, map(node, nodes))
    for advice in found.advice:
        yield (Span(said(advice), "quiet"),)
    yield ()
    if found.locks:
        rows = [lock(each, found.nodes, found.majority) for each in found.locks]
        yield _table(LOCK_COLUMNS, rows)
    if found.complete:
        for sentence in wanted.unmet(found):
            yield (Span(said(sentence)),)
    elif not found.locks:
        yield (Span(gettext("Too few nodes vote to know what is held.")),)
    yield from _unread(found, wanted)
    yield from _tasks(found, wanted)


def _unread(found: Report, wanted: Wanted) -> Blocks:
    """Say that there are more locks than were read, if there are."""
    if found.beyond:
        more = ngettext(
            "%(count)s more matches; --limit shows more.",
            "%(count)s more match; --limit shows more.",
            found.beyond,
        )
        yield (Span(more % {"count": found.beyond}, "odd"),)
    elif found.truncated and wanted.filters and not wanted.patterns:
        more = gettext("More locks are held than were looked at; --limit looks at more.")
        yield (Span(more, "odd"),)
    elif found.truncated and not wanted.patterns:
        more = ngettext(
            "More locks are held than this %(count)s; --limit shows more.",
            "More locks are held than these %(count)s; --limit shows more.",
            len(found.locks),
        )
        yield (Span(more % {"count": len(found.locks)}, "odd"),)
    if found.unsearched:
        more = gettext("More names are held than were looked at: others may match, too.")
        yield (Span(more, "odd"),)


def _tasks(found: Report, wanted: Wanted) -> Blocks:
    """Yield the tasks, if there are any; most deployments have none."""
    tasks = found.tasks
    if tasks.tasks:
        yield ()
        yield _table(TASK_COLUMNS, map(task, tasks.tasks))
    elif wanted.finished and found.complete:
        yield (Span(gettext("No such task is queued or running, or has finished.")),)
    if tasks.beyond:
        more = ngettext(
            "%(count)s more task; --limit shows more.",
            "%(count)s more tasks; --limit shows more.",
            tasks.beyond,
        )
        yield (Span(more % {"count": tasks.beyond}, "odd"),)
    if tasks.truncated:
        more = gettext("More names are kept than were looked at: there may be more tasks.")
        yield (Span(more, "odd"),)


def _headline(found: Report | Examination) -> Paragraph:
    head = Span(f"{printable(found.alias)}: ", "strong")
    return head, Span(said(found.summary), MOODS[found.health])


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
    """Return all values of a node, by the keys of both documents."""
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
        "tasks": [
            {
                "task": each.task,
                "id": each.task_id,
                "state": each.state.value,
                "names": list(each.names),
                **_left_values(each),
            }
            for each in found.tasks.tasks
        ],
        "tasks_truncated": found.tasks.truncated or found.tasks.beyond > 0,
    }


def _lock_values(lock: HeldLock, nodes: Sequence[NodeReport]) -> dict[str, Any]:
    return {
        "name": lock.name,
        "kind": lock.kind.value,
        "holder": lock.holder,
        "fence": lock.fence,
        "since": (since := lock.since) and since.isoformat(),
        **_left_values(lock),
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


def _left_values(what: HeldLock | Task) -> dict[str, Any]:
    return {
        "on": what.on,
        "of": what.of,
        "lowest": _rounded(what.lowest),
        "highest": _rounded(what.highest),
    }


# -- redlock_status --prometheus ------------------------------------------------------------------

GAUGES: Final = {
    "redlock_majority": "Nodes that must vote for a lock.",
    "redlock_node_up": "Whether the node replied.",
    "redlock_node_voting": "Whether the node votes.",
    "redlock_node_evicts": "Whether the node may delete locks when its memory is full.",
    "redlock_node_round_trip_seconds": "Seconds of a small command to the node.",
    "redlock_names_held": "Names that are held.",
    "redlock_names_waited_for": "Names that somebody waits for.",
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
    tasks = found.tasks
    kinds = Counter(each.kind for each in found.locks)
    states = Counter(each.state for each in tasks.tasks)
    yield "redlock_names_held", kinds[LockStatus.HELD], {}
    if found.waiting is not None:
        yield "redlock_names_waited_for", found.waiting, {}
    yield "redlock_names_unsettled", sum(kinds[each] for each in UNSETTLED), {}
    for oldest in oldest_first(found.locks)[:1]:
        yield "redlock_names_oldest_hold_seconds", oldest.age or 0.0, {}
    for state in (TaskState.QUEUED, TaskState.RUNNING):
        yield "redlock_tasks", states[state], {"state": state.value}
    yield "redlock_truncated", found.truncated or tasks.truncated or tasks.beyond > 0, {}


# -- redlock_check --------------------------------------------------------------------------------


def check(found: Examination) -> Blocks:
    """Yield the sentence, the nodes and the findings of one alias."""
    yield _headline(found)
    yield ()
    if found.nodes:
        yield _table(CHECK_COLUMNS, map(node, found.nodes))
        yield ()
    rows = _finding_rows(found)
    if rows:
        yield Table((word("node"), word("what to do"), word("is")), rows)
    else:
        yield (Span(gettext("There is nothing to do.")),)


def _finding_rows(found: Examination) -> list[list[Span]]:
    """Make the rows of findings, the worst first; what is said of all nodes is said once."""
    nodes: dict[tuple[Level, str], list[str]] = {}
    for each in found.nodes:
        for finding in each.findings:
            nodes.setdefault((finding.level, _sentence(finding, word)), []).append(each.label)
    for finding in found.findings:
        nodes[finding.level, _sentence(finding, word)] = [word("all nodes")]
    rows = []
    for level, sentence in sorted(nodes, key=lambda key: WORST_FIRST.index(key[0])):
        labels = nodes[level, sentence]
        everywhere = [word("all nodes")] if len(labels) == found.size > 1 else labels
        rows += [
            [Span(printable(label)), Span(sentence), Span(word(level), MOODS[level])]
            for label in everywhere
        ]
    return rows


def _sentence(finding: Finding, translate: Translate) -> str:
    """Say what it is, and what to do."""
    what, do = finding.reason, action(finding.reason)
    both = Sentence("{cause}; {action}", cause=what, action=do) if do else what
    return printable(describe(both, translate=translate))


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
        "text": _sentence(finding, str),
    }
