"""Make the locks of a function's calls, with names that are filled from the arguments."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from django_redlock.core.names import check_fields, check_names

from .arguments import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Task

    from django_redlock.locks.lock import Lock
    from django_redlock.locks.template import LockTemplate


class Naming:
    """Make the locks of a function's calls."""

    def __init__(self, function: Callable[..., Any], key: str | Sequence[str] | None) -> None:
        self._function = function
        self._name = f"{function.__module__}.{getattr(function, '__name__', '')}"
        self._names = None if key is None else check_names(key)
        self._signature = inspect.signature(function)
        self._check(without="self")

    def _check(self, without: str) -> None:
        """Check the fields of the names; the parameter ``without``, the task, is no argument."""
        if self._names is not None:
            parameters = self._signature.parameters
            left = [each for name, each in parameters.items() if name != without]
            check_fields(self._names, self._signature.replace(parameters=left))

    def lock(
        self,
        template: LockTemplate,
        task: Task | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Lock:
        """Return the lock of one call."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if args and args[0] is task:  # a method of the task, or one with bind=True
            first = next(iter(self._signature.parameters))
            del arguments[first]
            self._check(without=first)
        if self._names is not None:
            return template(self._names).filled(arguments, self._function)
        parts = {"task": self._name if task is None else task.name, "digest": digest(arguments)}
        return template("task:{task}:{digest}").filled(parts, self._function)
