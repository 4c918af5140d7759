"""Which message a run is: by the signals of either package, in any thread, or by its header."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
pytest.importorskip("django_tasks_db")
backport = pytest.importorskip("django_tasks")

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, ClassVar

from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.signals import task_finished, task_started
from django.test import override_settings
from django_tasks.signals import task_started as backport_started

from django_redlock.tasks import UniqueBackend, locked_task, unmark
from django_redlock.tasks import run as module
from django_redlock.tasks.checks import check_tasks
from tests.celery.desk import hold, marked
from tests.tasks import jobs
from tests.tasks.conftest import DATABASE, unique

RUNNING = TaskResultStatus.RUNNING


@backport.task
@locked_task("account:{account}", mode="until_started", on_conflict="retry")
def theirs(account):
    """A task of the backport's class, as django-tasks-rq makes them."""
    return jobs.body(account)


def result_of(task: Any, kwargs: dict[str, Any] | None = None) -> Any:
    """A result as a worker has it that runs a task."""
    given: dict[str, Any] = {"task": task, "args": [7], "kwargs": kwargs or {}, "status": RUNNING}
    given |= dict.fromkeys(["enqueued_at", "started_at", "finished_at", "last_attempted_at"])
    return TaskResult(
        id=uuid.uuid4().hex, backend="default", errors=[], worker_ids=["one"], **given
    )


# -- the backport ----------------------------------------------------------------------------------


@override_settings(TASKS={"default": {"BACKEND": DATABASE}})
def test_the_checks_see_a_task_of_the_backport(desk):
    """A task is known by its function, not by its class."""
    assert not isinstance(theirs, Task)
    told = [each.id for each in check_tasks() if "test_contexts.theirs" in each.msg]
    assert told == ["django_redlock.E002"]


@override_settings(TASKS={"default": unique("django_tasks.backends.dummy.DummyBackend")})
def test_a_backend_of_the_backport_is_wrapped(desk):
    """It enqueues no second task, and ``unmark`` takes its tasks."""
    backend: Any = backport.task_backends["default"]
    results = backend.results
    assert isinstance(backend, UniqueBackend)
    first = theirs.enqueue(7)
    assert (theirs.enqueue(7).id, len(results)) == (first.id, 1)
    unmark(theirs, (7,))
    assert theirs.enqueue(7).id != first.id


def test_a_run_hears_the_signal_of_the_backport(desk):
    """Its key is held, and it comes back; the worker of django-tasks-concurrent sends no other."""

    def run():
        backport_started.send(BaseTaskBackend, task_result=result_of(jobs.retrying))
        return jobs.retrying.func(7)

    with hold("report:7"):
        assert Context().run(run)["deferred"] is True
    assert desk.rows(status="READY").count() == 1


# -- no signal, or one in another thread -----------------------------------------------------------


class Silent(BaseTaskBackend):
    """A backend that makes its ids itself, and whose worker sends no signal."""

    supports_defer = True
    enqueued: ClassVar[list[Any]] = []  # each thread has a backend of its own

    def enqueue(self, task, args, kwargs):
        self.validate_task(task)
        self.enqueued.append((task, args, kwargs))
        return result_of(task, kwargs)

    @classmethod
    def work(cls):
        """Run the first task, in a thread of a pool."""
        task, args, kwargs = cls.enqueued.pop(0)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(task.func, *args, **kwargs).result()


SILENT = override_settings(TASKS={"default": unique("tests.tasks.test_contexts.Silent")})


@pytest.mark.parametrize(
    ("task", "key"), [(jobs.started, "account:7"), (jobs.retrying, "report:7")]
)
@SILENT
def test_a_run_without_a_signal_knows_its_message(desk, task, key):
    """Its header is enough to come back, and to remove the mark."""
    Silent.enqueued.clear()
    marks = {f"{task.module_path}:{key}"} if task is jobs.started else set()
    task.enqueue(7)
    with hold(key):
        for _ in range(2):
            assert Silent.work()["deferred"] is True
            assert marked() == marks
    ((again, args, _),) = Silent.enqueued
    assert again.run_after is not None
    assert args == (7,)
    assert Silent.work() == key
    assert (jobs.log, marked(), Silent.enqueued) == ([7], set(), [])
    task.enqueue(7)
    assert len(Silent.enqueued) == 1


@override_settings(
    TASKS={"default": unique("tests.tasks.test_contexts.Silent") | {"QUEUES": ["default", "low"]}}
)
def test_a_run_without_a_signal_comes_back_in_its_queue(desk):
    """Not in that of the task as it is written."""
    Silent.enqueued.clear()
    jobs.retrying.using(queue_name="low").enqueue(7)
    with hold("report:7"):
        Silent.work()
    ((again, _, _),) = Silent.enqueued
    assert again.queue_name == "low"


def test_nothing_grows_where_signals_come_in_another_thread(desk):
    """As of django-dbtasks: one thread hears that tasks start, and others that they have ended."""

    def scheduler() -> int:
        with ThreadPoolExecutor(1) as pool:
            for _ in range(50):
                result = result_of(jobs.skipping)
                task_started.send(BaseTaskBackend, task_result=result)
                ended = pool.submit(task_finished.send, BaseTaskBackend, task_result=result)
                ended.result()
        return len(module._started.get())

    assert Context().run(scheduler) == module.MOST_UNCALLED


def test_runs_inside_of_runs_are_all_known(desk):
    """Those whose functions were called are not forgotten, however deep."""

    def nested(depth: int) -> int:
        result = result_of(jobs.plain if depth % 2 else jobs.skipping)
        task_started.send(BaseTaskBackend, task_result=result)
        if not depth % 2:
            jobs.bodies.append(lambda: nested(depth + 1) if depth < 30 else None)
            jobs.skipping.func(depth)
            return len(module._started.get())
        return nested(depth + 1)

    assert Context().run(nested, 0) > module.MOST_UNCALLED
