"""The application and the tasks that test_celery_workers sends messages to.

A worker is started with TEST_BROKER and TEST_LOCKS in its environment, with TEST_LOST_AFTER where
messages shall be taken for lost, and with TEST_DROP_COPIES where copies of a message that has
succeeded shall be dropped; the tests, which only send, set the broker in ``app.conf``. What
bodies do is written down in a list beside the broker, with times of the monotonic clock, which
all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import redis
from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import worker_ready
from django.conf import settings

from django_redlock import current_lease
from django_redlock.celery.decorator import locked_task

from .waiting import eventually

# Seconds after which the broker takes an unacknowledged message for lost: for workers whose
# messages shall be, and for others, where one that comes back later is unacknowledged until then.
SOON, NEVER = 2, 3600

if "TEST_LOCKS" in os.environ:
    settings.configure(REDLOCK={"default": json.loads(os.environ["TEST_LOCKS"])})

app = Celery("tests.celery_project", set_as_current=False)
app.conf.update(
    broker_url=os.environ.get("TEST_BROKER"),
    result_backend=os.environ.get("TEST_BROKER"),
    broker_transport_options={"visibility_timeout": int(os.environ.get("TEST_LOST_AFTER", NEVER))},
    worker_deduplicate_successful_tasks="TEST_DROP_COPIES" in os.environ,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
)


def note(what: str, key: str, **more: Any) -> None:
    """Write down what happens to a key now."""
    said = {"what": what, "key": key, "at": time.monotonic(), "pid": os.getpid(), **more}
    with closing(redis.Redis.from_url(app.conf.broker_url)) as client:
        client.rpush("notes", json.dumps(said))


@contextmanager
def noted(task: Task, key: str) -> Iterator[None]:
    """Write down when a body begins and ends."""
    note("begin", key, id=task.request.id, retries=task.request.retries)
    try:
        yield
    except SoftTimeLimitExceeded:
        note("interrupted", key, id=task.request.id)
        raise
    finally:
        note("end", key, id=task.request.id)


@worker_ready.connect
def ready(**_: object) -> None:
    """Say that the worker takes messages."""
    note("ready", "")


@app.task(bind=True)
def unlocked(self: Task, key: str, seconds: float) -> str:
    """Work without a lock."""
    with noted(self, key):
        time.sleep(seconds)
    return "done"


@app.task(bind=True, max_retries=0)
@locked_task("work:{key}", on_conflict="retry")
def patient(self: Task, key: str, seconds: float) -> str:
    """Work that comes back later."""
    with noted(self, key):
        time.sleep(seconds)
    return "done"


@app.task(bind=True)
@locked_task("work:{key}")
def skipping(self: Task, key: str, seconds: float) -> str:
    """Work that need not be done twice."""
    with noted(self, key):
        time.sleep(seconds)
    return "done"


@app.task(bind=True)
@locked_task("work:{key}")
def lasting(self: Task, key: str) -> str:
    """Work that need not be done twice, and is done when a test says so."""
    with noted(self, key), closing(redis.Redis.from_url(app.conf.broker_url)) as client:
        eventually(lambda: client.exists(f"enough:{key}"), within=60, every=0.02)
    return "done"


@app.task(bind=True)
@locked_task("work:{key}", on_conflict="raise")
def strict(self: Task, key: str) -> str:
    """Work that must not be asked for twice."""
    with noted(self, key):
        return "done"


@app.task(bind=True, max_retries=2)
@locked_task("work:{key}", on_conflict="retry")
def failing(self: Task, key: str) -> None:
    """Work that fails as often as it may."""
    with noted(self, key):
        assert current_lease() is not None
        raise self.retry(countdown=0)


@app.task(bind=True, acks_late=True)
@locked_task("work:{key}")
def late(self: Task, key: str, seconds: float) -> str:
    """Work whose message stays with the broker until it is done; slow only the first time."""
    with closing(redis.Redis.from_url(app.conf.broker_url)) as client:
        first = client.incr(f"times:{self.request.id}") == 1
    with noted(self, key):
        time.sleep(seconds if first else 0)
    return "done"


def until_told(task: Task, key: str) -> str:
    """Work that is done when a test says so, for each run anew."""
    with noted(task, key), closing(redis.Redis.from_url(app.conf.broker_url)) as client:
        eventually(lambda: client.lpop(f"end:{key}"), within=60, every=0.02)
    return "done"


@app.task(bind=True, acks_late=True)
@locked_task("work:{key}")
def long(self: Task, key: str) -> str:
    """Work that may take longer than the broker waits."""
    return until_told(self, key)


@app.task(bind=True, acks_late=True, time_limit=1)
@locked_task("work:{key}")
def limited(self: Task, key: str) -> str:
    """Work that is ended before the broker takes it for lost."""
    return until_told(self, key)


@app.task(bind=True, acks_late=True)
@locked_task("work:{key}", max_hold=1)
def let_go(self: Task, key: str) -> str:
    """Work whose lock ends before it does."""
    return until_told(self, key)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
@locked_task("work:{key}")
def rejecting(self: Task, key: str) -> str:
    """Work whose message goes back to the broker when its process is killed."""
    return until_told(self, key)


@app.task(bind=True)
@locked_task("work:{key}")
def stubborn(self: Task, key: str, seconds: float) -> None:
    """Work that does not hear a SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with noted(self, key):
        time.sleep(seconds)


@app.task
def collect(results: list[Any]) -> list[Any]:
    """The body of a chord, or the next link of a chain: what it was given."""
    return results
