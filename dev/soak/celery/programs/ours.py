"""This package: a third of the keys in each mode."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any

from celery import Task
from django.conf import settings

from dev.soak.celery.history import MODES
from django_redlock import current_lease
from django_redlock.celery import LockedTask, locked_task
from django_redlock.celery.publishing import history
from django_redlock.events import Event, EventKind, subscribe
from django_redlock.leases.lease import Lease
from django_redlock.work import run
from django_redlock.work.marks import Mark

from . import bodies

settings.configure(REDLOCK={"default": json.loads(os.environ["SOAK_LOCKS"])})
BROKEN = os.environ.get("SOAK_BROKEN", "").split(",")
app = bodies.make_app("dev.soak.celery.programs.ours")


def noted(write: Callable[[Lease, float], bool]) -> Callable[[Lease, float], bool]:
    """Write down that a completion record has been written."""

    @functools.wraps(write)
    def recorded(lease: Lease, life: float) -> bool:
        done = write(lease, life)
        if done:
            bodies.notebook.write("record", run=str(lease.name).rpartition(":")[2], pid=os.getpid())
        return done

    return recorded


def unrecorded(lease: Lease, life: float) -> bool:
    """Broken: a record that is told and not written."""
    lease.release()
    return True


def stay(mark: Mark, **_: str) -> None:
    """Broken: a mark that is not removed."""


vars(run)["record"] = noted(unrecorded if "record" in BROKEN else run.record)
if "mark" in BROKEN:
    Mark.remove = stay  # type: ignore[method-assign,assignment]
KEY = "soak:{key}:{number}" if "lock" in BROKEN else "soak:{key}"  # broken: not the key


class Noted(LockedTask):
    """Tasks that write down when they have ended."""

    abstract = True

    def after_return(self, status: Any, retval: Any, task_id: Any, args: Any, *_: Any) -> None:
        """Note that the key is free."""
        bodies.returned(args[0], number_of(self))


def number_of(task: Task) -> str:
    """The number of the message that runs."""
    return str(history(task.request)["message"])


def make(mode: Any) -> Any:
    """Make the task of a mode."""

    @app.task(bind=True, base=Noted, name=f"soak.{mode}")
    @locked_task(KEY, mode=mode, on_conflict="retry")
    def work(self: Task, key: str, number: int) -> None:
        lease = current_lease()
        assert lease is not None
        bodies.work(key, number, number_of(self), lease.fence)

    return work


TASKS = {mode: make(mode) for mode in MODES}


def lost(event: Event) -> None:
    """Write down until when a holder had a lock of which it was told that it is lost."""
    assert isinstance(event.lease, Lease)
    until = min(time.monotonic(), event.lease.grant.deadline)
    bodies.notebook.write("lost", pid=os.getpid(), fence=event.fence, until=until)


subscribe(lost, [EventKind.LOST])


def send(key: str, number: int) -> tuple[bool, str]:
    """Send a message; whether it was a duplicate, and the task id that counts."""
    result = TASKS[key.partition("-")[0]].delay(key, number)
    return bool(result.duplicate), result.id
