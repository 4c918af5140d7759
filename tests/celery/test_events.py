"""Signals of messages that do not run as they were sent: what receivers get, and break nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import pytest
from django.db import transaction

from django_redlock import (
    LockTaken,
    events,
    signals,
)
from django_redlock.celery import LockedTask, locked_task
from django_redlock.work.options import Mode, OnConflict

from .desk import Desk, hold, is_free, marked, memory, sent
from .site import (
    new_key,
)

SIGNALS = {
    "task_skipped": signals.task_skipped,
    "task_deferred": signals.task_deferred,
    "task_duplicate": signals.task_duplicate,
    "task_finished_before": signals.task_finished_before,
}


ARGUMENTS = {"alias", "name", "template", "task", "task_id", "other_id", "seconds", "error"}


class Told(NamedTuple):
    """One call of a receiver."""

    signal: str
    sender: Any
    arguments: dict[str, Any]


@contextmanager
def told(then: Callable[[], object] = lambda: None, **how: Any) -> Iterator[list[Told]]:
    """What a receiver of each signal gets; afterwards it calls ``then``."""
    got: list[Told] = []
    with ExitStack() as stack:
        for name, signal in SIGNALS.items():

            def receive(sender: Any, *, called: str = name, **arguments: Any) -> None:
                del arguments["signal"]
                got.append(Told(called, sender, arguments))
                then()

            signal.connect(receiver=receive, weak=False, **how)
            stack.callback(signal.disconnect, receiver=receive, sender=how.get("sender"))
        yield got


def task_of(
    desk: Desk, on_conflict: OnConflict = "skip", mode: Mode = "until_finished", **more: Any
) -> Any:
    """A task that leaves records and whose messages have marks."""

    @locked_task("account:{account}", on_conflict=on_conflict, mode=mode)
    def sync(account):
        return "done"

    return desk.task(sync, base=LockedTask, acks_late=True, **more)


# -- what becomes of a message, one function each; they return all that a receiver might break ----


def skip(desk: Desk) -> Any:
    """A message that is skipped."""
    message = sent(desk, task_of(desk), 7)
    with hold("account:7"):
        done = desk.execute(message)
    return done.retval["skipped"], len(desk.messages()), marked(), is_free("account:7")


def defer(desk: Desk) -> Any:
    """A message that comes back later, and keeps its mark."""
    message = sent(desk, task_of(desk, "retry"), 7)
    with hold("account:7"):
        state = desk.execute(message).info.state
    again = desk.only()
    there = marked()
    return state, there, desk.execute(again).retval, marked(), is_free("account:7")


def defer_in_an_outage(desk: Desk) -> Any:
    """The same, because no majority of the nodes replies."""
    message = sent(desk, task_of(desk), 7)
    memory().down = {0, 1, 2}
    state = desk.execute(message).info.state
    memory().down = set()
    return state, desk.execute(desk.only()).retval, marked(), is_free("account:7")


def duplicate(desk: Desk) -> Any:
    """A message that is not sent."""
    task = task_of(desk)
    first, second = task.delay(7), task.delay(7)
    assert first.id == second.id
    return second.duplicate, desk.execute(desk.only()).retval, marked(), is_free("account:7")


def finish(desk: Desk) -> Any:
    """A copy that meets the record."""
    message = sent(desk, task_of(desk), 7)
    desk.execute(message)
    copy = desk.execute(message, redelivered=True)
    return copy.info.state, len(desk.messages()), marked(), is_free("account:7")


CASES = {
    "task_skipped": skip,
    "task_deferred": defer,
    "task_duplicate": duplicate,
    "task_finished_before": finish,
}


cases = pytest.mark.parametrize(("called", "case"), CASES.items(), ids=CASES)


@cases
def test_each_signal_comes_once_with_its_arguments(desk, called, case):
    """The sender is the name of the task; another task's signals are none."""
    with told() as got, told(sender="another") as others, told(sender="desk.sync") as named:
        case(desk)
    assert others == []
    (one,) = got
    assert named == got
    assert (one.signal, one.sender, set(one.arguments)) == (called, "desk.sync", ARGUMENTS)
    assert (one.arguments["alias"], one.arguments["name"]) == ("default", "account:7")
    assert one.arguments["template"] == "account:{account}"
    assert one.arguments["task"] == "desk.sync"
    assert len(one.arguments["task_id"]) == 36
    assert (one.arguments["seconds"] > 0) == (called == "task_deferred")
    refused = called in ("task_skipped", "task_deferred")
    assert isinstance(one.arguments["error"], LockTaken if refused else type(None))


