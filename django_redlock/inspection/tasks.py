"""List the tasks that wait, run or have finished, by name and id.

Each node keeps an index of the marks of queued tasks, of held locks, and of the last completion
records. The value of a mark has the task id; the owner label of a lock or a record ends in the
name of the task and its id. A message without a mark is known to the broker alone until it runs.

Decide nothing by this: it is out of date when it is read. Before ``clear_task`` removes a key, each
node compares it with the id of the task once more.
"""

from __future__ import annotations

import enum
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from django_redlock.backend import Backend
from django_redlock.core import completion
from django_redlock.core.commands import Tasks, as_text, seconds_left
from django_redlock.core.protocol import Answer, Request, Steps
from django_redlock.core.quorum import all_heard

from . import index
from .index import BATCH, LIMIT, as_name, check_limit

# By index: the prefix of the keys that it lists, and the kind of their values.
INDEXES: Final = {
    "held": ("lock:", b"lock"),
    "marks": ("mark:", b"mark"),
    "records": ("lock:", b"done"),
}
DIGEST: Final = re.compile("[0-9a-f]{64}").fullmatch  # in place of the name of a task


class TaskState(enum.StrEnum):
    """The state of a task, as far as the nodes that replied can tell."""

    RUNNING = "running"  # a majority has a lock of it
    QUEUED = "queued"  # a majority has its mark: a message waits, or comes back later
    FINISHED = "finished"  # a node has its completion record
    PARTIAL = "partial"  # its mark or its lock is on fewer nodes than a majority
    UNCLEAR = "unclear"  # the nodes that did not reply decide


STATES: Final = {
    b"lock": TaskState.RUNNING,
    b"mark": TaskState.QUEUED,
    b"done": TaskState.FINISHED,
}
ORDER: Final = (*STATES.values(), TaskState.UNCLEAR, TaskState.PARTIAL)


class Task(NamedTuple):
    """A task, and what the nodes have of it.

    Attributes:
        task: its name, or a digest in place of one that is long or unusual.
        task_id: of its message, or a digest.
        state: its state.
        names: what it locks, where that is known: of a finished one it is not. Of several names
            that a queued one will lock, the first, the number of the others and a digest.
        on, of: how many nodes have the mark, lock or record; how many there are.
        lowest, highest: seconds left on those nodes; None: it never expires.
    """

    task: str
    task_id: str
    state: TaskState
    names: tuple[str, ...]
    on: int
    of: int
    lowest: float | None
    highest: float | None

    @property
    def texts(self) -> tuple[str, ...]:
        """By which it is found: its name, its id, and the names that it locks."""
        return (self.task, self.task_id, *self.names)


