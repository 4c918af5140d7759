"""What a task is locked by, kept on its ``run`` for those who send its messages."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Task

    from django_redlock.locks.lock import Lock
    from django_redlock.locks.template import LockTemplate

    from .naming import Naming

ATTRIBUTE: Final = "__redlock__"  # of the decorated function; wrappers around it copy it


@dataclass(frozen=True, slots=True)
class Plan:
    """How the calls of a function are locked."""

    naming: Naming
    template: LockTemplate
    options: Options

    def lock(self, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Lock:
        """Return the lock of a message with these arguments.

        Raises:
            TypeError: they do not fit the function, or no key can be made of them.
            ValueError: they do not fill the key.
        """
        if _has_self(type(task)):
            args = (task, *args)
        return self.naming.lock(self.template, task, args, kwargs)


def _has_self(kind: type[Task]) -> bool:
    """Return True if the task itself is the first argument of ``run``."""
    return not isinstance(inspect.getattr_static(kind, "run"), staticmethod)


def plan_of(run: object) -> Plan | None:
    """Return how a function, or a task's ``run``, is locked; None: it is not."""
    found = getattr(run, ATTRIBUTE, None)
    return found if isinstance(found, Plan) else None
