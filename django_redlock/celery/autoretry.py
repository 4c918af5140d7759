"""Let Celery send the retries of ``autoretry_for`` while the lock is held.

Celery wraps ``run`` when the task is registered, outside of ``@locked_task``. There the lock and
the mark are gone before the retry has its own mark, and a message that is sent in between is no
duplicate. So Celery's own function wraps the body of such a task once more, inside of the lock.
What ``@locked_task`` raises itself, as ``LockTaken``, meets the outer wrapper as before. A
``Retry`` passes through it, and so does an error that has used up its retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.app.autoretry import add_autoretry_behaviour

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

WRAPPED = "_orig_run"  # the attribute of a task that has ``autoretry_for``


def retried_inside(task: Task, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the body, with the retries of the task's ``autoretry_for`` if it has any."""
    if not hasattr(task, WRAPPED):
        return body
    inside = _Inside(task, body)
    add_autoretry_behaviour(inside)
    return inside.run


class _Inside:
    """A task as Celery's function wants it, whose ``run`` is the body."""

    run: Callable[..., Any]

    def __init__(self, task: Task, body: Callable[..., Any]) -> None:
        vars(self).update(task=task, run=body)

    def __getattr__(self, name: str) -> Any:
        if name == WRAPPED:
            raise AttributeError(name)
        return getattr(self.task, name)

    def __delattr__(self, name: str) -> None:
        delattr(self.task, name)
