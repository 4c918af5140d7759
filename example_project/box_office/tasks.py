import os
import signal
import time
from typing import Any

from celery import shared_task
from django.db.models import Count, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from django_redlock import LeaseLost, assert_locked
from django_redlock.celery import LockedTask, locked_task

from . import outside
from .models import Order, Report, Run

REHEARSAL_TTL = 3.0  # seconds for which the lock outlives a process that is killed
REHEARSAL_SECONDS = 8.0  # time enough to kill its process
LONG_SECONDS = 120.0  # time enough to log in, and to take its lock away


@shared_task  # type: ignore[untyped-decorator] # Celery ships no types
@locked_task("report:{show_id}")
def build_report(show_id: int) -> int:
    """Count what was sold. A second message that comes while this runs is skipped."""
    lease = assert_locked(f"report:{show_id}")
    report = Report.objects.create(show_id=show_id, fence=lease.fence)
    outside.compute()
    sold = Order.objects.filter(show_id=show_id).aggregate(
        orders=Count("pk"), seats=Coalesce(Sum("seats"), 0)
    )
    Report.objects.filter(pk=report.pk).update(**sold, ended=timezone.now())
    return report.pk


@shared_task(bind=True, base=LockedTask)  # type: ignore[untyped-decorator]
@locked_task("posters:{show_id}", mode="until_finished", on_duplicate="existing")
def print_posters(self: Any, show_id: int) -> str:
    """Print posters. Until this has ended, no second message for the show is sent."""
    run = _begin(self, show_id, assert_locked(f"posters:{show_id}").fence)
    outside.print_posters()
    return _end(run, "posters printed")


@shared_task(  # type: ignore[untyped-decorator]
    bind=True, base=LockedTask, acks_late=True, reject_on_worker_lost=True
)
@locked_task(
    "rehearsal:{show_id}",
    mode="until_finished",
    on_conflict="retry",
    ttl=REHEARSAL_TTL,
    wait=REHEARSAL_TTL + 1,  # back while the lock of a killed process expires: it begins then
)
def rehearse(self: Any, show_id: int, seconds: float = REHEARSAL_SECONDS) -> str:
    """Rehearse. When the process is killed, another one takes the message over."""
    lease = assert_locked(f"rehearsal:{show_id}")
    run = _begin(self, show_id, lease.fence)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        try:
            lease.ensure()
        except LeaseLost as lost:  # somebody has taken the lock away, for example
            return _end(run, f"stopped, its lock is lost ({lost.code})")
        if Run.objects.filter(pk=run.pk, killed__isnull=False).exists():
            os.kill(os.getpid(), signal.SIGKILL)  # nothing is released, as when memory runs out
    return _end(run, "rehearsed")


def _begin(task: Any, show_id: int, fence: int) -> Run:
    return Run.objects.create(
        show_id=show_id,
        task=task.name,
        task_id=task.request.id,
        pid=os.getpid(),
        fence=fence,
    )


def _end(run: Run, what: str) -> str:
    Run.objects.filter(pk=run.pk).update(ended=timezone.now())
    return f"{what} by process {run.pid}"
