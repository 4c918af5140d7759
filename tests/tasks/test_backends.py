"""The table of backends: each that can be installed is played with its own worker."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")

from typing import NamedTuple

from tests.docs.pages import table


class Backend(NamedTuple):
    """A backend: its path, its apps, what starts a worker, and its options."""

    path: str
    apps: tuple[str, ...] = ()
    worker: str = ""
    options: tuple[str, ...] = ()


DATABASE = "django_tasks_db.DatabaseBackend"
BACKENDS = {
    "django-tasks-db": Backend(DATABASE, ("django_tasks_db",), "django db_worker --interval 0.1"),
    "django-tasks-db-async": Backend(
        DATABASE, ("django_tasks_db", "django_tasks_db_async"), "django db_async_worker"
    ),
    "django-tasks-concurrent": Backend(
        DATABASE, ("django_tasks_db", "django_tasks_concurrent"), "django concurrent_worker"
    ),
    "django-tasks-local": Backend("django_tasks_local.ThreadPoolBackend"),
    "django-tasks-rq": Backend(
        "django_tasks_rq.RQBackend",
        ("django_rq", "django_tasks_rq"),
        "django rqworker --with-scheduler --job-class django_tasks_rq.Job",
    ),
    "django-tasks-redis": Backend(
        "django_tasks_redis.RedisTaskBackend",
        ("django_tasks_redis",),
        "django run_redis_tasks --continuous",
        ("REDIS_URL",),
    ),
    "django-tasks-celery": Backend(
        "django_tasks_celery.CeleryBackend",
        (),
        "celery -A dev.soak.tasks.counted_celery worker -c 2",
    ),
    "django-dbtasks": Backend("dbtasks.backend.DatabaseBackend", ("dbtasks",), "django taskrunner"),
    "django-ox": Backend("django_ox.backend.OxBackend", ("django_ox",), "django ox_worker"),
    "steady-queue": Backend(
        "steady_queue.backend.SteadyQueueBackend", ("steady_queue",), "django steady_queue"
    ),
    "django-database-task": Backend(
        "django_database_task.backends.DatabaseTaskBackend",
        ("django_database_task",),
        "django run_database_tasks --continuous",
    ),
}


def rows() -> dict[str, tuple[str, ...]]:
    """What the page says of each package."""
    found = table("docs/how-to/tasks.md", "Backend").rows
    return {name.strip(): row[1:] for row in found for name in row[0].replace("`", "").split(",")}


def test_the_page_has_a_row_for_each_backend_that_is_played():
    """And for no other."""
    assert set(rows()) == set(BACKENDS)
