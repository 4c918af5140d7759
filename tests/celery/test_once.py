"""``@locked_task(once=…)``: the work of a key is not done again for a while."""

from __future__ import annotations

from datetime import timedelta

import pytest
from celery import states

from django_redlock import redlock
from django_redlock.celery import DuplicateTask, LockedTask, locked_task
from django_redlock.nodes.memory import MemoryNode
from tests.simulation.mutants import Edit, with_edits

from .desk import hold, is_free, sent

DAY = timedelta(days=1)


def counted(once: object = DAY, **options: object):
    """A task's function, and what it has done."""
    done: list[int] = []

    @locked_task("work:{key}", once=once, **options)  # type: ignore[call-overload]
    def work(key, fails=False):
        if fails:
            raise ZeroDivisionError
        done.append(key)
        return key

    return work, done


@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_a_message_whose_work_is_done_is_skipped(desk, on_conflict):
    """It ends as a success that says when, and nothing is sent for later."""
    work, done = counted(on_conflict=on_conflict)
    task = desk.task(work)
    assert desk.execute(sent(desk, task, 1)).retval == 1
    found = desk.execute(sent(desk, task, 1))
    assert found.info is None
    assert found.retval["skipped"]
    assert found.retval["reason"].startswith("the work was done at 2")
    assert desk.messages() == []
    assert desk.execute(sent(desk, task, 2)).retval == 2
    assert done == [1, 2]


def test_work_that_failed_is_done_by_the_next_message(desk):
    """No record is left, and the name is free."""
    work, done = counted()
    task = desk.task(work)
    found = desk.execute(sent(desk, task, 1, True))
    assert found.info.state == states.FAILURE
    assert is_free("work:1")
    assert desk.execute(sent(desk, task, 1)).retval == 1
    assert done == [1]


def test_work_that_is_under_way_is_a_conflict_as_before(desk):
    """``on_conflict`` is for a key that is held."""
    work, done = counted()
    with hold("work:1"):
        found = desk.execute(sent(desk, desk.task(work), 1))
    assert found.retval["reason"] == "the key is held"
    assert done == []


def test_a_task_without_once_meets_a_record_as_a_held_key(desk):
    """Not as a message that has finished: it is put off or skipped, and never dropped silently."""
    with redlock("work:1").once(DAY) as run:
        assert run.fresh

    @locked_task("work:{key}")
    def other(key):
        return key

    @locked_task("work:{key}", on_conflict="retry")
    def patient(key):
        return key

    found = desk.execute(sent(desk, desk.task(other), 1))
    assert found.retval["reason"] == "the key is held"
    assert found.retval["retry_after"] == pytest.approx(86_400, abs=60)
    assert desk.execute(sent(desk, desk.task(patient), 1)).info.state == states.RETRY
    assert len(desk.messages()) == 1


@pytest.mark.parametrize("mode", ["until_started", "until_finished"])
def test_its_mark_is_gone_when_it_is_skipped(desk, mode):
    """The next message is sent."""
    work, done = counted(mode=mode, on_conflict="retry")
    task = desk.task(work, base=LockedTask, acks_late=True)
    message = sent(desk, task, 1)
    with redlock("work:1").once(DAY) as run:
        assert run.fresh
    assert desk.execute(message).retval["skipped"]
    assert done == []
    assert not task.apply_async([1]).duplicate


def is_sent_in_the_time_of_a_record(desk, on_duplicate: str) -> bool:
    """Whether a message is sent, and told by its own result when the work was done."""
    work, done = counted(mode="until_finished", on_duplicate=on_duplicate)
    task = desk.task(work, base=LockedTask, acks_late=True)
    assert desk.execute(sent(desk, task, 1)).retval == 1
    try:
        result = task.apply_async([1])
    except DuplicateTask:
        return False
    if result is None or result.duplicate:
        return False
    assert desk.execute(desk.only()).retval["reason"].startswith("the work was done at 2")
    assert done == [1]
    return True


@pytest.mark.parametrize("on_duplicate", ["existing", "raise", "drop"])
def test_in_the_time_of_a_record_a_message_is_sent(desk, on_duplicate):
    """The record of an earlier run is no run: it may outlast the result of that by weeks."""
    assert is_sent_in_the_time_of_a_record(desk, on_duplicate)


def test_a_record_that_counts_as_a_run_is_caught(desk):
    """Broken: a message is taken for a duplicate of a run that has ended."""
    with with_edits(Edit(MemoryNode, "_mark", "None if ONCE.fullmatch(lock) else ", "")):
        assert not is_sent_in_the_time_of_a_record(desk, "raise")


def test_a_direct_call_whose_work_is_done_is_skipped_as_well(desk):
    """It has no message, and returns what a message's result would be."""
    work, done = counted()
    assert work(1) == 1
    assert work(1)["skipped"]
    assert done == [1]


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
def test_what_makes_no_sense_is_refused_at_the_definition(options, text):
    """The text says what to write."""
    with pytest.raises((TypeError, ValueError), match=text):
        locked_task(**{"key": "a", **options})(lambda: None)
