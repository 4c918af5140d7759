"""Runs of messages without a worker: what a copy meets, and what a run leaves behind."""

from __future__ import annotations

from contextlib import suppress
from contextvars import Context
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from django_redlock import current_lease, redlock
from django_redlock.celery import LockedTask, locked_task, redelivery, task
from django_redlock.celery.publishing import HEADER
from django_redlock.core.names import check_names
from tests.simulation.mutants import Edit, with_edits

from .test_decorator import Desk, desk, hold, is_free, memory, sent

__all__ = ["desk"]


class Work:
    """A task that is acknowledged late, and what its body does: each time what is said next."""

    def __init__(self, desk: Desk, *says: Any, **options: Any) -> None:
        self.desk = desk
        self.says = list(says)
        self.begun = 0
        locking = {"on_conflict": "retry", "wait": 0} | options.pop("lock", {})

        def work(_: Any) -> Any:
            self.begun += 1
            said = self.says.pop(0) if self.says else "done"
            if isinstance(said, BaseException):
                raise said
            return said() if callable(said) else said

        options = {"base": LockedTask, "acks_late": True, "bind": True} | options
        self.task = desk.task(locked_task("key", **locking)(work), **options)
        self.message = sent(desk, self.task)

    @property
    def number(self) -> str:
        """The number of the message."""
        number: str = self.message.headers[HEADER]["message"]
        return number

    @property
    def name(self) -> str:
        """The run name."""
        return f"run:desk.work:{self.number}"

    def run(self, message: Any = None, *, redelivered: bool = False) -> Any:
        """Execute a message as a worker does; a body that dies has no outcome."""
        with suppress(SystemExit):
            return self.desk.execute(message or self.message, redelivered=redelivered)

    def copy(self) -> Any:
        """Execute the message as a worker does to which it is delivered again."""
        return self.run(redelivered=True)

    @property
    def state(self) -> str:
        """What ``AsyncResult`` shows."""
        return str(self.desk.app.AsyncResult(self.message.headers["id"]).state)


def is_ignored(done: Any) -> bool:
    """Whether a message ended without a state."""
    return done.info is not None and isinstance(done.info.retval, Ignore)


# -- a copy after the run -----------------------------------------------------------------------


@pytest.mark.parametrize("track_started", [False, True])
@pytest.mark.parametrize(("says", "state"), [("done", "SUCCESS"), (ValueError(), "FAILURE")])
@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_a_copy_of_what_has_finished_does_not_run(desk, says, state, track_started, on_conflict):
    """It ends without its body, and the stored result stays as it is."""
    work = Work(desk, says, track_started=track_started, lock={"on_conflict": on_conflict})
    work.run()
    result = repr(desk.app.AsyncResult(work.message.headers["id"]).result)
    for _ in range(2):
        assert is_ignored(work.copy())
        assert (work.begun, work.state) == (1, state)
    assert repr(desk.app.AsyncResult(work.message.headers["id"]).result) == result
    assert desk.messages() == []
    assert is_free("key")


def test_a_copy_of_what_has_finished_is_told_in_the_log(desk, caplog):
    """An operator sees why a message ended."""
    work = Work(desk)
    work.run()
    with caplog.at_level("INFO", "django_redlock"):
        work.copy()
    assert "has finished before" in caplog.text


@pytest.mark.parametrize("says", [SystemExit(1), Ignore(), Reject("later", requeue=True)])
def test_a_copy_of_what_has_not_finished_runs(desk, says):
    """A process that exits, and a message that is given back, leave no record and no name."""
    work = Work(desk, says)
    with suppress(Reject):
        work.run()
    assert is_free(work.name)
    assert is_free("key")
    assert work.copy().info is None
    assert (work.begun, work.state) == (2, "SUCCESS")


# Celery warns of it, and warnings are errors in these tests.
outside = pytest.mark.filterwarnings("ignore:Exception raised outside body")


