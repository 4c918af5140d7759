"""Tasks that write down what their bodies do, with times that all processes of a machine share."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from django.conf import settings
from django.tasks import task

from django_redlock.tasks import locked_task

LOG: str = settings.TASKS_LOG  # type: ignore[misc] # of these settings alone


def note(event: str, key: Any) -> None:
    """Write a line; one that is short is written whole, whoever else writes."""
    line = json.dumps({"event": event, "key": key, "pid": os.getpid(), "at": time.monotonic()})
    with open(LOG, "a", encoding="utf-8") as log:  # noqa: PTH123 - in one write
        log.write(f"{line}\n")


def body(key: Any) -> Any:
    """Work for a moment; longer while there is a file of the key's name."""
    note("begun", key)
    threading.Event().wait(0.01)
    while os.path.exists(f"{LOG}.{key}"):  # noqa: PTH110
        threading.Event().wait(0.02)
    note("ended", key)
    return key


@task
@locked_task("key:{key}", mode="until_started", on_conflict="retry")
def locked(key):
    """Run once at a time; one more waits."""
    return body(key)


@task
@locked_task("few:{key}", limit=3)
def limited(key):
    """Run three at a time."""
    return body(key)


@task
@locked_task("few:{key}", limit=2)
def steady(key):
    """Run for three seconds, two at a time."""
    note("begun", key)
    threading.Event().wait(3.0)
    note("ended", key)


@task
def naive(key):
    """Run without a lock: a broken variant."""
    return body(key)
