"""Marks that outlive their tasks: before a duplicate is reported, the first task is looked at."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
pytest.importorskip("django_tasks_db")

import inspect
import time
from typing import Any

from django.db import connection, transaction
from django.tasks import TaskResultStatus, task_backends
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.test import override_settings
from django_tasks_db import DatabaseBackend

from django_redlock.tasks import DuplicateTask
from django_redlock.tasks import publishing as module
from tests.celery.desk import hold, marked, memory
from tests.tasks import jobs
from tests.tasks.conftest import TASKS, unique

FAILED, DONE = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


def queued(desk: Any) -> list[str]:
    """The ids of the tasks that wait, the first one first."""
    return [str(row.id) for row in desk.rows(status="READY")]


def later(seconds: float) -> None:
    """Let this time pass on the nodes."""
    for node in memory().nodes:
        node.clock = lambda: time.time() * 1000 + seconds * 1000


@pytest.mark.parametrize("status", [FAILED, DONE])
@pytest.mark.parametrize("task", [jobs.finished, jobs.started, jobs.strict, jobs.dropping])
def test_a_task_that_has_ended_keeps_none_out(desk, caplog, task, status):
    """Whoever ended it, and whatever on_duplicate says: the next one is enqueued; it is logged."""
    first = task.enqueue(7)
    assert desk.rows(id=first.id).update(status=status) == 1  # a job of the site, after a kill
    second = task.enqueue(7)
    assert queued(desk) == [second.id]
    assert f"[{first.id}] has ended, and its mark was still there" in caplog.text
    if task is jobs.finished:
        assert task.enqueue(7).id == second.id  # the mark is that of the second one
    desk.work()
    assert (jobs.log, marked()) == ([7], set())


def test_what_a_task_has_come_back_as_is_followed(desk):
    """It has not ended while the last one waits, and has when that one has."""
    first = jobs.started.enqueue(7)
    with hold("account:7"):
        for _ in range(3):
            desk.make_due()
            desk.work()
    (last,) = queued(desk)
    assert jobs.started.enqueue(7).id == first.id
    desk.rows(id=last).update(status=FAILED)
    second = jobs.started.enqueue(7)
    assert queued(desk) == [second.id]


@pytest.mark.parametrize("value", ["deferred", {"deferred": True}, {"deferred": True, "id": "own"}])
def test_a_value_that_looks_like_one_that_came_back(desk, value):
    """A body may return anything: what names itself is followed for a while, and counts."""
    first = jobs.finished.enqueue(7)
    itself = isinstance(value, dict) and "id" in value
    stored = {"deferred": True, "id": first.id} if itself else value
    desk.rows(id=first.id).update(status=DONE, return_value=stored)
    assert (jobs.finished.enqueue(7).id == first.id) is itself


def test_a_task_that_is_gone_keeps_none_out_after_a_minute(desk):
    """Its row was deleted. A moment after the mark was set it may be on its way to the table."""
    first = jobs.finished.enqueue(7)
    desk.rows().delete()
    later(59)
    assert (jobs.finished.enqueue(7).id, queued(desk)) == (first.id, [])
    later(61)
    assert queued(desk) == [] != [jobs.finished.enqueue(7).id] == queued(desk)


def test_a_replica_that_lags_says_nothing(desk, monkeypatch):
    """What is not there where rows are read may be there where they are written."""

    def lags(_: object, task_id: str) -> None:
        raise TaskResultDoesNotExist(task_id)

    first = jobs.finished.enqueue(7)
    later(61)
    monkeypatch.setattr(DatabaseBackend, "get_result", lags)
    assert jobs.finished.enqueue(7).id == first.id
    assert queued(desk) == [first.id]


def test_what_runs_is_a_duplicate_whatever_its_row_says(desk):
    """The lock of the run counts; nobody looks at its row."""
    seen: list[Any] = []

    def meanwhile():
        desk.rows().update(status=FAILED)
        seen.append(jobs.finished.enqueue(7).id)

    jobs.bodies.append(meanwhile)
    first = jobs.finished.enqueue(7)
    desk.work()
    assert seen == [first.id]


def test_it_is_tried_once_more_and_no_more(desk, monkeypatch):
    """Others publish at the same time: what is a duplicate then counts, and raises."""
    first = jobs.strict.enqueue(7)
    desk.rows().update(status=FAILED)
    monkeypatch.setattr(module.DjangoTaskMessage, "remove_mark_of", lambda *_: True)
    with pytest.raises(DuplicateTask) as refused:
        jobs.strict.enqueue(7)
    assert refused.value.task_id == first.id


def test_a_receiver_that_raises_does_not_unmark_what_is_in_the_table(desk):
    """The caller gets its error, and the task is there: a second one is a duplicate."""

    def fail(**_: object) -> None:
        raise OSError("as of a receiver")

    task_enqueued.connect(fail)
    try:
        with pytest.raises(OSError, match="receiver"):
            jobs.finished.enqueue(7)
    finally:
        task_enqueued.disconnect(fail)
    (first,) = queued(desk)
    assert jobs.finished.enqueue(7).id == first


def test_without_autocommit_nothing_is_marked(desk):
    """A rollback would leave the mark alone, so it is refused, as on_commit does."""
    connection.set_autocommit(False)
    try:
        with pytest.raises(transaction.TransactionManagementError, match="autocommit is off"):
            jobs.finished.enqueue(7)
        with transaction.atomic():
            jobs.finished.enqueue(7)
        connection.commit()
    finally:
        connection.set_autocommit(True)
    assert len(queued(desk)) == 1


# -- other backends --------------------------------------------------------------------------------


class Mute(DatabaseBackend):
    """A database that tells no results."""

    supports_get_result = False

    def get_result(self, result_id):
        raise NotImplementedError


def test_a_first_task_that_cannot_be_looked_up_counts_as_one_that_waits(desk, caplog):
    """Its code may be gone, or the database locked: the caller of another one has no part in it."""
    first = jobs.finished.enqueue(7)
    desk.rows(id=first.id).update(status=FAILED, task_path="gone.away")
    assert jobs.finished.enqueue(7).id == first.id
    assert f"the task {first.id} cannot be looked up, and counts as one that waits" in caplog.text


@override_settings(TASKS={"default": unique("tests.tasks.test_stale_marks.Mute")})
def test_a_backend_without_results_tells_the_id_of_the_first(desk):
    """It cannot be asked, so its duplicate counts."""
    first, second = jobs.finished.enqueue(7), jobs.finished.enqueue(7)
    assert (second.id, second.status) == (first.id, "READY")
    assert jobs.calling.enqueue(7).id
    assert isinstance(jobs.calling.enqueue(7), list)
    assert len(queued(desk)) == 2


@override_settings(TASKS={"default": TASKS["dummy"]})
def test_a_list_of_tasks_that_never_run(desk):
    """DummyBackend: a duplicate is given the first, and what was cleared keeps none out."""
    backend: Any = task_backends["default"]
    first = jobs.finished.enqueue(7)
    assert (jobs.finished.enqueue(7).id, len(backend.results)) == (first.id, 1)
    with pytest.raises(DuplicateTask):
        [jobs.strict.enqueue(8) for _ in range(2)]
    backend.clear()
    second = jobs.finished.enqueue(7)
    assert [each.id for each in backend.results] == [second.id] != [first.id]
    assert jobs.strict.enqueue(8).id


# -- each rule is needed ---------------------------------------------------------------------------

RULES: dict[str, tuple[tuple[Any, str, Any], Any]] = {
    "nobody looks at the first": (
        (module.DjangoTaskMessage, "has_ended", lambda *_: False),
        lambda desk, caplog: test_a_task_that_has_ended_keeps_none_out(
            desk, caplog, jobs.finished, FAILED
        ),
    ),
    "what came back has ended": (
        (module, "_came_back_as", lambda _: ""),
        test_what_a_task_has_come_back_as_is_followed,
    ),
    "the last one is not looked at": (
        (module, "MOST_DEFERRALS", 1),
        test_what_a_task_has_come_back_as_is_followed,
    ),
    "what is on its way is gone": (
        (module, "ON_ITS_WAY", 0.0),
        test_a_task_that_is_gone_keeps_none_out_after_a_minute,
    ),
    "a replica is believed": (
        (module.DjangoTaskMessage, "_is_written", lambda *_: False),
        test_a_replica_that_lags_says_nothing,
    ),
    "it raised, so it did not happen": (
        (module.DjangoTaskMessage, "is_sent", lambda *_: False),
        test_a_receiver_that_raises_does_not_unmark_what_is_in_the_table,
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(desk, monkeypatch, caplog, rule):
    """Without it, the test that is named beside it fails."""
    broken, test = RULES[rule]
    more = {"desk": desk, "caplog": caplog, "monkeypatch": pytest.MonkeyPatch()}
    monkeypatch.setattr(*broken)
    wanted = inspect.signature(test).parameters
    try:
        with pytest.raises(AssertionError):
            test(**{name: more[name] for name in wanted})
    finally:
        more["monkeypatch"].undo()