@outside
def test_a_copy_of_what_was_not_stored_runs(desk, monkeypatch):
    """Where the result could not be stored, nothing is recorded, though the body has ended."""
    work = Work(desk)
    with monkeypatch.context() as patch:
        patch.setattr(desk.app.backend, "mark_as_done", refuse)
        patch.setattr(desk.app.backend, "mark_as_failure", refuse)
        with suppress(RuntimeError):
            work.run()
    assert is_free(work.name)
    work.copy()
    assert work.begun == 2


def refuse(*_: object, **__: object) -> None:
    """Be a result backend that is down."""
    raise RuntimeError("down")


@outside
def test_a_record_that_waits_for_nothing_is_caught(desk, monkeypatch):
    """Broken: the record is written when the body has ended. What was not stored never runs."""
    work = Work(desk)
    edit = Edit(redelivery.Run, "end", "self.is_stored and sys.exc_info()[1] is None", "True")
    with monkeypatch.context() as patch, with_edits(edit):
        patch.setattr(desk.app.backend, "mark_as_done", refuse)
        patch.setattr(desk.app.backend, "mark_as_failure", refuse)
        with suppress(RuntimeError):
            work.run()
    work.copy()
    assert (work.begun, work.state) == (1, "PENDING")


def test_a_handler_that_wants_the_message_back_gets_it(desk):
    """Reject from ``after_return`` comes after the storage, and the copy runs."""

    class Wary(LockedTask):
        abstract = True

        def after_return(self, *_: object) -> None:
            if work.begun == 1:
                raise Reject("once more", requeue=True)

    work = Work(desk, base=Wary)
    with suppress(Reject):
        work.run()
    assert is_free(work.name)
    work.copy()
    assert work.begun == 2


def test_handlers_need_not_call_the_base_class(desk):
    """A task with its own ``on_success`` and ``after_return`` leaves its record all the same."""

    class Own(LockedTask):
        abstract = True

        def on_success(self, *_: object) -> None:
            seen.append((is_free("key"), is_free(work.name), current_lease()))

        after_return = on_success

    seen: list[Any] = []
    work = Work(desk, base=Own)
    work.run()
    assert seen == [(True, False, None)] * 2  # the key is free then, and the run name is not
    assert is_ignored(work.copy())


def test_a_failure_that_goes_to_a_dead_letter_queue_may_come_back(desk):
    """Its message goes to a dead-letter queue, and an operator may send it from there."""
    work = Work(desk, ValueError(), acks_on_failure_or_timeout=False)
    work.run()
    assert is_free(work.name)
    work.copy()
    assert (work.begun, work.state) == (2, "SUCCESS")


def test_what_was_recorded_nowhere_is_told(desk, caplog):
    """The run loses its names before the end: the log says that it may run again."""

    def lose() -> None:
        for node in memory().nodes:
            node.keys.clear()

    work = Work(desk, lose)
    work.run()
    assert "would run again" in caplog.text
    work.copy()
    assert work.begun == 2


# -- a copy beside the run ----------------------------------------------------------------------


@pytest.mark.parametrize("track_started", [False, True])
@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_copy_waits_while_the_run_lives(desk, track_started, on_conflict, flag):
    """It is sent again with the number of the message, and leaves the state as it is."""
    met: list[Any] = []

    def meet() -> None:
        met.append(Context().run(work.run, redelivered=flag))
        met.append(work.state)

    work = Work(desk, meet, track_started=track_started, lock={"on_conflict": on_conflict})
    work.run()
    assert is_ignored(met[0])
    assert met[1] == ("STARTED" if track_started else "PENDING")
    again = desk.only()
    assert again.headers["id"] == work.message.headers["id"]
    assert again.headers[HEADER].items() >= {"message": work.number, "again": True}.items()
    assert again.headers["eta"] is not None
    assert is_ignored(work.run(again))
    assert (work.begun, work.state) == (1, "SUCCESS")


