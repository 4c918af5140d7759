"""``@locked_task(limit=…)`` where only Celery differs; ``tests/work`` has the rest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

import pytest

from django_redlock import LockTaken
from django_redlock.celery import locked_task
from django_redlock.celery import task as task_module
from django_redlock.testing import taken

from .desk import nothing, sent


def test_what_is_eager_cannot_come_back_and_fails(desk):
    """A call without a message is not taken for done."""
    task = desk.task(locked_task("name", limit=2)(nothing))
    with taken("name", limit=2), pytest.raises(LockTaken, match="all 2 slots are held"):
        task.apply().get()


def copies(desk, **options):
    """A message that is delivered again while it runs; the bodies that began, and the outcomes."""
    begun: list[object] = []
    outcomes: list[object] = []
    messages: list[object] = []

    @locked_task("tenant:{tenant}", limit=5)
    def work(tenant):
        begun.append(tenant)
        if len(begun) == 1:
            copy = Context().run(ThreadPoolExecutor(1).submit, desk.execute, *messages)
            outcomes.append(copy.result())
        return tenant

    task = desk.task(work, acks_late=True, **options)
    messages.append(sent(desk, task, 1))
    outcomes.append(desk.execute(*messages))
    return begun, outcomes


def test_a_late_task_without_numbers_is_refused(desk):
    """A copy would run in another slot: the first run says what to write."""
    begun, (found,) = copies(desk)
    assert begun == []
    assert isinstance(found.info.retval, TypeError)
    assert "write @shared_task(base=LockedTask)" in str(found.info.retval)


def test_a_late_task_that_is_not_refused_is_caught(desk, monkeypatch):
    """Broken: nobody looks at its class, and the copy runs beside the first run."""
    monkeypatch.setattr(task_module, "lets_copies_in", lambda *_: False)
    begun, _ = copies(desk)
    assert begun == [1, 1]
