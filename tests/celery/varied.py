"""Tasks of ``project`` with one odd thing each, for the tests of pools, brokers and failures."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Task

from django_redlock import redlock, redlocks
from django_redlock.celery import LockedTask, locked_task

from .project import app, is_first, noted, until_told

AT_LEAST = 1.5  # seconds of ``min_hold``

if "TEST_BEAT" in os.environ:  # a process of celery beat, which sends to this queue
    queue = os.environ["TEST_BEAT"]
    every = float(os.environ["TEST_BEAT_EVERY"])
    always = {"schedule": every, "args": (queue,), "options": {"queue": queue}}
    app.conf.beat_schedule = {
        name: {"task": f"{__name__}.{name}"} | always for name in ("rested", "unrested")
    }


@app.task(bind=True)
@locked_task("rested:{key}", min_hold=AT_LEAST)
def rested(self: Task, key: str) -> str:
    """Work that is done at once, and is not wanted again for a while."""
    with noted(self, f"rested:{key}"):
        return "done"


@app.task(bind=True)
@locked_task("unrested:{key}")
def unrested(self: Task, key: str) -> str:
    """The same without a rest."""
    with noted(self, f"unrested:{key}"):
        return "done"


@app.task(
    bind=True,
    base=LockedTask,
    acks_late=True,
    autoretry_for=(ConnectionError,),
    retry_kwargs={"max_retries": 2, "countdown": 1},
)
@locked_task("marked:{key}", mode="until_finished")
def retried(self: Task, key: str) -> str:
    """Work that fails the first time, and that Celery tries again by itself."""
    with noted(self, key):
        if not self.request.retries:
            raise ConnectionError(key)
        return "done"


@app.task(bind=True)
@locked_task("work:{key}")
def nested(self: Task, key: str, depth: int = 0) -> Any:
    """Work that calls itself, eagerly, while it holds the key."""
    with noted(self, key):
        return "innermost" if depth else nested.apply((key, depth + 1)).result


@app.task(bind=True, base=LockedTask)
@locked_task("marked:{key}", mode="until_finished")
def replaced(self: Task, key: str) -> Any:
    """Work that leaves its place to other work with the same key."""
    from .marked import quick

    with noted(self, key):
        return self.replace(quick.si(key))


@app.task(bind=True, base=LockedTask)
@locked_task(mode="until_finished")
def keyless(self: Task, value: Any, note: str = "plain") -> str:
    """Work whose key is made of all its arguments."""
    with noted(self, note):
        return "done"


@app.task(bind=True, base=LockedTask)
@locked_task("marked:{key}", mode="until_finished", on_duplicate="raise")
def raising(self: Task, key: str, error: str) -> None:
    """Fail with each error of the package, as it is made."""
    with noted(self, key), redlock(f"{key}:other", renew=False) as lease:
        if error == "LockTaken":
            redlock(f"{key}:other").acquire()
        if error == "NodesUnavailable":
            redlocks["nowhere"](key).acquire()
        if error == "LeaseLost":
            lease.release()
            lease.ensure()
        if error == "DuplicateTask":
            raising.delay(key, error)


@app.task(bind=True, base=LockedTask, acks_late=True, reject_on_worker_lost=True)
@locked_task("work:{key}", on_conflict="retry")
def kept(self: Task, key: str) -> str:
    """Work whose message goes back to the broker with its process or its worker."""
    return until_told(self, key)


@app.task(bind=True, base=LockedTask, acks_late=True)
@locked_task("work:{key}", on_conflict="retry")
def asleep(self: Task, key: str, seconds: float) -> str:
    """Work that takes a while, the first time."""
    first = is_first(self)
    with noted(self, key):
        time.sleep(seconds if first else 0)
    return "done"


if "TEST_LOCKS" in os.environ:  # only a worker has this alias

    @app.task
    @locked_task("work:{key}", alias="nowhere")
    def unreachable(key: str) -> None:
        """Work whose nodes never reply: its message comes back after twice as long each time."""
