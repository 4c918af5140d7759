"""How long a message may be in the queue: that is how long its mark lasts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from numbers import Real
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

from django_redlock.core.policy import LONGEST

if TYPE_CHECKING:
    from celery import Task


def seconds_queued(task: Task, options: Mapping[str, Any], queue_ttl: float) -> float:
    """Return the seconds after which no worker will begin to run a message.

    That is when it expires; without ``expires``, ``queue_ttl`` seconds after its ETA.

    Args:
        options: of ``apply_async``; the task's own count where they say nothing.
    """
    expires = options.get("expires", task.expires)
    if expires is not None:
        return min(_seconds_until(task, expires), LONGEST)
    begin = options.get("countdown") or _seconds_until(task, options.get("eta"))
    return min(max(0.0, begin) + queue_ttl, LONGEST)


def _seconds_until(task: Task, when: Any) -> float:
    """Return the seconds until a time, as Celery reads it: a number, a text or a ``datetime``."""
    if isinstance(when, Real):
        return float(when)
    when = maybe_iso8601(when)
    if not isinstance(when, datetime):
        return 0.0
    aware: datetime = maybe_make_aware(when, task.app.timezone)
    return (aware - datetime.now(UTC)).total_seconds()
