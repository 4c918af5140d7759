"""celery-once, as its page has it: locked from the publish until the end of the run."""

from __future__ import annotations

import os
from typing import Any

from celery import Task, states
from celery_once import QueueOnce

from . import bodies

MODES = ("until_finished",)
app = bodies.make_app("dev.soak.celery.programs.once")
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": os.environ["SOAK_BROKER"], "default_timeout": 3600},  # its default
}


class Noted(QueueOnce):  # ships no types
    """Tasks that write down when they have ended."""

    abstract = True

    def after_return(self, status: Any, retval: Any, task_id: Any, *more: Any) -> None:
        """Release as celery-once does, and note that the key is free."""
        super().after_return(status, retval, task_id, *more)
        bodies.returned(more[0][0], task_id)


@app.task(bind=True, base=Noted, once={"keys": ["key"], "graceful": True})
def work(self: Task, key: str, number: int) -> None:
    """Work once at a time for a key."""
    bodies.work(key, number, self.request.id)


def send(key: str, number: int) -> tuple[bool, str]:
    """Send a message; whether it was a duplicate, and its task id."""
    result = work.delay(key, number)
    return bool(result.state == states.REJECTED), result.id or ""
