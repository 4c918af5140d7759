"""Classify what the nodes have of tasks: which wait, run or have finished."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from django_redlock.core.commands import as_text

DIGEST: Final = re.compile("[0-9a-f]{64}").fullmatch  # in place of the name of a task


class TaskState(enum.StrEnum):
    """The state of a task, as far as the nodes that replied can tell."""

    RUNNING = "running"  # a majority has a lock of it
    QUEUED = "queued"  # a majority has its mark: a message waits, or comes back later
    FINISHED = "finished"  # a node has its completion record
    PARTIAL = "partial"  # its mark or its lock is on fewer nodes than a majority
    UNCLEAR = "unclear"  # the nodes that did not reply decide


class Task(NamedTuple):
    r"""A task, and what the nodes have of it.

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

    def matches(self, text: str) -> bool:
        """Return whether the text is the name of the task, its id, or a name that it locks."""
        return text in (self.task, self.task_id, *self.names)


@dataclass(frozen=True, slots=True)
class TaskList:
    """The tasks of an alias at one moment.

    Attributes:
        tasks: running ones first, then queued ones, then finished ones.
        truncated: whether there are more than were read.
        beyond: how many more were read than ``limit`` allowed to show.
    """

    tasks: tuple[Task, ...] = ()
    truncated: bool = False
    beyond: int = 0


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
        task = _of_mark(self.name)[0] if self.kind == b"mark" else as_text(self.task)
        return task, as_text(self.task_id)

    @property
    def locked(self) -> str:
        """The name that the task locks; "" for the name of its run."""
        if self.kind == b"mark":
            return _of_mark(self.name)[1]
        name, task = as_text(self.name), as_text(self.task)
        is_run = name.startswith(f"run:{task}:") or (name.startswith("run:") and DIGEST(task))
        return "" if is_run else name


Cells: TypeAlias = dict[int, float | None]  # by place: seconds left; None: never expires
STATES: Final = {
    b"lock": TaskState.RUNNING,
    b"mark": TaskState.QUEUED,
    b"done": TaskState.FINISHED,
}
ORDER: Final = (*STATES.values(), TaskState.UNCLEAR, TaskState.PARTIAL)


def _of_mark(name: bytes) -> tuple[str, str]:
    """Return the task and what it locks, as ``core.completion.mark_key`` has written them."""
    task, _, locked = as_text(name).partition(":")
    return task.replace("%3A", ":").replace("%25", "%"), locked


def judge(
    of: tuple[str, str], keys: Mapping[Key, Cells], size: int, heard: int, majority: int
) -> Task:
    """Classify a task by all its keys."""
    found = [
        (ORDER.index(state), -len(cells), state, cells)
        for key, cells in keys.items()
        for state in [_state(STATES[key.kind], len(cells), size - heard, majority)]
    ]
    _, _, state, cells = min(found, key=lambda each: each[:2])
    names = sorted({key.locked for key in keys if key.kind != b"done"} - {""})
    left = [each for each in cells.values() if each is not None]
    return Task(
        *of,
        state=state,
        names=tuple(names),
        on=len(cells),
        of=size,
        lowest=min(left, default=None),
        highest=max(left) if left and len(left) == len(cells) else None,
    )


def _state(state: TaskState, on: int, unheard: int, majority: int) -> TaskState:
    if state is TaskState.FINISHED or on >= majority:  # one record is enough
        return state
    return TaskState.UNCLEAR if on + unheard >= majority else TaskState.PARTIAL


def in_order(tasks: Sequence[Task]) -> list[Task]:
    """Sort tasks by state, name and id."""
    return sorted(tasks, key=lambda each: (ORDER.index(each.state), each.task, each.task_id))
