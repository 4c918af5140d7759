"""``@locked_task(once=…)``: the work of a key is not done again for a while."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_redlock import events, redlock
from django_redlock.core.errors import DuplicateTask
from django_redlock.events import TaskEvent, TaskOutcome
from django_redlock.work.plan import Plan
from tests.celery.desk import hold, is_free, marked

from .kinds import FAILED, LATER, RAN, SKIPPED, Kind

DAY = timedelta(days=1)
KEY = "work:{value}"


def done_elsewhere() -> None:
    """Leave a record for the key of 1."""
    with redlock("work:1").once(DAY) as run:
        assert run.fresh


def is_done_once(kind: Kind, **options: Any) -> bool:
    """Whether the second of two equal messages does nothing, and says so."""
    task = kind.task(KEY, once=DAY, **options)
    kind.send(task)
    assert kind.run() == RAN
    kind.send(task)
    if kind.run() == RAN:
        return False
    assert kind.told["skipped"] is True
    assert kind.told["reason"].startswith("the work was done at 2")
    assert kind.waiting() == 0  # nothing comes back later
    kind.send(task, 2)
    assert kind.run() == RAN
    return True


@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_a_message_whose_work_is_done_is_skipped(kind: Kind, on_conflict):
    """It is a success that says when; the work of another key is done."""
    assert is_done_once(kind, on_conflict=on_conflict)
    assert kind.log == [1, 2]


def test_a_run_that_leaves_no_record_is_caught(kind: Kind, monkeypatch):
    """Broken: the lock is released as without ``once``."""
    monkeypatch.setattr(Plan, "block", lambda _, lock: lock)
    assert not is_done_once(kind)


def test_work_that_failed_is_done_by_the_next_message(kind: Kind):
    """No record is left, and the name is free."""
    task = kind.task(KEY, once=DAY)
    kind.bodies.append(lambda: 1 / 0)
    kind.send(task)
    assert kind.run() == FAILED
    assert is_free("work:1")
    kind.send(task)
    assert kind.run() == RAN


@pytest.mark.parametrize(("on_conflict", "outcome"), [("skip", SKIPPED), ("retry", LATER)])
@pytest.mark.parametrize("options", [{"once": DAY}, {}], ids=["once", "plain"])
def test_a_key_that_is_held_is_a_conflict_as_before(kind: Kind, on_conflict, outcome, options):
    """Work that is under way; and to a task without ``once`` a record is a held key, too."""
    kind.send(kind.task(KEY, on_conflict=on_conflict, **options))
    if not options:
        done_elsewhere()
        assert kind.run() == outcome
    else:
        with hold("work:1"):
            assert kind.run() == outcome
    if outcome == SKIPPED:
        assert kind.told["reason"] == "the key is held"
    if outcome == SKIPPED and not options:
        assert kind.told["retry_after"] == pytest.approx(86_400, abs=60)
    assert (kind.log, kind.waiting()) == ([], int(outcome == LATER))


def test_who_is_skipped_is_told_of_and_may_run_again_when_the_record_is_gone(kind: Kind):
    """A listener hears of it with the key's name. It has not run, so it leaves no record."""
    kind.send(kind.task(KEY, once=DAY))
    done_elsewhere()
    told: list[TaskEvent] = []
    events.watch_tasks(told.append)
    try:
        assert kind.run() == SKIPPED
    finally:
        events.unwatch_tasks(told.append)
    ((outcome, name, error),) = [(each.outcome, each.name, each.error) for each in told]
    assert (outcome, name) == (TaskOutcome.SKIPPED, "work:1")
    assert error is not None
    assert error.code == "recorded"
    redlock.revoke("work:1")
    assert kind.copy() == RAN


@pytest.mark.parametrize("mode", ["until_started", "until_finished"])
def test_its_mark_is_gone_when_it_is_skipped(kind: Kind, mode):
    """The next message is sent."""
    task = kind.task(KEY, once=DAY, mode=mode, on_conflict="retry")
    first = kind.send(task)
    assert marked()
    done_elsewhere()
    assert kind.run() == SKIPPED
    assert marked() == set()
    assert kind.send(task) != first


def is_sent_in_the_time_of_a_record(kind: Kind, on_duplicate: str) -> bool:
    """Whether a message is sent, and told by its own result when the work was done."""
    task = kind.task(KEY, once=DAY, mode="until_finished", on_duplicate=on_duplicate)
    kind.send(task)
    assert kind.run() == RAN
    try:
        kind.send(task)
    except DuplicateTask:
        return False
    if not kind.waiting():
        return False
    assert kind.run() == SKIPPED
    assert kind.told["reason"].startswith("the work was done at 2")
    return True


@pytest.mark.parametrize("on_duplicate", ["existing", "raise", "drop"])
def test_in_the_time_of_a_record_a_message_is_sent(kind: Kind, on_duplicate):
    """The record of an earlier run is no run: it may outlast the result of that by weeks."""
    assert is_sent_in_the_time_of_a_record(kind, on_duplicate)


def test_a_direct_call_whose_work_is_done_is_skipped_as_well(kind: Kind):
    """It has no message, and returns what a message's result would be."""
    task = kind.task(KEY, once=DAY)
    assert kind.call(task) == "work:1"
    assert kind.call(task)["skipped"] is True
    assert kind.log == [1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"once": "1d"}, "once must be a timedelta or a number of seconds, not str"),
        ({"once": 0}, "once must be more than 0 seconds"),
        ({"once": {"keys": ["a"]}}, "once must be a timedelta or a number of seconds, not dict"),
        ({"once": 60, "on_unavailable": "run"}, "with once, write on_unavailable='retry'"),
        ({"once": 60, "key": ["a", "b"]}, "once takes one key"),
    ],
)
def test_what_makes_no_sense_is_refused_at_the_definition(kind: Kind, options, text):
    """The text says what to write."""
    with pytest.raises((TypeError, ValueError), match=text):
        kind.task(**{"key": "a", **options})
