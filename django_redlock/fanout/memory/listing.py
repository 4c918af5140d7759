"""List what a node in memory has, as the Lua does on a real node, without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from .values import DONE, MARK, NEXT, TASK, VALUE, digest, label_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django_redlock.core.commands import Index, Survey, Tasks

LONGEST_ID: Final = 64  # characters
MOST_RECORDS: Final = 10_000  # in the index of records


class Node(Protocol):
    """The part of a node in memory that is listed."""

    clock: Callable[[], float]
    held: dict[str, float]
    marks: dict[str, float]
    records: dict[str, float]

    def get(self, key: str) -> str | None:
        """Return the value of a key that has not expired."""

    def pttl(self, key: str) -> int:
        """Return the milliseconds left; -1 without expiry, -2 without key."""


def latest(records: Mapping[str, float], now: int) -> dict[str, float]:
    """Return an index of records without those that have expired, and without too many."""
    left = sorted((due, name) for name, due in records.items() if due > now)
    return {name: due for due, name in left[-MOST_RECORDS:]}


def survey(node: Node, ask: Survey) -> list[object]:
    """Describe held locks."""
    names = ask.names
    if not names:
        due = sorted((due, name) for name, due in node.held.items() if due >= node.clock())
        names = [name for _, name in due[: ask.limit]]
    found = []
    for name in names:
        value = node.get(f"{ask.prefix}{name}")
        if value is not None and value != NEXT and not DONE.fullmatch(value):
            match = VALUE.fullmatch(value)
            owner, number = match.groups()[:2] if match else (value, "")
            label = label_in(value)
            told = digest(owner)
            left = node.pttl(f"{ask.prefix}{name}")
            found.append([name.encode(), told.encode(), left, number.encode(), label.encode()])
    return ["FOUND", found, len(names)]


def index(node: Node, ask: Index, start: int) -> list[object]:
    """List one page of the index of held names."""
    names, after = _page(node, node.held, ask.most, start)
    return ["LISTED", [name.encode() for name in names], after]


def tasks(node: Node, ask: Tasks, start: int) -> list[object]:
    """List tasks: a page of an index, or those of some names."""
    prefix, names, after = ask.prefix, ask.names, 0
    kind = prefix.split(":")[-2][-4:]
    if ask.most:
        by_key = {"held": node.held, "marks": node.marks, "records": node.records}
        entries = next(each for ending, each in by_key.items() if ask.index.endswith(ending))
        names, after = _page(node, entries, ask.most, start)
    rows = []
    for name in names:
        found = _task(kind, node.get(f"{prefix}{name}") or "")
        if found and len(found[2]) <= LONGEST_ID:
            told = [each.encode() for each in (name, *found)]
            rows.append([*told, node.pttl(f"{prefix}{name}")])
    return ["TASKS", rows, after]


def _page(node: Node, entries: Mapping[str, float], most: int, start: int) -> tuple[list[str], int]:
    """Return the names that are due at ``start`` or later, and where the next page begins."""
    start = max(int(node.clock()), start)
    due = sorted((due, name) for name, due in entries.items() if due >= start)
    after = int(due[most][0]) if len(due) > most else 0
    return [name for _, name in due[:most]], after


def _task(kind: str, value: str) -> tuple[str, str, str] | None:
    """Return the kind of a value, its task and its id; None: it is none."""
    if kind == "mark":
        match = MARK.fullmatch(value)
        return (kind, "", match[2]) if match else None
    match = VALUE.fullmatch(value)
    done = None if match else DONE.fullmatch(value)
    either = match or done
    named = TASK.search(either["label"]) if either else None
    return ("done" if done else "lock", named[1], named[2]) if named else None
