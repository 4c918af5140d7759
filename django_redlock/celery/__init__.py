"""``@locked_task`` for Celery."""

from __future__ import annotations

from .decorator import LockedTask, Skipped, locked_task

__all__ = ["LockedTask", "Skipped", "locked_task"]