def test_a_duplicate_is_told_the_other_id(desk):
    """The id of the message that waits, and the one that this message would have had."""
    task = task_of(desk)
    first = task.delay(7)
    with told(sender=task) as got:
        task.apply_async((7,), task_id="second")
    ((_, _, arguments),) = got
    assert (arguments["task_id"], arguments["other_id"]) == ("second", first.id)


def test_in_a_transaction_a_duplicate_is_told_after_the_commit(desk, transactional):
    """Until then nobody knows, and after a rollback nobody is told."""
    task = task_of(desk)
    task.delay(7)
    with told() as got:
        with transaction.atomic():
            task.delay(7)
            assert got == []
        assert [each.signal for each in got] == ["task_duplicate"]
        with transaction.atomic():
            task.delay(7)
            transaction.set_rollback(True)
    assert len(got) == 1


def test_a_message_that_runs_sends_no_signal(desk):
    """Nor does one that fails with the refusal, or a function without its task."""
    with told() as got:
        assert desk.execute(sent(desk, task_of(desk), 7)).retval == "done"
        message = sent(desk, task_of(desk, "raise", name="desk.raising"), 7)
        with hold("account:7"):
            assert desk.execute(message).info.state == "FAILURE"

        @locked_task("name")
        def work():
            return "done"

        with hold("name"):
            assert work()["skipped"]
    assert got == []


def test_a_copy_that_succeeded_before_is_told(desk):
    """With worker_deduplicate_successful_tasks, for a copy that came back later."""
    desk.app.conf.worker_deduplicate_successful_tasks = True

    @locked_task("name")
    def work():
        return "done"

    task = desk.task(work, acks_late=True)
    desk.execute(sent(desk, task, task_id=(key := new_key())))
    with told() as got:
        desk.execute(sent(desk, task, task_id=key, headers={"redlock": {"again": True}}))
    ((called, _, arguments),) = got
    assert (called, arguments["task_id"], arguments["name"]) == (
        "task_finished_before",
        key,
        "name",
    )


# -- receivers that raise ----------------------------------------------------------------------


def fail() -> None:
    """Be a receiver with a fault."""
    raise KeyError("receiver")


ALL = [*CASES.values(), defer_in_an_outage]


@pytest.mark.parametrize("case", ALL)
def test_an_error_of_a_receiver_is_harmless(desk, case, caplog):
    """The message, its mark and the lock are as without a receiver."""
    expected = case(Desk())
    with told(fail) as got:
        assert case(desk) == expected
    assert len(got) == 1
    assert "receiver" in caplog.text


@pytest.mark.parametrize("case", ALL)
def test_errors_of_receivers_that_go_on_are_caught(desk, case, monkeypatch):
    """Broken: what a receiver raises goes on to the publisher or the run. The test above fails."""
    expected = case(Desk())
    monkeypatch.setattr(signals.RobustSignal, "send_robust", signals.RobustSignal.send)
    monkeypatch.setattr(events, "_call", lambda listener, event: listener(event))
    with told(fail), suppress(KeyError, AttributeError, TypeError):
        assert case(desk) != expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_interrupted_receiver_leaves_no_lock(desk, case):
    """Ctrl-C in a receiver is meant for the program; the key is free and can be asked for."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with told(interrupt), suppress(KeyboardInterrupt, AttributeError, TypeError):
        case(desk)
    desk.messages()
    assert is_free("account:7")


# -- connecting --------------------------------------------------------------------------------


@pytest.mark.parametrize("sender", [LockedTask, 7, object()])
def test_a_sender_is_a_task_or_a_name(sender):
    """Anything else would never be called, so it is refused."""
    with pytest.raises(TypeError, match="sender must be a task or the name of one"):
        signals.task_skipped.connect(fail, sender=sender)
