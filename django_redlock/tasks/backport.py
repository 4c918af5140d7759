"""The names of ``django.tasks``, and their twins in its backport: the package ``django_tasks``.

Backends and workers that are written for the backport make tasks and results of its classes, and
send its signals, under Django 6 as well. They have the same attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final


def either(name: str) -> tuple[Any, ...]:
    """Return what has this name in ``django.tasks``, and in the backport if that is installed."""
    module, _, attribute = name.rpartition(".")
    found = [getattr(import_module(f"django.tasks.{module}"), attribute)]
    with suppress(ImportError):
        found.append(getattr(import_module(f"django_tasks.{module}"), attribute))
    return tuple(found)


BACKENDS: Final = either("backends.base.BaseTaskBackend")
CONTEXTS: Final = either("base.TaskContext")
DUMMY: Final = either("backends.dummy.DummyBackend")
IMMEDIATE: Final = either("backends.immediate.ImmediateBackend")
NOT_THERE: Final = either("exceptions.TaskResultDoesNotExist")
RESULTS: Final = either("base.TaskResult")


def function_of(task: Any) -> Callable[..., Any] | None:
    """Return the function of a task, of whatever class; None: it is no task."""
    is_task = hasattr(task, "module_path") and hasattr(task, "enqueue")
    return getattr(task, "func", None) if is_task else None
