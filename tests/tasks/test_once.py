"""``@locked_task(once=…)`` for Django's own tasks: the work of a key is not done again soon."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
pytest.importorskip("django_tasks_db")

from typing import Any

from django.tasks import TaskResultStatus

from django_redlock import events, redlock
from django_redlock.events import TaskEvent, TaskOutcome
from django_redlock.tasks import locked_task
from django_redlock.work.plan import Plan
from tests.celery.desk import hold, is_free, marked
from tests.tasks import jobs

from .test_runs import after, is_recorded

DONE, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
BOTH = pytest.mark.parametrize("task", [jobs.daily, jobs.adaily], ids=["def", "async def"])


def is_done_once(desk: Any, task: Any) -> bool:
    """Whether the second of two equal tasks does nothing, and says so."""
    first, second = after(desk, task.enqueue(7)), after(desk, task.enqueue(7))
    assert (first.status, first.return_value, second.status) == (DONE, "digest:7", DONE)
    if jobs.log == [7, 7]:
        return False
    assert second.return_value["skipped"] is True
    assert second.return_value["reason"].startswith("the work was done at 2")
    assert desk.rows(status="READY").count() == 0  # nothing comes back later
    return True


@BOTH
def test_a_task_whose_work_is_done_is_skipped(desk, task):
    """It is a success that says when; the work of another key is done."""
    assert is_done_once(desk, task)
    assert after(desk, task.enqueue(8)).return_value == "digest:8"
    assert jobs.log == [7, 8]


@BOTH
def test_a_run_that_leaves_no_record_is_caught(desk, task, monkeypatch):
    """Broken: the lock is released as without ``once``."""
    monkeypatch.setattr(Plan, "block", lambda _, lock: lock)
    assert not is_done_once(desk, task)


@BOTH
def test_a_body_that_failed_leaves_no_record(desk, task):
    """The next task does the work."""
    jobs.bodies.append(lambda: 1 / 0)
    assert after(desk, task.enqueue(7)).status == FAILED
    assert is_free("digest:7")
    assert after(desk, task.enqueue(7)).return_value == "digest:7"


@BOTH
def test_work_that_is_under_way_is_a_conflict_as_before(desk, task):
    """``on_conflict`` is for a key that is held: here it comes back later."""
    with hold("digest:7"):
        assert after(desk, task.enqueue(7)).return_value["deferred"] is True
    desk.make_due()
    desk.work()
    assert jobs.log == [7]


@BOTH
def test_who_is_skipped_is_told_of_and_may_run_again_when_the_record_is_gone(desk, task):
    """A listener hears of it with the key's name. It has not run, so it leaves no record."""
    told: list[TaskEvent] = []
    with redlock("digest:7").once(60) as run:
        assert run.fresh
    events.watch_tasks(told.append)
    try:
        result = after(desk, task.enqueue(7))
    finally:
        events.unwatch_tasks(told.append)
    ((outcome, name, error),) = [(each.outcome, each.name, each.error) for each in told]
    assert (outcome, name) == (TaskOutcome.SKIPPED, "digest:7")
    assert error is not None
    assert error.code == "recorded"
    redlock.revoke("digest:7")
    desk.deliver_again(result)
    assert after(desk, result).return_value == "digest:7"
    assert is_recorded(result, task)


def test_its_mark_is_gone_when_it_is_skipped(desk):
    """The next task is enqueued."""
    result = jobs.strict_daily.enqueue(7)
    assert marked()
    with redlock("digest:7").once(60) as run:
        assert run.fresh
    assert after(desk, result).return_value["skipped"] is True
    assert marked() == set()
    assert jobs.strict_daily.enqueue(7).id != result.id


def test_in_the_time_of_a_record_a_task_is_enqueued(desk):
    """The record of an earlier run is no run: ``on_duplicate`` has nothing to decide."""
    assert after(desk, jobs.strict_daily.enqueue(7)).return_value == "digest:7"
    later = after(desk, jobs.strict_daily.enqueue(7))
    assert later.return_value["reason"].startswith("the work was done at 2")


def test_a_direct_call_whose_work_is_done_is_skipped_as_well(desk):
    """It has no message, and returns what a task would."""
    assert jobs.daily.call(7) == "digest:7"
    assert jobs.daily.call(7)["skipped"] is True


def test_what_makes_no_sense_is_refused_at_the_definition():
    """As for Celery."""
    with pytest.raises(TypeError, match="once must be a timedelta or a number of seconds"):
        locked_task("name", once="1d")(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="with once, write on_unavailable="):
        locked_task("name", once=5, on_unavailable="run")(lambda: None)
