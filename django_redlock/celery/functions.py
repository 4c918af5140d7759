"""What ``locked_task`` decorates, and which task a call of it runs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from celery import Task
from celery._state import get_current_task
from celery.local import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable


def check_function(function: Any) -> None:
    """Check that this can be decorated.

    Raises:
        TypeError: it is a task already, or not a plain function; the text says what to do.
    """
    kind = type(function)
    if issubclass(kind, Proxy | Task):
        msg = (
            "@locked_task is above @shared_task or @app.task, where there is no function to lock "
            "any more. Write it below:\n\n    @shared_task\n    @locked_task(...)\n    def …"
        )
        raise TypeError(msg)
    if issubclass(kind, type) or not callable(function):
        msg = f"@locked_task decorates a function, not {function!r}; of a task class, its 'run'"
        raise TypeError(msg)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        msg = f"{function.__qualname__} is a generator function: nothing would run under the lock"
        raise TypeError(msg)
    if inspect.iscoroutinefunction(function):
        msg = f"{function.__qualname__} is a coroutine function; @locked_task locks blocking code"
        raise TypeError(msg)


def task_of(function: Callable[..., Any], args: tuple[Any, ...]) -> Task | None:
    """Return the task whose body this call is; None: the function was called directly."""
    bound = bool(args) and issubclass(type(args[0]), Task)
    task = args[0] if bound else get_current_task()
    if task is None or inspect.unwrap(task.run) is not inspect.unwrap(function):
        return None
    return task
