"""``@locked_task`` for Django's own tasks, and a backend that enqueues no task twice.

Nothing is imported before one of the names is used. Celery's ``autodiscover_tasks`` imports the
module ``tasks`` of each app, so this one must be importable in a project with Django 5.2.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from django_redlock.core.errors import DuplicateTask
    from django_redlock.work.run import Skipped

    from .backend import UniqueBackend
    from .publishing import unmark
    from .run import Deferred
    from .task import locked_task

__all__ = ["Deferred", "DuplicateTask", "Skipped", "UniqueBackend", "locked_task", "unmark"]
_HOMES: Final = {
    "Deferred": ".run",
    "DuplicateTask": "django_redlock.core.errors",
    "Skipped": "django_redlock.work.run",
    "UniqueBackend": ".backend",
    "locked_task": ".task",
    "unmark": ".publishing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("django.tasks") is None:
        msg = f"{__name__} needs django.tasks: upgrade to Django 6"
        raise ModuleNotFoundError(msg, name="django.tasks")
    return getattr(import_module(_HOMES[name], __name__), name)
