"""List the tasks that wait, run or have finished, by name and id.

Each node keeps an index of the marks of queued tasks, of held locks, and of the last completion
records. The value of a mark has the task id; the owner label of a lock or a record ends in the
name of the task and its id. A message without a mark is known to the broker alone until it runs.

Decide nothing by this: it is out of date when it is read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from django_redlock.core.commands import Tasks, seconds_left
from django_redlock.core.names import LONGEST
from django_redlock.core.quorum import all_heard

from . import index, polling
from .lookup import BATCH
from .survey import LIMIT, check_limit
from .task_list import Cells, Key, Task, TaskList, in_order, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Request, Steps

PREFIXES: Final = {"held": "lock:", "marks": "mark:", "records": "lock:"}  # of the keys, by index


def list_tasks(
    backend: Backend,
    to: frozenset[int],
    *,
    finished: bool = False,
    limit: int = LIMIT,
    matching: Callable[[Task], bool] | None = None,
) -> TaskList:
    """Ask nodes which tasks wait and run.

    Without ``matching`` each index is read as far as ``limit`` tells, else to its end or its first
    100,000 names. That takes a request for each 1,000 names, to all nodes at once.

    Args:
        backend: that of the alias; see ``conf.backend``.
        to: places of the nodes to ask; those that replied to a survey.
        finished: list the tasks as well that have a completion record, of which a node lists the
            last 10,000.
        limit: list at most so many.
        matching: list only those for which this is true.

    Raises:
        ValueError: a limit that is not from 1 to 10,000.
    """
    check_limit(limit)
    return backend.run(_Reader(backend, to).tasks(limit, matching, finished=finished))


class _Reader:
    """Collect what the nodes have of tasks: by key, what each node says how long it lasts."""

    def __init__(self, backend: Backend, to: frozenset[int]) -> None:
        self._backend = backend
        self._to = to
        self._table: dict[Key, Cells] = {}

    def tasks(
        self, limit: int, matching: Callable[[Task], bool] | None, *, finished: bool
    ) -> Steps[TaskList]:
        indexes = ["held", "marks", "records"] if finished else ["held", "marks"]
        pages = math.ceil(limit / index.PAGE) if matching is None else index.PAGES
        truncated = False
        for each in indexes:
            truncated |= not (yield from self._read(each, pages))
        found = [task for task in self._judged(self._groups()) if not matching or matching(task)]
        shown = {(task.task, task.task_id) for task in in_order(found)[:limit]}
        yield from self._complete(shown, finished=finished)
        groups = {of: keys for of, keys in self._groups().items() if of in shown}
        tasks = tuple(in_order(self._judged(groups)))
        return TaskList(tasks, truncated, max(0, len(found) - limit))

    def _read(self, which: str, pages: int) -> Steps[bool]:
        """Enter an index; return whether it was read to its end."""
        prefix, policy = self._prefix(which), self._backend.policy

        def ask(size: int, begin: dict[int, int]) -> Request:
            to, key = frozenset(begin), f"{policy.prefix}{which}"
            return Tasks(policy.nonce(), all_heard, key, prefix, size, to=to, each=begin)

        # The index of held names has records for a moment, in the reply of a node that is late.
        kinds = {"held": b"lock", "marks": b"mark", "records": b"done"}

        def take(place: int, rows: Sequence[Any]) -> None:
            self._enter(place, (row for row in rows if row[1] == kinds[which]))

        done = yield from index.read(ask, take, self._to, pages)
        self._to -= frozenset(done.lost)
        return done.complete

    def _complete(self, shown: set[tuple[str, str]], *, finished: bool) -> Steps[None]:
        """Look up on all nodes what not every one has listed, for tasks that are to be shown."""
        for which in ("held", "marks"):
            marks = which == "marks"
            names = {
                key.name: None
                for key, cells in self._table.items()
                if key.of in shown and len(cells) < len(self._to) and _can_be_asked(key.name)
                if (key.kind == b"mark") == marks
            }
            known = list(names)
            for start in range(0, len(known), BATCH):
                yield from self._look_up(which, known[start : start + BATCH], finished=finished)
        self._table = {key: cells for key, cells in self._table.items() if cells}

    def _look_up(self, which: str, names: list[bytes], *, finished: bool) -> Steps[None]:
        policy, prefix = self._backend.policy, self._prefix(which)
        texts = [name.decode() for name in names]
        held = f"{policy.prefix}held"
        votes = yield Tasks(policy.nonce(), all_heard, held, prefix, names=texts, to=self._to)
        self._to = polling.heard(votes)
        marks, asked = which == "marks", frozenset(names)
        for key in self._table:
            if key.name in asked and (key.kind == b"mark") == marks:
                self._table[key] = {}
        for place in self._to:
            rows: Sequence[Any] = votes[place].result.rows
            self._enter(place, (row for row in rows if finished or row[1] != b"done"))

    def _prefix(self, which: str) -> str:
        return f"{self._backend.policy.prefix}{PREFIXES[which]}"

    def _enter(self, place: int, rows: Iterable[Sequence[Any]]) -> None:
        for *key, left in rows:
            self._table.setdefault(Key(*key), {})[place] = seconds_left(left)

    def _groups(self) -> dict[tuple[str, str], dict[Key, Cells]]:
        """Return the keys of each task."""
        groups: dict[tuple[str, str], dict[Key, Cells]] = defaultdict(dict)
        for key, cells in self._table.items():
            groups[key.of][key] = cells
        return groups

    def _judged(self, groups: Mapping[tuple[str, str], Mapping[Key, Cells]]) -> list[Task]:
        policy, heard = self._backend.policy, len(self._to)
        return [judge(of, keys, policy.size, heard, policy.majority) for of, keys in groups.items()]


def _can_be_asked(name: bytes) -> bool:
    """Return whether this package may have written the name; those of others are not looked up."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return len(name) <= LONGEST


__all__ = ["list_tasks"]
