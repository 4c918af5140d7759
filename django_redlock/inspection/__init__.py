"""What is held, and what is wrong with the nodes: the one way from them to a person's eyes.

index         reads what the nodes list of names, page by page
tasks         which tasks wait, run or have finished
probe         the record of a node; asks one all that can be asked
survey        asks all nodes what is held: a report, or the state of one lock
examination   probes all nodes, and judges a deployment
patterns      what a search means
recent        what happened to locks in this process
rows          texts, tables and JSON of all that, for every face
"""

from __future__ import annotations

from .index import LIMIT, MOST
from .probe import NodeReport, NodeState
from .survey import Health, HeldLock, LockState, LockStatus, Report, survey
from .tasks import Task, TaskList, TaskState, list_tasks

__all__ = [
    "LIMIT",
    "MOST",
    "Health",
    "HeldLock",
    "LockState",
    "LockStatus",
    "NodeReport",
    "NodeState",
    "Report",
    "Task",
    "TaskList",
    "TaskState",
    "list_tasks",
    "survey",
]
