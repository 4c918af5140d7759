"""Locked tasks in Celery's eager mode, beside what the testing kit does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from django_redlock import LeaseLost, assert_locked, current_lease
from django_redlock.celery import LockedTask, locked_task
from django_redlock.testing import assert_free, stale, taken
from django_redlock.testing.leaks import Watch


@pytest.fixture
def app() -> Iterator[Any]:
    """An application that runs its tasks at once."""
    app = Celery(f"eager-{uuid.uuid4().hex}", broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True
    yield app
    app.close()


def task(app: Any, **options: Any) -> Any:
    """A task that holds its lock while it runs."""

    @app.task(base=LockedTask, name=f"report-{uuid.uuid4().hex}")
    @locked_task("report:{number}", **options)
    def report(number: int, *, late: bool = False) -> int:
        lease = assert_locked(f"report:{number}")
        if late:
            stale(lease)
        lease.ensure()
        return number

    return report


def test_a_task_runs_eagerly(aliases, app):
    """It holds its lock, and leaves neither a lock nor a mark."""
    with Watch() as watch:
        assert task(app).delay(7).get() == 7
        assert current_lease() is None
        assert_free("report:7")
        assert watch.free() == []


@pytest.mark.parametrize("options", [{}, {"mode": "until_finished"}])
def test_a_conflict_is_skipped(aliases, app, options):
    """As in a worker, also with marks; afterwards the task runs."""
    report = task(app, **options)
    with taken("report:7", holder="worker-3"):
        result = report.delay(7)
        assert result.state == "SUCCESS"
        assert result.get()["skipped"] is True
        assert report.delay(8).get() == 8
    assert report.delay(7).get() == 7


def test_a_task_whose_lease_is_stale(aliases, app):
    """It finds out by itself, and the next one runs."""
    report = task(app)
    with pytest.raises(LeaseLost):
        report.delay(7, late=True).get()
    assert report.delay(7).get() == 7


def test_a_mark_is_free_for_the_next_test(memory):
    """A message that waits in a queue of this process leaves a mark; on nodes in memory it goes."""
    app = Celery(f"desk-{uuid.uuid4().hex}", broker="memory://", set_as_current=False)
    report = task(app, mode="until_finished")
    with Watch() as watch:
        waiting = report.delay(7).id
        assert report.delay(7).id == waiting  # a duplicate of the one that waits
        watch.check()
    assert report.delay(7).id != waiting
    app.close()