@dataclass(frozen=True, slots=True)
class TaskList:
    """The tasks of an alias at one moment.

    Attributes:
        tasks: running ones first, then queued ones, then finished ones.
        truncated: whether there are more than were read.
        beyond: how many more were read than ``limit`` allowed to show.
        replied: how many nodes replied, to the end.
    """

    tasks: tuple[Task, ...] = ()
    truncated: bool = False
    beyond: int = 0
    replied: int = 0


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
        to: positions of the nodes to ask; those that replied to a survey.
        finished: list the tasks as well that have a completion record, of which a node lists the
            last 10,000.
        limit: list at most so many.
        matching: list only those for which this is true.

    Raises:
        ValueError: a limit that is not from 1 to 10,000.
    """
    check_limit(limit)
    return backend.run(_Reader(backend, to).tasks(limit, matching, finished=finished))


def clear_task(backend: Backend, task_id: str) -> int:
    """Remove the marks and the completion records of a task; what its run holds stays.

    Then another message with its arguments is no duplicate, and a copy of its message runs again.

    Returns:
        How many nodes have replied.
    """
    return backend.run(_Reader(backend, backend.policy.everyone).clear(task_id))


class Key(NamedTuple):
    """A key about a task, with what its value tells.

    Attributes:
        name: the key without the prefix; that of a mark begins with the task.
        kind: b"lock", b"mark" or b"done".
        task: b"" in a mark.
    """

    name: bytes
    kind: bytes
    task: bytes
    task_id: bytes

    @property
    def of(self) -> tuple[str, str]:
        """The name of the task and the task id."""
        task = self._mark()[0] if self.kind == b"mark" else as_text(self.task)
        return task, as_text(self.task_id)

    @property
    def locked(self) -> str:
        """The name that the task locks; "" for the name of its run."""
        if self.kind == b"mark":
            return self._mark()[1]
        name, task = as_text(self.name), as_text(self.task)
        is_run = name.startswith(f"run:{task}:") or (name.startswith("run:") and DIGEST(task))
        return "" if is_run else name

    def _mark(self) -> tuple[str, str]:
        """Return the task and what it locks, as ``core.completion.mark_key`` has written them."""
        task, _, locked = as_text(self.name).partition(":")
        return task.replace("%3A", ":").replace("%25", "%"), locked


Cells: TypeAlias = dict[int, float | None]  # by node: seconds left; None: never expires


class _Reader:
    """Collect what the nodes have of tasks: by key, what each node says how long it lasts."""

    def __init__(self, backend: Backend, to: frozenset[int]) -> None:
        self._backend = backend
        self._to = to
        self._table: dict[Key, Cells] = {}

    def tasks(
        self, limit: int, matching: Callable[[Task], bool] | None, *, finished: bool
    ) -> Steps[TaskList]:
        pages = math.ceil(limit / index.PAGE) if matching is None else index.PAGES
        truncated = False
        for which in INDEXES if finished else ("held", "marks"):
            truncated |= not (yield from self._read(which, pages))
        found = [task for task in self._judged() if not matching or matching(task)]
        shown = {(task.task, task.task_id) for task in found[:limit]}
        for which in ("held", "marks"):
            yield from self._complete(which, shown, finished=finished)
        beyond = max(0, len(found) - limit)
        return TaskList(tuple(self._judged(shown)), truncated, beyond, len(self._to))

    def clear(self, task_id: str) -> Steps[int]:
        """Remove the marks and the records that have this id, on all nodes.

        The indexes are read for this, whatever was shown before: somebody may have confirmed it
        minutes after the look, and what has come since is removed as well.
        """
        for which in INDEXES:
            yield from self._read(which, index.PAGES)
        policy, replied = self._backend.policy, len(self._to)
        for key in self._table:
            if as_text(key.task_id) != task_id or key.kind == b"lock":
                continue
            prefix = self._prefix("marks" if key.kind == b"mark" else "records")
            name = f"{prefix}{as_text(key.name)}"
            # The operator reads how many nodes have replied, so each has the whole node timeout.
            votes = yield from completion.remove(policy, name, task_id=task_id, hear_all=True)
            heard = sum(vote.answer is not Answer.UNKNOWN for vote in votes)
            replied = min(replied, heard)
        return replied

    def _read(self, which: str, pages: int) -> Steps[bool]:
        """Enter an index; return whether it was read to its end."""
        policy, prefix, kind = self._backend.policy, self._prefix(which), INDEXES[which][1]

        def ask(size: int, begin: dict[int, int]) -> Request:
            to, key = frozenset(begin), f"{policy.prefix}{which}"
            return Tasks(policy.nonce(), all_heard, key, prefix, size, to=to, each=begin)

        def take(i: int, rows: Sequence[Any]) -> None:
            # In the reply of a node that is late, the index of held names has records for a moment.
            self._enter(i, (row for row in rows if row[1] == kind))

        done = yield from index.read(ask, take, self._to, pages)
        self._to -= frozenset(done.silent)
        return done.complete

    def _complete(self, which: str, shown: set[tuple[str, str]], *, finished: bool) -> Steps[None]:
        """Look up on all nodes what not every one has listed, for tasks that are to be shown."""
        marks = which == "marks"
        names = {
            key.name: as_name(key.name)
            for key, cells in self._table.items()
            if key.of in shown and len(cells) < len(self._to) and (key.kind == b"mark") == marks
        }
        asked = [name for name, text in names.items() if text]
        for start in range(0, len(asked), BATCH):
            batch = asked[start : start + BATCH]
            texts = [names[name] for name in batch]
            policy, prefix = self._backend.policy, self._prefix(which)
            held = f"{policy.prefix}held"
            votes = yield Tasks(policy.nonce(), all_heard, held, prefix, names=texts, to=self._to)
            self._to = index.heard(votes)
            for key in self._table:
                if key.name in batch and (key.kind == b"mark") == marks:
                    self._table[key] = {}
            for i in self._to:
                rows: Sequence[Any] = votes[i].result.rows
                self._enter(i, (row for row in rows if finished or row[1] != b"done"))
        self._table = {key: cells for key, cells in self._table.items() if cells}

    def _prefix(self, which: str) -> str:
        return f"{self._backend.policy.prefix}{INDEXES[which][0]}"

    def _enter(self, i: int, rows: Iterable[Sequence[Any]]) -> None:
        for *key, left in rows:
            self._table.setdefault(Key(*key), {})[i] = seconds_left(left)

    def _judged(self, shown: set[tuple[str, str]] | None = None) -> list[Task]:
        """Return what was found as tasks, all or those to be shown: by state, name and id."""
        groups: dict[tuple[str, str], dict[Key, Cells]] = defaultdict(dict)
        for key, cells in self._table.items():
            if shown is None or key.of in shown:
                groups[key.of][key] = cells
        size, majority = self._backend.policy.size, self._backend.policy.majority
        unheard = size - len(self._to)
        tasks = [judge(of, keys, size, unheard, majority) for of, keys in groups.items()]
        return sorted(tasks, key=lambda each: (ORDER.index(each.state), each.task, each.task_id))


def judge(
    of: tuple[str, str], keys: Mapping[Key, Cells], size: int, unheard: int, majority: int
) -> Task:
    """Classify a task by all its keys; the one that tells most decides."""

    def state_of(key: Key, on: int) -> TaskState:
        state = STATES[key.kind]
        if state is TaskState.FINISHED or on >= majority:  # one record is enough
            return state
        return TaskState.UNCLEAR if on + unheard >= majority else TaskState.PARTIAL

    found = [(state_of(key, len(cells)), cells) for key, cells in keys.items()]
    state, cells = min(found, key=lambda each: (ORDER.index(each[0]), -len(each[1])))
    left = [each for each in cells.values() if each is not None]
    return Task(
        *of,
        state=state,
        names=tuple(sorted({key.locked for key in keys if key.kind != b"done"} - {""})),
        on=len(cells),
        of=size,
        lowest=min(left, default=None),
        highest=max(left) if left and len(left) == len(cells) else None,
    )
