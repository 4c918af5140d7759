"""Survey the nodes: what is held, by which holders, which tasks wait and run, what is wrong."""

from __future__ import annotations

from .results import Health, HeldLock, LockStatus, NodeState, Owner, Survey, age, shown
from .state import LockState
from .survey import LIMIT, MOST, survey
from .task_list import Task, TaskList, TaskState
from .tasks import list_tasks

Kind = LockStatus  # its name in earlier versions

__all__ = [
    "LIMIT",
    "MOST",
    "Health",
    "HeldLock",
    "Kind",
    "LockState",
    "LockStatus",
    "NodeState",
    "Owner",
    "Survey",
    "Task",
    "TaskList",
    "TaskState",
    "age",
    "list_tasks",
    "shown",
    "survey",
]
