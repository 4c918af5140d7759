"""The table of backends: each that can be installed is played with its own worker."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.docs.pages import table
from tests.support.own_process import ROOT
from tests.tasks.site import settings

LONG = 400.0  # seconds of a play, and of an installation


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
        "celery -A tests.tasks.counted_celery worker -c 2",
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
NEEDED = ("Django", "hiredis", "redis", "celery", "packaging")


def rows() -> dict[str, tuple[str, ...]]:
    """What the page says of each package."""
    found = table("docs/how-to/tasks.md", "Backend").rows
    return {name.strip(): row[1:] for row in found for name in row[0].replace("`", "").split(",")}


def test_the_page_has_a_row_for_each_backend_that_is_played():
    """And for no other."""
    assert set(rows()) == set(BACKENDS)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A throw-away environment with all of them, as they are today."""
    folder = tmp_path_factory.mktemp("backends")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=LONG)
    program = str(folder / "bin/python")
    install = [program, "-m", "pip", "install", "--quiet", *NEEDED, *BACKENDS]
    subprocess.run(install, check=True, timeout=LONG)
    versions = subprocess.run(
        [program, "-m", "pip", "freeze"], check=True, stdout=subprocess.PIPE, text=True
    )
    print(*(each for each in versions.stdout.split() if each.partition("==")[0] in BACKENDS))
    return program


@pytest.mark.nightly
@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_does_what_the_page_says(
    name: str, python: str, redlock_embedded: EmbeddedNodes, tmp_path: Path
) -> None:
    """Of two one runs, the next one after the end runs, and one whose key is held comes back."""
    backend = BACKENDS[name]
    log = tmp_path / "events.log"
    log.touch()
    broker = EmbeddedNode()
    broker.start()
    try:
        site = settings(
            tmp_path / "db.sqlite3",
            log,
            redlock_embedded.settings(MAX_TTL=10, RESTART_GUARD=False),
            backend=backend.path,
            apps=backend.apps,
            broker=broker.url,
            options=dict.fromkeys(backend.options, broker.url),
        )
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.tasks.project",
            "PYTHONPATH": str(ROOT),
            "TASKS_SITE": site,
        }
        command = [python, "-m", "tests.tasks.play", *backend.worker.split()]
        done = subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=LONG, check=False
        )
    finally:
        broker.close()
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    told, following, later = rows()[name]
    assert (seen["runs"], seen["all"], following) == (1, 2, "runs")
    assert (seen["told"], seen["later"]) == ([told], later)
