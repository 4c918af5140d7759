"""celery-singleton, as its page has it: locked from the publish until the end of the run."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.utils import uuid
from celery_singleton import Singleton

from . import bodies

MODES = ("until_finished",)
app = bodies.make_app("dev.soak.celery.programs.singleton")


class Noted(Singleton):  # ships no types
    """Tasks that write down when they have ended."""

    abstract = True

    def after_return(self, status: Any, retval: Any, task_id: Any, args: Any, *_: Any) -> None:
        """Note that the key is free: ``on_success`` has released it."""
        bodies.returned(args[0], task_id)


@app.task(bind=True, base=Noted, unique_on=["key"])
def work(self: Task, key: str, number: int) -> None:
    """Work once at a time for a key."""
    bodies.work(key, number, self.request.id)


def send(key: str, number: int) -> tuple[bool, str]:
    """Send a message; whether it was a duplicate, and the task id that counts."""
    own = uuid()
    counts = work.apply_async((key, number), task_id=own).id
    return counts != own, counts
