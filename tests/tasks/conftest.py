"""Fixtures for the tests of Django's own tasks: five nodes in memory, and a worker by hand."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from django.test import override_settings
from django.utils import timezone

UNIQUE = "django_redlock.tasks.UniqueBackend"
DATABASE = "django_tasks_db.DatabaseBackend"


def unique(wrapped: str, **options: Any) -> dict[str, Any]:
    """An entry of ``TASKS`` whose backend wraps another."""
    return {"BACKEND": UNIQUE, "OPTIONS": {"BACKEND": wrapped, "OPTIONS": options}}


TASKS = {
    "default": unique(DATABASE),
    "bare": {"BACKEND": DATABASE},
    "immediate": unique("django.tasks.backends.immediate.ImmediateBackend"),
    "dummy": unique("django.tasks.backends.dummy.DummyBackend"),
}


class Desk:
    """A site whose workers run in this thread."""

    def work(self, backend: str = "default") -> None:
        """Let a new worker do what is ready, as ``manage.py db_worker --batch``.

        Its clock stands still: what is put off meanwhile is not due, however long this takes.
        """
        now = timezone.now()
        with patch("django_tasks_db.models.timezone", SimpleNamespace(now=lambda: now)):
            self.worker(backend).run()

    def worker(self, backend: str = "default") -> Any:
        """A new worker."""
        from django_tasks_db.management.commands.db_worker import Worker

        return Worker(
            queue_names=["default"],
            interval=0,
            batch=True,
            backend_name=backend,
            startup_delay=False,
            max_tasks=None,
            worker_id=uuid.uuid4().hex,
            excluded_queue_names=[],
        )

    def rows(self, **fields: Any) -> Any:
        """The tasks in the table, the first one first."""
        from django_tasks_db.models import DBTaskResult

        return DBTaskResult.objects.filter(**fields).order_by("enqueued_at")

    def deliver_again(self, result: Any) -> None:
        """Make a task ready that a worker has claimed: who runs a site does, after a kill."""
        assert self.rows(id=result.id).update(status="READY") == 1

    def make_due(self) -> None:
        """Let the time pass for which tasks were put off."""
        now = timezone.now()
        self.rows(status="READY", run_after__lt=now + timedelta(days=1)).update(run_after=now)


@pytest.fixture
def desk(transactional_db: None) -> Iterator[Desk]:
    """A desk whose locks live on five fresh nodes in memory."""
    from tests.tasks import jobs

    nodes = [f"memory://{uuid.uuid4().hex}" for _ in range(5)]
    jobs.log.clear()
    jobs.bodies.clear()
    with override_settings(REDLOCK={"default": {"NODES": nodes}}, TASKS=TASKS):
        yield Desk()
