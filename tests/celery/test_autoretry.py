"""Retries that Celery publishes by itself, of tasks whose messages have marks; without a worker."""

from __future__ import annotations

from contextvars import Context
from datetime import UTC, datetime

from django_redlock.celery import LockedTask, locked_task
from django_redlock.celery import task as task_module
from django_redlock.errors import LockTaken

from .test_decorator import hold, is_free
from .test_publishing import desk, marked

__all__ = ["desk"]


def auto(desk, kinds, **options):
    """A task that fails in each run, and is retried by Celery; and what a publisher saw then."""
    seen: list[object] = []

    class Watched(LockedTask):
        abstract = True

        def retry(self, *args, **kwargs):
            if not self.request.retries:
                seen.append(Context().run(self.apply_async, (7,)).duplicate)
            return super().retry(*args, **kwargs)

    @locked_task("account:{account}", mode="until_finished", **options.pop("lock", {}))
    def sync(self, account):
        raise LookupError(account)

    options = {"autoretry_for": kinds, "retry_kwargs": {"countdown": 0, "max_retries": 1}} | options
    return desk.task(sync, base=Watched, bind=True, **options), seen


def test_no_message_is_sent_before_a_retry_by_autoretry(desk):
    """Celery publishes it inside of the lock, like a retry by hand; nothing is left at the end."""
    task, seen = auto(desk, (LookupError,))
    first = task.delay(7)
    assert desk.execute(desk.only()).info.state == "RETRY"
    assert (seen, marked()) == ([True], {"desk.sync:account:7"})
    message = desk.only()
    assert (message.headers["id"], message.headers["retries"]) == (first.id, 1)
    assert desk.execute(message).info.state == "FAILURE"
    assert isinstance(first.result, LookupError)
    assert (desk.messages(), marked(), is_free("account:7")) == ([], set(), True)


def test_a_retry_outside_of_the_lock_is_caught(desk, monkeypatch):
    """Broken: Celery's own wrapper alone. A message is sent between the lock and the retry."""
    monkeypatch.setattr(task_module, "_retried_inside", lambda _, body: body)
    task, seen = auto(desk, (LookupError,))
    task.delay(7)
    desk.execute(desk.only())
    assert (seen, len(desk.messages())) == ([False], 2)


def test_autoretry_keeps_its_options(desk):
    """What is not to be retried fails; a delay that grows is that of Celery."""
    task, seen = auto(desk, (Exception,), dont_autoretry_for=(LookupError,))
    task.delay(7)
    assert desk.execute(desk.only()).info.state == "FAILURE"
    assert (seen, desk.messages()) == ([], [])
    backoff = {"retry_backoff": 500, "retry_jitter": False, "retry_kwargs": {"max_retries": 1}}
    task, _ = auto(desk, (LookupError,), name="desk.slow", **backoff)
    task.delay(7)
    desk.execute(desk.only())
    eta = datetime.fromisoformat(desk.only().headers["eta"])
    assert 490 < (eta - datetime.now(UTC)).total_seconds() < 510


def test_a_conflict_may_be_retried_by_autoretry(desk):
    """With on_conflict="raise" the refusal is an error of the task like any other."""

    @locked_task("account:{account}", mode="until_finished", on_conflict="raise")
    def sync(account):
        return "done"

    told = {"countdown": 0, "max_retries": 1}
    task = desk.task(sync, base=LockedTask, autoretry_for=(LockTaken,), retry_kwargs=told)
    task.delay(7)
    message = desk.only()
    with hold("account:7"):
        assert desk.execute(message).info.state == "RETRY"
    message = desk.only()
    assert message.headers["retries"] == 1
    assert desk.execute(message).retval == "done"


def test_a_retry_without_throw_is_raised_once(desk):
    """Celery deletes what it has noted on the task, and raises what ``retry`` returned."""
    told = {"countdown": 0, "max_retries": 1, "throw": False}
    task, _ = auto(desk, (LookupError,), retry_kwargs=told)
    task.override_max_retries = 1
    task.delay(7)
    assert desk.execute(desk.only()).info.state == "RETRY"
    assert len(desk.messages()) == 1
