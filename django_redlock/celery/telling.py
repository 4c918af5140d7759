"""Tell what becomes of the messages of tasks: signals and metrics hear it from ``events``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_redlock import events
from django_redlock.events import TaskEvent, TaskOutcome

if TYPE_CHECKING:
    from celery import Task

    from django_redlock.core.errors import RedlockError


def tell(
    outcome: TaskOutcome,
    task: Task,
    task_id: str | None,
    *,
    alias: str,
    name: str | tuple[str, ...],
    other_id: str = "",
    seconds: float = 0.0,
    error: RedlockError | None = None,
) -> None:
    """Tell what became of a message, when it has; see ``TaskEvent``.

    What a listener raises is logged, and harms neither the message nor a lock or a mark.
    """
    if events.wanted_of_tasks(outcome):
        told = task.name, task_id or "", other_id, seconds, error
        events.tell_of_task(TaskEvent(outcome, alias, name, *told))
