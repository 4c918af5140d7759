"""The application and the bodies of all candidates."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.signals import after_task_publish, task_received, worker_ready

from dev.soak.notebook import Notebook

VISIBILITY = 5  # seconds after which the broker takes an unacknowledged message for lost
LONG = 1.3 * VISIBILITY  # seconds of a body that is delivered again while it runs
RARE = int(os.environ.get("SOAK_RARE", "250"))  # one of so many messages has a long body
LATE = "SOAK_EARLY" not in os.environ  # acknowledged after the run, also if its process was killed

notebook = Notebook(os.environ["SOAK_HISTORY"])


def make_app(name: str) -> Celery:
    """Make the application of a candidate."""
    broker = os.environ["SOAK_BROKER"]
    app = Celery(name, set_as_current=False)
    app.conf.update(
        broker_url=broker,
        result_backend=broker,
        result_expires=600,
        broker_transport_options={
            "visibility_timeout": VISIBILITY,
            # Else the broker looks for lost messages every 100 s, and not at all for 300 s when
            # a worker was killed that was looking.
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 5,
        },
        broker_connection_retry_on_startup=True,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        task_acks_late=LATE,
        task_reject_on_worker_lost=LATE,
    )
    return app


def seconds(number: int) -> float:
    """For how long the body of a message works."""
    return LONG if number % RARE == RARE // 2 else 0.005 + 0.005 * (number % 5)


def work(key: str, number: int, run: str, fence: int | None = None) -> None:
    """Be the body of a task."""
    told: dict[str, Any] = {"key": key, "number": number, "run": run, "pid": os.getpid()}
    notebook.write("begin", **told, fence=fence, group=os.getpgrp())
    time.sleep(seconds(number))
    notebook.write("end", **told)


def returned(key: str, run: str) -> None:
    """Note that a run has ended, and that its key is free."""
    notebook.write("returned", key=key, run=run, pid=os.getpid())


@task_received.connect
def taken(request: Any = None, **_: object) -> None:
    """Say that a worker has a message, and the broker knows that it does."""
    notebook.write("taken", id=request.id, times=times_put_off(request.request_dict))


@after_task_publish.connect
def published(headers: Any = None, **_: object) -> None:
    """Say that a message which a worker puts off is with the broker."""
    if times := times_put_off(headers):
        notebook.write("put off", id=headers["id"], times=times)


def times_put_off(headers: Any) -> int:
    """How often the message came back; only this package puts messages off."""
    return int((headers.get("redlock") or {}).get("deferred", 0))


@worker_ready.connect
def ready(**_: object) -> None:
    """Say that the worker takes messages."""
    notebook.write("ready")