def test_a_copy_waits_until_the_result_is_stored(desk):
    """After the body, while callbacks are sent and the result is stored, the run still lives."""
    met: list[Any] = []

    class Slow(LockedTask):
        abstract = True

        def on_success(self, *_: object) -> None:
            met.append(Context().run(work.copy))

    work = Work(desk, base=Slow)
    work.run()
    assert is_ignored(met[0])
    assert is_ignored(work.run(desk.only()))
    assert work.begun == 1


def test_a_copy_that_would_store_started_is_caught(desk, monkeypatch):
    """Broken: Celery stores STARTED before the grant. A copy turns FAILURE into it for ever."""
    with with_edits(Edit(redelivery, "take_over_started", "task.acks_late and", "False and")):
        monkeypatch.setattr(task, "take_over_started", redelivery.take_over_started)
        work = Work(desk, ValueError(), track_started=True)
        work.run()
        work.copy()
    assert work.state == "STARTED"


def test_a_copy_whose_key_is_held_by_another_waits_silently(desk):
    """Its first run has died, and another message of the key runs: the state stays as it is."""
    work = Work(desk, SystemExit(1), track_started=True)
    work.run()
    with hold("key"):
        assert is_ignored(work.copy())
    assert work.state == "STARTED"
    work.run(desk.only())
    assert (work.begun, work.state) == (2, "SUCCESS")


def test_a_message_that_is_no_copy_waits_as_ever(desk):
    """It is shown as a retry, so that one sees what it waits for."""
    work = Work(desk)
    with hold("key"):
        work.run()
    assert work.state == "RETRY"
    assert desk.only().headers[HEADER]["message"] == work.number


# -- what is a copy -----------------------------------------------------------------------------


def test_a_second_message_with_the_same_task_id_runs(desk):
    """A task id that is used on purpose, again and again, says nothing of what has finished."""
    work = Work(desk)
    for count in (1, 2):
        message = sent(desk, work.task, task_id="nightly")
        assert work.run(message, redelivered=True).info is None
        assert work.begun == count


def test_a_retry_is_a_new_message(desk):
    """The message that published it has finished; the retry runs, and is told by its own number."""

    def again() -> None:
        raise work.task.retry(countdown=0)

    work = Work(desk, again)
    work.run()
    assert work.state == "RETRY"
    retry = desk.only()
    assert retry.headers[HEADER]["message"] != work.number
    assert is_ignored(work.copy())
    assert work.run(retry).info is None
    assert (work.begun, work.state) == (2, "SUCCESS")
    assert is_ignored(work.run(retry, redelivered=True))


def test_a_message_with_the_headers_of_another_is_a_new_one(desk):
    """What a body sends with its own headers is not a copy of it."""
    work = Work(desk)
    work.run()
    other = sent(desk, work.task, headers=dict(work.message.headers))
    assert other.headers[HEADER]["message"] != work.number
    work.run(other)
    assert work.begun == 2


@pytest.mark.parametrize("number", [None, 7, "", "a b", "x" * 65, "\x00", ["a"], {}])
def test_a_message_without_a_number_is_as_it_was(desk, number):
    """What ``send_task`` sends, or anybody writes, has no run name; it runs and runs again."""
    work = Work(desk)
    work.message.headers[HEADER] = {"message": number}
    for count in (1, 2):
        assert work.copy().info is None
        assert work.begun == count


@pytest.mark.parametrize("options", [{"acks_late": False}, {"base": None}])
def test_other_tasks_are_as_they_were(desk, options):
    """Acknowledged early, or without the base class, a message has no run name."""
    options = {key: value for key, value in options.items() if value is not None}
    if not options:
        options = {"base": desk.app.Task}
    work = Work(desk, **options)
    for count in (1, 2):
        assert work.copy().info is None
        assert work.begun == count


