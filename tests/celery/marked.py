"""Tasks of ``project`` that are not queued twice, for test_messages.

A worker with TEST_TELL in its environment writes down the signals of its messages, and its
receivers raise then.
"""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

from celery import Task, current_task
from celery.signals import before_task_publish, task_prerun

from django_redlock import signals
from django_redlock.celery import LockedTask, locked_task

from .project import app, note, noted, until_told


def tell(sender: str, *, called: str, name: Any, task_id: str, **_: Any) -> None:
    """Be a receiver that writes down what it gets, and has a fault."""
    note(called, name, task=sender, id=task_id)
    raise KeyError("receiver")


if "TEST_TELL" in os.environ:
    for _called in ("task_skipped", "task_deferred", "task_finished_before"):
        _receiver = functools.partial(tell, called=_called)
        getattr(signals, _called).connect(_receiver, weak=False)


def die(**_: Any) -> None:
    """Kill this process: it has marked the message that it puts off, and sends it never."""
    if current_task and not current_task.request.delivery_info.get("redelivered"):
        os.kill(os.getpid(), signal.SIGKILL)


if "TEST_DIES_BEFORE_SENDING" in os.environ:
    before_task_publish.connect(die)


def die_at_the_start(**_: Any) -> None:
    """Kill this process, as the system does when memory runs out: the message is still marked."""
    os.kill(os.getpid(), signal.SIGKILL)


if "TEST_DIES_AT_THE_START" in os.environ:
    task_prerun.connect(die_at_the_start)


@app.task(bind=True, base=LockedTask)
@locked_task("marked:{key}", mode="until_finished")
def once(self: Task, key: str) -> str:
    """Work of which nobody needs a second message until it is done; it is done when told."""
    return until_told(self, key)


@app.task(bind=True, base=LockedTask)
@locked_task("marked:{key}", mode="until_started", on_conflict="retry")
def anew(self: Task, key: str) -> str:
    """Work that is wanted once more for what changes while it runs."""
    return until_told(self, key)


@app.task(bind=True, base=LockedTask)
@locked_task("marked:{key}", mode="until_finished", on_conflict="retry")
def quick(self: Task, key: str) -> str:
    """Work that is done at once."""
    with noted(self, key):
        return "done"


@app.task(bind=True, base=LockedTask)
@locked_task("marked:{key}", mode="until_started", on_conflict="retry")
def soon(self: Task, key: str) -> str:
    """Work that is done at once, once more for what is asked for while it runs."""
    with noted(self, key):
        return "done"


@app.task(bind=True, base=LockedTask, acks_late=True)
@locked_task("marked:{key}", mode="until_finished")
def late(self: Task, key: str) -> str:
    """Work whose message stays with the broker until it is done."""
    return until_told(self, key)


@app.task(bind=True, base=LockedTask, acks_late=True, reject_on_worker_lost=True)
@locked_task("marked:{key}", mode="until_started", on_conflict="retry")
def rejecting(self: Task, key: str) -> str:
    """Work whose message goes back to the broker when its process is killed."""
    with noted(self, key):
        return "done"


@app.task(bind=True, base=LockedTask, max_retries=1)
@locked_task("marked:{key}", mode="until_finished")
def retrying(self: Task, key: str) -> str:
    """Work that succeeds the second time, a while later."""
    with noted(self, key):
        if not self.request.retries:
            raise self.retry(countdown=6)
    return "done"


@app.task(bind=True, base=LockedTask)
@locked_task("marked:{key}", mode="until_finished")
def stubborn(self: Task, key: str) -> Any:
    """Work that does not hear a SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return until_told(self, key)
