"""``UniqueBackend``: what is not enqueued twice, and the marks from ``enqueue`` to the run."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
pytest.importorskip("django_tasks_db")

import asyncio
import inspect
import uuid
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.tasks import TaskResult, TaskResultStatus, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.signals import task_enqueued
from django.test import override_settings
from django.utils import timezone

from django_redlock import conf
from django_redlock.core import completion
from django_redlock.tasks import DuplicateTask, backend, unmark
from django_redlock.tasks.checks import check_tasks
from django_redlock.tasks.run import KEYWORD, sent_again
from django_redlock.work.marks import Mark
from tests.celery.desk import hold, marked, memory
from tests.tasks import jobs
from tests.tasks.conftest import DATABASE, TASKS, unique

READY = TaskResultStatus.READY
MODES = pytest.mark.parametrize("task", [jobs.finished, jobs.started, jobs.astarted])


def mark_of(task: Any, account: Any = 7) -> set[str]:
    """The mark of a task with this argument."""
    return {f"{task.module_path}:account:{account}"}


# -- from enqueue to the run -----------------------------------------------------------------------


def test_arguments_that_json_cannot_tell_apart_are_one_key(desk):
    """A tuple is delivered as a list: the key is that of the run."""
    assert jobs.finished.enqueue((1, 2)).id == jobs.finished.enqueue([1, 2]).id
    assert jobs.finished.enqueue(account=8).id == jobs.finished.enqueue(8).id
    assert jobs.finished.enqueue("8 ").id != jobs.finished.enqueue(8).id


def test_a_coroutine_enqueues_no_second_task(desk):
    """By ``aenqueue``, as by ``enqueue``."""

    async def both():
        return [await jobs.finished.aenqueue(7), await jobs.finished.aenqueue(7)]

    first, second = asyncio.run(both())
    assert (first.id == second.id, desk.rows().count()) == (True, 1)


def test_a_task_for_later_keeps_its_mark_until_then(desk):
    """The mark lasts until ``run_after``, and ``queue_ttl`` longer."""
    later = jobs.finished.using(run_after=timezone.now() + timedelta(hours=5))
    first = later.enqueue(7)
    (key,) = marked()
    for node in memory().nodes:
        assert 6 * 3600 - 60 < node.pttl(f"redlock:mark:{key}") / 1000 <= 6 * 3600
    assert jobs.finished.enqueue(7).id == first.id


@MODES
def test_unmark_lets_the_next_one_be_enqueued(desk, task):
    """By the arguments of the task; the command does it by the id."""
    first = task.enqueue(7)
    unmark(task, (7,))
    second = task.enqueue(7)
    assert second.id != first.id
    call_command("redlock_release", "--task", second.id, "--yes")
    assert task.enqueue(7).id not in {first.id, second.id}
    with pytest.raises(TypeError, match="takes what @task makes, not function"):
        unmark(task.func, (7,))


# -- a duplicate -----------------------------------------------------------------------------------


def test_a_first_task_that_is_on_its_way_is_told(desk):
    """It is marked and not yet in the table: its result can be refreshed a moment later."""
    nonce = uuid.uuid4()
    policy = conf.backend("default").policy
    key = completion.mark_key(policy, jobs.finished.module_path, ["account:7"])
    steps = completion.set_mark(
        policy, key, task="jobs", task_id=str(nonce), ttl=60, begun=lambda _: None
    )
    conf.backend("default").run(steps)
    found = jobs.finished.enqueue(7)
    assert (found.id, found.status, desk.rows().count()) == (str(nonce), "READY", 0)


class Numbered(BaseTaskBackend):
    """A backend that makes its ids itself."""

    def __init__(self, alias, params):
        super().__init__(alias, params)
        self.enqueued: list[Any] = []

    def enqueue(self, task, args, kwargs):
        self.validate_task(task)
        self.enqueued.append((task, args, kwargs))
        given = {"task": task, "args": args, "kwargs": kwargs, "backend": self.alias}
        given |= dict.fromkeys(["enqueued_at", "started_at", "finished_at", "last_attempted_at"])
        return TaskResult(id=uuid.uuid4().hex, status=READY, errors=[], worker_ids=[], **given)


@override_settings(TASKS={"default": unique("tests.tasks.test_unique.Numbered")})
def test_a_backend_that_makes_its_ids_itself(desk):
    """A task carries a number of its own, which its run takes out; a duplicate cannot be told."""
    first = jobs.finished.enqueue(7)
    number = first.kwargs[KEYWORD]["message"]
    with pytest.raises(DuplicateTask) as refused:
        jobs.finished.enqueue(7)
    assert refused.value.task_id == number
    assert jobs.dropping.enqueue(7).id
    assert jobs.dropping.enqueue(7) is None
    found = task_backends["default"]
    assert isinstance(found, Numbered)
    assert len(found.enqueued) == 2  # its own attributes are there
    assert first.task.call(*first.args, **first.kwargs) == "account:7"


def test_a_task_that_is_done_at_once_has_no_mark(desk, monkeypatch):
    """It is enqueued as ever, also by its own body; no node is asked to remove a mark."""
    removed = Mock()
    monkeypatch.setattr(Mark, "remove", removed)
    now = jobs.finished.using(backend="immediate")
    seen: list[Any] = []

    def inside():
        seen.append(marked())
        seen.append(now.enqueue(7).return_value)

    jobs.bodies.append(inside)
    assert now.enqueue(7).return_value == "account:7"
    assert seen[0] == set()
    assert seen[1]["skipped"] is True
    assert not removed.called


@override_settings(
    TASKS={"default": unique(DATABASE, id_function="tests.tasks.test_unique.undashed")}
)
def test_an_id_function_of_the_project_is_asked(desk):
    """However it spells a UUID."""
    first, second = jobs.finished.enqueue(7), jobs.finished.enqueue(7)
    assert first.id == second.id
    desk.work()
    assert (jobs.log, marked()) == ([7], set())


def undashed() -> str:
    """An id as a project may make them."""
    return uuid.uuid4().hex


# -- in a transaction ------------------------------------------------------------------------------


def test_in_a_transaction_it_is_enqueued_after_the_commit(desk):
    """With the arguments of the call; only then the id of a duplicate is that of the first."""
    value = [1]
    with transaction.atomic():
        first, second = jobs.finished.enqueue(value), jobs.finished.enqueue(value)
        value.append(2)
        assert (marked(), desk.rows().count()) == (set(), 0)
        assert first.id != second.id
    assert first.id == second.id
    assert [row.args_kwargs["args"] for row in desk.rows()] == [[[1]]]
    first.refresh()


@override_settings(TASKS={"default": unique("tests.tasks.test_unique.Numbered")})
def test_before_the_commit_a_result_has_the_arguments_of_the_call(desk):
    """And none of ours: who enqueues them again sends another task."""
    with transaction.atomic():
        result = jobs.finished.enqueue(account=7)
        assert (result.args, result.kwargs) == ([], {"account": 7})


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [jobs.plain, jobs.skipping, jobs.finished])
def test_a_receiver_that_enqueues_another_task(desk, other):
    """While one is enqueued, or comes back: the other has an id and a mark of its own."""
    others: list[Any] = []

    def enqueue(task_result, **_):
        if task_result.task.module_path != other.module_path:
            others.append(other.enqueue(8 + len(others)))
            if other is jobs.finished:
                assert other.enqueue(7 + len(others)).id == others[-1].id

    task_enqueued.connect(enqueue)
    try:
        first = jobs.started.enqueue(7)
        with hold("account:7"):
            desk.work()
    finally:
        task_enqueued.disconnect(enqueue)
    assert marked() == mark_of(jobs.started)
    assert len({first.id, *(each.id for each in others)}) == 3
    for each in others:
        each.refresh()
        assert each.status == "SUCCESSFUL"


@pytest.mark.parametrize(
    ("task", "key"), [(jobs.retrying, "report:7"), (jobs.started, "account:7")]
)
def test_the_arguments_of_a_task_that_came_back_enqueued_anew(desk, task, key):
    """They say which message it was, and the new one is another, with marks or without."""
    first = task.enqueue(7)
    with hold(key):
        desk.work()
    desk.make_due()
    desk.work()
    (row,) = desk.rows().exclude(id=first.id)
    given = row.args_kwargs
    assert given["kwargs"][KEYWORD]["message"] == first.id
    task.enqueue(*given["args"], **given["kwargs"])
    desk.work()
    assert jobs.log == [7, 7]


RULES: dict[str, tuple[tuple[Any, str, Any], Any]] = {
    "the id is not reserved": (
        (backend._Ids, "__call__", lambda ids: ids._make()),
        test_a_coroutine_enqueues_no_second_task,
    ),
    "an id is reserved for all that is enqueued meanwhile": (
        (backend._Ids, "__call__", lambda ids: ids._reserved.get() or ids._make()),
        lambda desk: test_a_receiver_that_enqueues_another_task(desk, jobs.plain),
    ),
    "whatever is enqueued meanwhile has come back": (
        (backend, "_header_of", lambda _: sent_again.get()),
        lambda desk: test_a_receiver_that_enqueues_another_task(desk, jobs.finished),
    ),
    "what the arguments say counts": (
        (backend, "_header_of", lambda kwargs: kwargs.get(KEYWORD)),
        lambda desk: test_the_arguments_of_a_task_that_came_back_enqueued_anew(
            desk, jobs.started, "account:7"
        ),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(desk, monkeypatch, rule):
    """Without it, the test that is named beside it fails."""
    broken, test = RULES[rule]
    monkeypatch.setattr(*broken)
    more = {"monkeypatch": monkeypatch}
    wanted = inspect.signature(test).parameters
    with pytest.raises((AssertionError, ValueError, IntegrityError)):
        test(desk, **{name: more[name] for name in wanted if name in more})


# -- system checks ---------------------------------------------------------------------------------


def found() -> set[tuple[str | None, str]]:
    """The ids that are reported of the tasks here."""
    return {
        (each.id, each.msg.split()[2].rpartition(".")[2])
        for each in check_tasks()
        if "tests.tasks.jobs." in each.msg
    }


def test_tasks_that_are_well_are_not_reported(desk):
    """Nor those of development, which are done at once or never."""
    assert found() == set()
    for each in ("immediate", "dummy"):
        with override_settings(TASKS={"default": TASKS[each]}):
            assert found() == set()
    with override_settings(TASKS={"default": unique(DATABASE)}):
        call_command("check")


@override_settings(TASKS={"default": {"BACKEND": DATABASE}})
def test_a_mode_without_marks_is_reported(desk):
    """E002, with what to write."""
    every = {"finished", "started", "astarted", "strict", "dropping", "calling", "strict_daily"}
    assert found() == {("django_redlock.E002", each) for each in every}


class Listed(BaseTaskBackend):
    """A backend that can do next to nothing."""

    def enqueue(self, task, args, kwargs):
        raise NotImplementedError


@override_settings(TASKS={"default": unique("tests.tasks.test_unique.Listed")})
def test_what_a_backend_cannot_do_is_reported(desk):
    """W030: nothing can come back later."""
    late = {"retrying", "awaiting", "patient", "told", "keyless", "started", "astarted"}
    late |= {"daily", "adaily", "limited", "alimited"}
    assert found() == {("django_redlock.W030", each) for each in late}