def test_a_body_that_calls_itself_is_one_run(desk):
    """A nested call of another key takes that key and no second run name."""
    seen: list[Any] = []

    @locked_task("{key}", on_conflict="raise")
    def work(key: str) -> None:
        lease = current_lease()
        assert lease is not None
        seen.append(lease.names)
        if key == "a":
            work("b")

    task = desk.task(work, base=LockedTask, acks_late=True)
    message = sent(desk, task, "a")
    desk.execute(message)
    name = f"run:desk.work:{message.headers[HEADER]['message']}"
    assert seen == [(name, "a"), ("b",)]
    assert is_free("a")


def test_a_holder_sees_its_key(desk):
    """The name of the lease is the key; the label of both names has the task id."""
    seen: list[Any] = []

    def look() -> None:
        lease = current_lease()
        assert lease is not None
        seen.append(lease.name)
        for name in ("key", work.name):
            value = memory().nodes[0].get(f"redlock:lock:{name}")
            assert value is not None
            assert work.message.headers["id"] in value

    work = Work(desk, look)
    assert work.run().info is None
    assert seen == ["key"]


def test_a_run_name_is_a_name_whatever_the_task_is_called(desk):
    """Long names, braces and control characters make no error of the run."""
    work = Work(desk, name="{" + "\n" + "x" * 600)
    assert work.run().info is None
    assert is_ignored(work.copy())
    (name,) = (key for key in memory().nodes[0].keys if "run:" in key)
    assert check_names(name.removeprefix("redlock:lock:"))


def test_as_many_names_as_a_lock_may_have(desk):
    """A run name comes on top of them."""
    names = [f"name-{number}" for number in range(128)]

    @locked_task(names)
    def work() -> None:
        """Do nothing."""

    task = desk.task(work, base=LockedTask, acks_late=True)
    message = sent(desk, task)
    assert desk.execute(message).info is None
    assert is_ignored(desk.execute(message, redelivered=True))


def test_a_record_lives_longer_than_the_broker_waits(desk):
    """It stays for the visibility timeout and a minute more, whatever MAX_TTL is."""
    desk.app.conf.broker_transport_options = {"visibility_timeout": 7200}
    work = Work(desk)
    work.run()
    for node in memory().nodes:
        assert "done::" in str(node.get(f"redlock:lock:{work.name}"))
        assert 7250 < node.pttl(f"redlock:lock:{work.name}") / 1000 <= 7260


def test_an_eager_call_leaves_no_record(desk):
    """There is no message that could be delivered again."""
    work = Work(desk)
    desk.app.conf.task_always_eager = True
    assert work.task.apply_async().get() == "done"
    assert work.task.apply().get() == "done"
    assert not [key for key in memory().nodes[0].keys if "run:" in key]


def test_a_base_class_does_not_lock_what_is_locked(desk):
    """``base=LockedTask`` over ``@locked_task`` locks the key, and nothing besides."""
    seen: list[Any] = []
    work = Work(desk, lambda: seen.extend(memory().nodes[0].keys))
    work.run()
    assert sorted(seen) == ["redlock:lock:key", f"redlock:lock:{work.name}"]


def test_started_is_stored_after_the_grant(desk):
    """A task with ``track_started`` shows that it runs, when it does."""
    states: list[str] = []

    def look() -> None:
        states.append(work.state)

    work = Work(desk, look, track_started=True)
    with hold("key"):
        work.run()
        states.append(work.state)
    work.run(desk.only())
    assert states == ["RETRY", "STARTED"]


def test_a_soft_limit_at_the_end_of_the_body_keeps_nothing(desk, monkeypatch):
    """An interruption between the body and what follows leaves both names free."""

    def interrupted(*_: object) -> None:
        raise SystemExit

    work = Work(desk)
    with monkeypatch.context() as patch:
        patch.setattr(redelivery, "keep", interrupted)
        work.run()
    assert is_free("key")
    assert is_free(work.name)
    assert redlock("key").try_acquire() is not None
