"""Which reports a visitor has asked for, and what became of them."""

import uuid
from datetime import datetime
from typing import NamedTuple

from celery import states
from django.http import HttpRequest
from django.utils import timezone

from .models import Report, Show
from .tasks import build_report

LAST = 3  # of a show that are shown
MOST = 12  # of all shows that are kept


class Asked(NamedTuple):
    """A report that was asked for: when, in which state it is, and what to say of that."""

    at: datetime
    state: str  # "pending", "skipped", "built" or "failed"
    words: str


def note(request: HttpRequest, show: Show) -> str:
    """Write down that this visitor asks for a report; return the id for its message."""
    task_id = str(uuid.uuid4())
    noted = [*request.session.get("reports", []), [show.pk, task_id, timezone.now().isoformat()]]
    request.session["reports"] = noted[-MOST:]
    return task_id


def asked_for(request: HttpRequest, show: Show) -> list[Asked]:
    """Return the last reports of a show that this visitor has asked for, the newest first."""
    mine = [each[1:] for each in request.session.get("reports", []) if each[0] == show.pk]
    return [Asked(datetime.fromisoformat(at), *_found(task)) for task, at in mine[: -LAST - 1 : -1]]


def _found(task_id: str) -> tuple[str, str]:
    told = build_report.AsyncResult(task_id)
    state = told.state  # first: once it is final, all of the rest is there
    if state not in states.READY_STATES:
        return "pending", "not built yet"
    if state != states.SUCCESS:
        return "failed", "failed"
    if isinstance(told.result, dict):  # what a task under a lock returns if it is skipped
        return "skipped", "skipped: another one was being built"
    report = Report.objects.filter(pk=told.result).first()
    count = f"{report.orders} order{'s' * (report.orders != 1)}" if report else "no orders"
    return "built", f"built: it counts {count}"
