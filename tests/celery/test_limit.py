"""``@locked_task(limit=…)``: so many messages of one key run at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

import pytest

from django_redlock import LockTaken, current_lease, redlock
from django_redlock.celery import LockedTask, locked_task
from django_redlock.celery import task as task_module
from django_redlock.testing import assert_free, taken
from django_redlock.work.plan import Plan, plan_of

from .desk import hold, is_ignored, nothing, sent


def limited(**options: object):
    """A task's function, and the slots in which it has run."""
    slots: list[object] = []

    @locked_task("tenant:{tenant}", limit=2, **options)  # type: ignore[call-overload]
    def work(tenant):
        lease = current_lease()
        assert lease is not None
        slots.append((lease.name, lease.slot in range(2), lease.limit))
        return tenant

    return work, slots


def test_so_many_run_and_the_next_is_a_conflict(desk):
    """A key is held when all of its slots are; another key has slots of its own."""
    work, slots = limited()
    task = desk.task(work)
    with taken("tenant:1", limit=1), redlock("tenant:1"):  # one slot, and the plain lock
        assert desk.execute(sent(desk, task, 1)).retval == 1
    with taken("tenant:1", limit=2):
        assert desk.execute(sent(desk, task, 1)).info.state == "RETRY"
        again = desk.only()
        assert desk.execute(sent(desk, task, 2)).retval == 2
    assert desk.execute(again).retval == 1
    assert slots == [("tenant:1", True, 2), ("tenant:2", True, 2), ("tenant:1", True, 2)]
    assert_free("tenant:1", "tenant:2", limit=2)


def test_a_message_is_dropped_where_that_is_written(desk):
    """With ``on_conflict="skip"``; without a limit that is the default, as it was."""
    work, slots = limited(on_conflict="skip")
    with taken("tenant:1", limit=2):
        found = desk.execute(sent(desk, desk.task(work), 1))
    assert (found.info, found.retval["reason"]) == (None, "the key is held")
    assert found.retval["retry_after"] > 0
    assert slots == []
    plan = plan_of(locked_task("name")(nothing))
    assert plan is not None
    assert plan.on_conflict == "skip"


@pytest.mark.parametrize("how", ["eager", "direct"])
def test_what_cannot_come_back_fails(desk, how):
    """A call without a message is not taken for done."""
    work, slots = limited()
    task = desk.task(work)
    with taken("tenant:1", limit=2), pytest.raises(LockTaken, match="all 2 slots are held"):
        _ = task(1) if how == "direct" else task.apply((1,)).get()
    assert slots == []


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


def test_a_copy_of_a_message_that_runs_does_not_run(desk):
    """The run name has no limit: another slot that is free lets no copy in."""
    begun, (copy, first) = copies(desk, base=LockedTask)
    assert begun == [1]
    assert first.retval == 1
    assert is_ignored(copy)
    assert_free("tenant:1", limit=5)


def test_a_run_name_with_a_limit_is_caught(desk, monkeypatch):
    """Broken: the run name takes the options of the key."""
    init = Plan.__init__

    def with_limit(self, *args, **options):
        init(self, *args, **options)
        vars(self)["template"] = self.template.using(limit=self.limit)

    monkeypatch.setattr(Plan, "__init__", with_limit)
    begun, _ = copies(desk, base=LockedTask)
    assert begun == [1, 1]


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


def test_one_waits_while_others_run(desk):
    """With ``until_started``: a second message is sent when the first one has begun."""
    work, _ = limited(mode="until_started", on_conflict="retry")
    task = desk.task(work, base=LockedTask)
    first = task.delay(1)
    assert task.delay(1).id == first.id
    with taken("tenant:1", limit=1):  # one of two runs: the message begins
        assert desk.execute(desk.only()).retval == 1
    assert task.delay(1).id != first.id


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"limit": 3, "mode": "until_finished"}, "limit=3 would never let a second one run"),
        ({"limit": 3, "once": 60}, "once takes no limit"),
        ({"limit": 3, "key": ["a:{x}", "b:{x}"]}, "limit takes one key"),
        ({"limit": 0}, "limit must be from 1 to 128, not 0"),
        ({"limit": 129}, "limit must be from 1 to 128, not 129"),
        ({"limit": True}, "limit must be an int"),
        ({"limit": "3"}, "limit must be an int"),
    ],
)
def test_limits_that_make_no_sense(options, why):
    """They are refused when the code is read."""
    decorate = locked_task(**({"key": "a:{x}"} | options))
    with pytest.raises((TypeError, ValueError), match=why):

        @decorate
        def work(x):
            """Never runs."""


def test_a_key_of_all_arguments_has_slots_too(desk):
    """Without a key."""

    @locked_task(limit=2)
    def work(x):
        lease = current_lease()
        return None if lease is None else (lease.limit, str(lease.name)[:5])

    assert desk.execute(sent(desk, desk.task(work), 1)).retval in [(2, "task:"), [2, "task:"]]


def test_the_plain_lock_is_another_one(desk):
    """A task with a limit runs beside a holder of the name without one."""
    work, slots = limited()
    with hold("tenant:1"):
        assert desk.execute(sent(desk, desk.task(work), 1)).retval == 1
    assert len(slots) == 1
