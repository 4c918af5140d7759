"""``@locked_task(limit=…)``: so many messages of one key run at a time."""

from __future__ import annotations

import pytest

from django_redlock import LockTaken, current_lease, redlock
from django_redlock.testing import assert_free, taken
from django_redlock.work.plan import Plan
from tests.celery.desk import hold

from .kinds import LATER, RAN, SKIPPED, Kind, elsewhere

KEY = "tenant:{value}"


def noted(slots: list[object]) -> None:
    """Note the slot in which a body runs."""
    lease = current_lease()
    assert lease is not None
    slots.append((lease.name, lease.slot in range(2), lease.limit))


def test_so_many_run_and_the_next_is_a_conflict(kind: Kind):
    """A key is held when all of its slots are; another key has slots of its own."""
    task, slots = kind.task(KEY, limit=2), list[object]()
    kind.bodies = [lambda: noted(slots)] * 3
    kind.send(task)
    with taken("tenant:1", limit=1), redlock("tenant:1"):  # one slot, and the plain lock
        assert kind.run() == RAN
    with taken("tenant:1", limit=2):
        kind.send(task, 2)
        assert kind.run() == RAN
        kind.send(task)
        assert kind.run() == LATER
    assert kind.run() == RAN
    assert slots == [("tenant:1", True, 2), ("tenant:2", True, 2), ("tenant:1", True, 2)]
    assert_free("tenant:1", "tenant:2", limit=2)


def test_a_message_is_dropped_where_that_is_written(kind: Kind):
    """With ``on_conflict="skip"``."""
    kind.send(kind.task(KEY, limit=2, on_conflict="skip"))
    with taken("tenant:1", limit=2):
        assert kind.run() == SKIPPED
    assert kind.told["retry_after"] > 0


def test_what_cannot_come_back_fails(kind: Kind):
    """A call without a message is not taken for done."""
    task = kind.task(KEY, limit=2)
    with taken("tenant:1", limit=2), pytest.raises(LockTaken, match="all 2 slots are held"):
        kind.call(task)
    assert kind.log == []


def copies(kind: Kind) -> list[object]:
    """The bodies of a message that is delivered again while it runs."""
    kind.send(kind.task(KEY, limit=5))
    kind.bodies.append(lambda: elsewhere(kind.copy))
    kind.run()
    return kind.log


def test_a_copy_of_a_message_that_runs_does_not_run(kind: Kind):
    """The run name has no limit: another slot that is free lets no copy in."""
    assert copies(kind) == [1]
    assert_free("tenant:1", limit=5)


def test_a_run_name_with_a_limit_is_caught(kind: Kind, monkeypatch):
    """Broken: the run name takes the options of the key."""
    init = Plan.__init__

    def with_limit(plan, *args, **options):
        init(plan, *args, **options)
        vars(plan)["template"] = plan.template.using(limit=plan.limit)

    monkeypatch.setattr(Plan, "__init__", with_limit)
    assert copies(kind) == [1, 1]


def test_one_waits_while_others_run(kind: Kind):
    """With ``until_started``: a second message is sent when the first one has begun."""
    task = kind.task(KEY, limit=2, mode="until_started", on_conflict="retry")
    first = kind.send(task)
    assert kind.send(task) == first
    with taken("tenant:1", limit=1):  # one of two runs: the message begins
        assert kind.run() == RAN
    assert kind.send(task) != first


def test_a_key_of_all_arguments_has_slots_too(kind: Kind):
    """Without a key."""
    found: list[object] = []

    def look() -> None:
        lease = current_lease()
        found.append(lease and (lease.limit, str(lease.name)[:5]))

    kind.bodies.append(look)
    kind.send(kind.task(None, limit=2))
    kind.run()
    assert found == [(2, "task:")]


def test_the_plain_lock_is_another_one(kind: Kind):
    """A task with a limit runs beside a holder of the name without one."""
    kind.send(kind.task(KEY, limit=2))
    with hold("tenant:1"):
        assert kind.run() == RAN


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"limit": 3, "mode": "until_finished"}, "limit=3 would never let a second one run"),
        ({"limit": 3, "once": 60}, "once takes no limit"),
        ({"limit": 3, "key": ["a:{value}", "b:{value}"]}, "limit takes one key"),
        ({"limit": 0}, "limit must be from 1 to 128, not 0"),
        ({"limit": 129}, "limit must be from 1 to 128, not 129"),
        ({"limit": True}, "limit must be an int"),
        ({"limit": "3"}, "limit must be an int"),
    ],
)
def test_limits_that_make_no_sense(kind: Kind, options, why):
    """They are refused when the code is read."""
    with pytest.raises((TypeError, ValueError), match=why):
        kind.task(**{"key": KEY} | options)
