"""Runs of Django's own tasks under ``@locked_task``: what is held, refused and delivered again."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
pytest.importorskip("django_tasks_db")

import asyncio
import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import Context
from typing import Any

from django.conf import settings
from django.tasks import TaskResultStatus
from django.tasks import task as task_of
from django.tasks.exceptions import InvalidTask
from django.test import override_settings

from django_redlock import LockTaken, redlock
from django_redlock.nodes.queue import LocalQueue
from django_redlock.tasks import Skipped, locked_task
from django_redlock.tasks import run as module
from tests.celery.desk import hold, is_free, label_of, marked, memory
from tests.tasks import jobs

DONE, FAILED = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


def after(desk, result):
    """A result after all that is ready has run."""
    desk.work()
    result.refresh()
    return result


def is_recorded(result: Any, task: Any) -> bool:
    """Whether the run name of a message is a completion record."""
    with pytest.raises(LockTaken) as refused:
        redlock(f"run:{task.module_path}:{result.id}").acquire()
    return refused.value.code == "recorded"


# -- what a run holds ------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [jobs.skipping, jobs.awaiting], ids=["def", "async def"])
def test_a_body_runs_under_the_lock(desk, task):
    """Its key has the arguments of the task, its owner label the id, and nothing is held then."""
    labels: list[Any] = []

    def look():
        in_another = Context().run(ThreadPoolExecutor(1).submit, label_of, "report:2024")
        labels.extend(in_another.result())

    jobs.bodies.append(look)
    result = after(desk, task.enqueue(2024))
    assert (result.status, result.return_value) == (DONE, "report:2024")
    (label,) = labels
    assert label.endswith(f"({task.module_path}):{result.id}")
    assert is_free("report:2024")


def test_a_key_of_all_arguments_is_that_of_the_call(desk):
    """However they are written; the context and what this package adds are none of them."""
    seen = [after(desk, jobs.keyless.enqueue(2024)).return_value]
    seen += [after(desk, jobs.keyless.enqueue(year=2024, month=1)).return_value]
    other = after(desk, jobs.keyless.enqueue(2024, month=2)).return_value
    assert len(set(seen)) == 1
    assert other not in seen
    with hold(seen[0]):
        put_off = after(desk, jobs.keyless.enqueue(2024))
    assert put_off.return_value["deferred"]
    desk.make_due()
    again = desk.rows(id=put_off.return_value["id"]).get().task_result
    assert after(desk, again).return_value == seen[0]


def test_a_task_that_is_called_in_a_run_is_no_message(desk):
    """The body of another task calls the function: it is not the run of that message."""
    jobs.bodies.extend([lambda: jobs.retrying.call(2025), jobs.held])
    assert after(desk, jobs.skipping.enqueue(2024)).return_value == "report:2025"
    with hold("report:2025"):
        jobs.bodies.append(lambda: jobs.retrying.call(2025))
        result = after(desk, jobs.skipping.enqueue(2024))
    assert (result.status, result.errors[0].exception_class) == (FAILED, LockTaken)


@pytest.mark.parametrize("when", ["it waits", "it works"])
def test_a_run_that_is_cancelled_leaves_nothing_taken(desk, when):
    """While it waits for its key, and in its body: key and run name are free."""
    result = jobs.patient.enqueue(2024)

    async def cancelled():
        begun = asyncio.Event()
        jobs.bodies.append(begun.set)
        module._on_started(result)
        running = asyncio.ensure_future(jobs.patient.acall(2024))
        if when == "it works":
            await begun.wait()
        else:
            while is_free_of_runs(result):  # noqa: ASYNC110 - a key on nodes tells nobody
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            _ = await running
        module._on_finished(result)

    with hold("report:2024") if when == "it waits" else nullcontext():
        asyncio.run(cancelled())
    assert is_free("report:2024")
    assert is_free(f"run:{jobs.patient.module_path}:{result.id}")


def is_free_of_runs(result: Any) -> bool:
    """Whether no run of a message has its run name."""
    name = f"redlock:lock:run:{jobs.patient.module_path}:{result.id}"
    return all(node.get(name) is None for node in memory().nodes)


# -- a key that is held ----------------------------------------------------------------------------


@pytest.mark.parametrize("task", [jobs.skipping, jobs.awaiting], ids=["def", "async def"])
def test_a_task_without_wait_does_not_wait(desk, monkeypatch, task):
    """No worker stands in the queue of its key, whatever the alias has for WAIT."""
    queued: list[object] = []
    join = LocalQueue.join

    def noting(queue, waiter, call):
        queued.append(waiter)
        return join(queue, waiter, call)

    monkeypatch.setattr(LocalQueue, "join", noting)
    alias = settings.REDLOCK["default"] | {"WAIT": 1}
    with override_settings(REDLOCK={"default": alias}), hold("report:2024"):
        after(desk, task.enqueue(2024))
    assert (queued, jobs.log) == ([], [])


@pytest.mark.parametrize("task", [jobs.retrying, jobs.told])
def test_a_task_whose_key_is_held_comes_back_later(desk, task):
    """As another one, with the same arguments, later each time; its first says which one."""
    with hold("report:2024"):
        first = after(desk, task.enqueue(2024))
        assert first.status == DONE
        for times in range(3):
            (waiting,) = desk.rows(status="READY")
            assert waiting.args_kwargs["args"] == [2024]
            seconds = (waiting.run_after - waiting.enqueued_at).total_seconds()
            assert 2**times / 2 - 0.5 <= seconds
            desk.make_due()
            desk.work()
    assert first.return_value["deferred"] is True
    assert desk.rows(id=first.return_value["id"]).exists()
    desk.make_due()
    desk.work()
    last = desk.rows().last()
    assert (last.status, jobs.log) == (DONE, [2024])
    assert "report:2024" in last.return_value
    assert is_recorded(first, task)


def test_where_nothing_can_come_back_it_fails(desk):
    """A task that is done at once is skipped, or fails; so is a direct call."""
    retrying, skipping = (
        task.using(backend="immediate") for task in (jobs.retrying, jobs.skipping)
    )
    with hold("report:2024"):
        result = retrying.enqueue(2024)
        skipped = skipping.enqueue(2024)
        assert isinstance(jobs.skipping.call(2024), Skipped)
        with pytest.raises(LockTaken):
            jobs.retrying.call(2024)
    assert (result.status, result.errors[0].exception_class) == (FAILED, LockTaken)
    assert skipped.return_value["skipped"] is True
    assert retrying.enqueue(2024).return_value == "report:2024"
    assert jobs.skipping.call(2024) == "report:2024"


# -- a message that is delivered again -------------------------------------------------------------


def test_the_result_that_was_stored_after_a_copy_was_claimed_stays(desk):
    """The copy knows the row as it was: it asks again, and does not store that over the result."""
    from django_tasks_db.models import DBTaskResult

    result = jobs.retrying.enqueue(2024)
    known = DBTaskResult.objects.get(id=result.id)
    assert after(desk, result).return_value == "report:2024"
    known.claim("another worker")
    desk.worker().run_task(known)
    result.refresh()
    assert (result.status, result.return_value, jobs.log) == (DONE, "report:2024", [2024])


def test_a_copy_that_does_not_ask_for_the_result_is_caught(desk, monkeypatch):
    """Broken: it returns what its worker knew."""
    monkeypatch.setattr(module.DjangoTaskRun, "finished", lambda run: run._result._return_value)
    with pytest.raises(AssertionError):
        test_the_result_that_was_stored_after_a_copy_was_claimed_stays(desk)


def test_a_task_that_failed_may_run_again(desk):
    """Who makes it ready again wants just that."""
    jobs.bodies.append(lambda: 1 / 0)
    result = after(desk, jobs.retrying.enqueue(2024))
    assert result.status == FAILED
    desk.deliver_again(result)
    assert after(desk, result).return_value == "report:2024"


def test_the_end_of_a_task_inside_of_a_run_ends_that_task_alone(desk):
    """The run goes on, and is recorded at its own end: a copy of it does not run."""
    jobs.bodies.append(lambda: jobs.retrying.using(backend="immediate").enqueue(2025).return_value)
    result = after(desk, jobs.skipping.enqueue(2024))
    assert result.return_value == "report:2025"
    desk.deliver_again(result)
    assert after(desk, result).return_value == "report:2025"
    assert jobs.log == [2024, 2025]


def test_a_result_that_cannot_be_stored_leaves_no_record(desk, monkeypatch):
    """The worker stores a failure, and the run name is free."""
    jobs.bodies.append(object)
    result = after(desk, jobs.skipping.enqueue(2024))
    assert result.status == FAILED
    assert is_free(f"run:{jobs.skipping.module_path}:{result.id}")


# -- at the definition -----------------------------------------------------------------------------


def test_what_is_no_function_is_refused():
    """A task, a generator function, a second decorator: each error says what to write."""
    with pytest.raises(TypeError, match="above @task"):
        locked_task("name")(jobs.plain)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="has @locked_task already"):
        locked_task("name")(jobs.skipping.func)

    def generator():
        yield

    with pytest.raises(TypeError, match="generator function"):
        locked_task("name")(generator)


def report(year):
    """A function of a module, as a task needs it."""


def test_the_decorator_for_celery_is_refused_at_the_definition(desk):
    """Its runs would remove no mark, so nothing more would be enqueued for an hour."""
    celery = pytest.importorskip("django_redlock.celery")
    wrong = celery.locked_task("report:{year}", mode="until_finished")(report)
    with pytest.raises(InvalidTask, match=r"report has .* import it from django_redlock\.tasks"):
        task_of(wrong)


def bill(year):
    """Another one, which a test makes a task by the wrong decorator."""


def test_the_decorator_for_celery_is_refused_on_any_backend(desk, monkeypatch):
    """One that is not ours lets it be defined: a run fails and says why."""
    celery = pytest.importorskip("django_redlock.celery")
    wrong = task_of(backend="bare")(celery.locked_task("report:{year}")(bill))
    monkeypatch.setattr(sys.modules[__name__], "bill", wrong)
    result = wrong.enqueue(2024)
    with hold("report:2024"):
        desk.work("bare")
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == (FAILED, TypeError)
    assert "bill has the @locked_task of Celery's tasks: import it from django_redlock.tasks" in (
        result.errors[0].traceback
    )


@pytest.mark.parametrize("options", [{"on_conflict": "retry"}, {"mode": "until_finished"}])
def test_this_decorator_is_refused_for_a_celery_task(options):
    """It would end messages as failures, or leave marks: each run says why.

    Where its class is ``LockedTask``, the definition does.
    """
    celery = pytest.importorskip("tests.celery.desk")
    from django_redlock.celery import LockedTask

    desk, locked = celery.Desk(), locked_task("report:{year}", **options)(report)
    why = r"desk\.report has the @locked_task of Django's own tasks: .* django_redlock\.celery"
    with pytest.raises(TypeError, match=why):
        desk.task(locked, base=LockedTask)
    task = desk.task(locked)
    found = desk.execute(celery.sent(desk, task, 2024))
    with pytest.raises(TypeError, match=why):
        raise found.info.retval


def test_a_backend_may_run_a_task_by_celery(desk, monkeypatch):
    """Its Celery task is made of the function of a task: nobody has taken the wrong decorator."""
    celery = pytest.importorskip("tests.celery.desk")
    from django_redlock.celery import checks as of_celery

    @functools.wraps(jobs.skipping.func)
    def run(self, *args):
        return jobs.skipping.call(*args)

    queue = celery.Desk()
    task = queue.task(run, bind=True)
    monkeypatch.setattr(of_celery, "current_app", queue.app)
    assert [each for each in of_celery.check_tasks() if "desk.skipping" in each.msg] == []
    assert queue.execute(celery.sent(queue, task, 2024)).retval == "report:2024"


def test_options_that_make_no_sense_are_refused():
    """As for Celery."""
    with pytest.raises(TypeError, match="no keyword 'lifetime'"):
        locked_task("name", lifetime=5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="nobody"):
        locked_task("name:{nobody}")(lambda: None)


def test_marks_are_none_of_a_backend_that_sets_none(desk):
    """A task with a mode on a bare backend runs as ever."""
    bare = jobs.finished.using(backend="bare")
    results = [bare.enqueue(7), bare.enqueue(7)]
    assert marked() == set()
    assert results[0].id != results[1].id
    desk.work("bare")
    assert jobs.log == [7, 7]


@override_settings(TASKS={"default": {"BACKEND": "django_redlock.tasks.UniqueBackend"}})
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"\['BACKEND'\] must name the backend"),
        ({"BACKEND": "no.such"}, "No module named"),
        ({"BACKEND": "django_redlock.tasks.UniqueBackend"}, "no backend that can be wrapped"),
        ({"BACKEND": "django.tasks.Task"}, "no backend that can be wrapped"),
        ({"BACKEND": "x", "QUEUES": []}, "unknown key 'QUEUES'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, said):
    """The error names the setting."""
    from django.tasks import task_backends
    from django.tasks.exceptions import InvalidTaskBackend

    entry = {"BACKEND": "django_redlock.tasks.UniqueBackend", "OPTIONS": options}
    with override_settings(TASKS={"default": entry}):
        with pytest.raises(InvalidTaskBackend, match=said):
            _ = task_backends["default"]
        with pytest.raises(InvalidTaskBackend):
            task_of(jobs.body)
