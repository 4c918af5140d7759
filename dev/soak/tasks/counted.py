"""Tasks for the workers of other people's backends; what is put off is written down as well."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver
from django.tasks import task

from django_redlock.signals import task_deferred
from django_redlock.tasks import locked_task
from tests.tasks.work import body, note


@task
@locked_task("key:{key}", mode="until_finished")
def once(key):
    """Run once at a time; no second one waits or runs."""
    return body(key)


@task
@locked_task("key:{key}", on_conflict="retry")
def later(key):
    """Run once at a time; another one comes back."""
    return body(key)


@receiver(task_deferred)
def put_off(name: str, **_: Any) -> None:
    """Write down that a task comes back later."""
    note("deferred", name.removeprefix("key:"))
