"""``@locked_task`` for Celery."""

from __future__ import annotations

from django_redlock.core.errors import DuplicateTask
from django_redlock.extras import needs
from django_redlock.work.run import Skipped

with needs(__name__, "celery", "django-redlock[celery]"):
    from . import checks  # noqa: F401 - a worker logs them
    from .task import LockedTask, locked_task

__all__ = ["DuplicateTask", "LockedTask", "Skipped", "locked_task"]
