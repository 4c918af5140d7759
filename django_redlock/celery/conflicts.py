"""Let Celery log an ordinary conflict as one line, without a traceback.

Celery does so for the errors in ``Task.throws``. ``LockTaken`` itself cannot be there: one that the
body of the task raises, of another lock, is a fault like any other.
"""

from __future__ import annotations

from typing import Any

from celery import Task

from django_redlock.core.errors import LockTaken


class _OfTheKey(type):
    def __instancecheck__(cls, error: object) -> bool:
        return isinstance(error, LockTaken) and "conflict" in vars(error)


class Conflict(metaclass=_OfTheKey):
    """What ``isinstance`` finds in a refusal that ``expect_conflict`` was told of."""


def expect_conflict(task: Task, refusal: LockTaken) -> None:
    """Let Celery expect this error of the task, as those in ``throws``."""
    vars(refusal)["conflict"] = True
    throws: Any = task.throws
    expected = throws if isinstance(throws, tuple) else (throws,)
    if Conflict not in expected:
        task.throws = (*expected, Conflict)
