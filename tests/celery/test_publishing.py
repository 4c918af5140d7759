"""Messages that are not queued twice, without a worker: their marks from publish to the end."""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from io import StringIO
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from celery import chain, chord, group, signals
from celery.worker.request import Request
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase
from django.utils.connection import ConnectionDoesNotExist

from django_redlock.backend import Backend
from django_redlock.celery import (
    LockedTask,
    locked_task,
    marks,
    publishing,
)
from django_redlock.celery import task as task_module
from django_redlock.celery.marks import HEADER, mark_in
from django_redlock.celery.publishing import AWAITED
from django_redlock.work import publishing as decisions
from django_redlock.work.publishing import OutgoingMessage
from tests.support.databases import connected
from tests.support.waiting import eventually

from .desk import Desk, held_name, hold, is_free, locked, marked, memory, sent

# -- from publish to the end -------------------------------------------------------------------


def sync(desk: Desk, body: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A task of which no second message is queued; ``body`` is called with the task."""
    lock = {"mode": "until_finished", **options.pop("lock", {})}
    if lock["mode"] == "until_started":
        lock.setdefault("on_conflict", "retry")

    @locked_task("account:{account}", **lock)
    def sync(self, account):
        return held_name() if body is None else body(self)

    return desk.task(sync, base=LockedTask, bind=True, **options)


MODES = pytest.mark.parametrize("mode", ["until_started", "until_finished"])


def test_a_retry_owns_its_mark(desk):
    """It is sent whatever is there, sets the mark anew, and the last run removes it."""

    def body(self):
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return self.request.retries

    task = sync(desk, body)
    first = task.delay(7)
    message = desk.only()
    for retries in range(2):
        assert desk.execute(message).info.state == "RETRY"
        assert (task.delay(7).duplicate, task.delay(7).id) == (True, first.id)
        message = desk.only()
        assert message.headers["retries"] == retries + 1
    assert desk.execute(message).retval == 2
    assert marked() == set()


def test_a_message_that_was_delivered_again_keeps_its_place(desk):
    """A run of a copy removes any mark of its id, but not that of the message that it sends."""
    task = sync(desk, lock={"on_conflict": "retry"})  # it has no number: acknowledged early
    first = task.delay(7)
    with hold("account:7"):
        assert desk.execute(desk.only(), redelivered=True).info.state == "RETRY"
        assert task.delay(7).id == first.id
    assert desk.execute(desk.only()).retval == "account:7"
    assert marked() == set()


@pytest.mark.slow
@pytest.mark.parametrize("put_off", [False, True], ids=["retried", "put off"])
def test_what_is_sent_again_is_sent_whatever_is_there(desk, put_off):
    """Another message waits meanwhile, sent when nobody could mark: both run."""

    def body(self):
        if not self.request.retries:
            raise self.retry(countdown=0)
        return "done"

    task = sync(desk, body, lock={"on_conflict": "retry"})
    task.delay(7)
    message = desk.only()
    for node in memory().nodes:
        node.keys["redlock:mark:desk.sync:account:7"] = (f"{'f' * 32}:9:another", None)
    if put_off:
        with hold("account:7"):
            assert desk.execute(message).info.state == "RETRY"
    else:
        assert desk.execute(message).info.state == "RETRY"
    assert desk.only().headers["id"] == message.headers["id"]
    assert marked() == {"desk.sync:account:7"}


def test_without_autocommit_nothing_is_sent(desk, transactional):
    """Nobody tells it of the COMMIT, so it is refused; a task without marks is sent as ever."""
    task = sync(desk, lambda self: None)
    connection.set_autocommit(False)
    try:
        with pytest.raises(transaction.TransactionManagementError, match="autocommit is off"):
            task.delay(7)
    finally:
        connection.set_autocommit(True)
    assert (desk.messages(), marked()) == ([], set())


def test_a_retry_in_a_transaction_that_it_rolls_back_is_sent(desk, transactional):
    """The exception that ends the run ends the transaction, so nothing waits for a COMMIT."""

    def body(self):
        with transaction.atomic():
            raise self.retry(countdown=0)

    task = sync(desk, body)
    task.delay(7)
    assert desk.execute(desk.only()).info.state == "RETRY"
    assert desk.only().headers["retries"] == 1


# -- retries that Celery publishes by itself ---------------------------------------------------


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
    monkeypatch.setattr(task_module, "_with_retries_inside", lambda _, body: body)
    task, seen = auto(desk, (LookupError,))
    task.delay(7)
    desk.execute(desk.only())
    assert (seen, len(desk.messages())) == ([False], 2)


def test_a_retry_without_throw_is_raised_once(desk):
    """Celery deletes what it has noted on the task, and raises what ``retry`` returned."""
    told = {"countdown": 0, "max_retries": 1, "throw": False}
    task, _ = auto(desk, (LookupError,), retry_kwargs=told)
    task.override_max_retries = 1
    task.delay(7)
    assert desk.execute(desk.only()).info.state == "RETRY"
    assert len(desk.messages()) == 1


@pytest.mark.slow
def test_autoretry_leaves_waiting_alone(desk):
    """A task with autoretry_for=Exception does not turn a deferred message into a counted retry."""
    task = desk.task(locked("retry"), autoretry_for=(Exception,), max_retries=1)
    message = sent(desk, task)
    with hold("name"):
        for _ in range(3):
            assert desk.execute(message).info.state == "RETRY"
            message = desk.only()
    assert message.headers["retries"] == 0
    assert desk.execute(message).retval == "name"


# -- what is always sent -----------------------------------------------------------------------


def test_what_somebody_waits_for_is_always_sent(desk):
    """Parts of groups, chords and chains, and messages with callbacks; they have no mark."""
    task = sync(desk)

    def work(results):
        return results

    collect = desk.task(work)

    task.delay(7)
    (first,) = desk.messages()
    sent = [
        group([task.s(7), task.s(7)]),
        lambda: task.apply_async((7,), link=collect.s()),
        lambda: task.apply_async((7,), link_error=collect.s()),
        chain(task.s(7), collect.s()),
        lambda: task.apply_async((7,), chain=[]),
        lambda: task.apply_async((7,), replaced_task_nesting=1),
        lambda: chord([task.s(7)])(collect.s()),
    ]
    for send, count in zip(sent, [2, 1, 1, 1, 1, 1, 1], strict=True):
        send()
        messages = desk.messages()
        assert len(messages) == count, send
        assert not any(HEADER in message.headers for message in messages)
    assert desk.execute(first).retval == "account:7"


def test_a_part_of_a_chain_whose_key_is_held_is_a_success(desk):
    """The next part is sent, and gets what says that this one was skipped."""
    task = sync(desk)

    def collect(result):
        return result

    chain(task.s(7), desk.task(collect).s()).apply_async()
    with hold("account:7"):
        skipped = desk.execute(desk.only())
    assert skipped.info is None
    assert skipped.retval["skipped"] is True
    assert desk.execute(desk.only()).retval["skipped"] is True


class Interruption(Exception):  # noqa: N818 - it is one
    """What a time limit raises."""


def interrupted_publishers(desk: Desk) -> list[int]:
    """Interrupt a publisher around each request and before it sends; where a mark is left alone."""
    task, left, perform = sync(desk), list[int](), Backend._perform
    send_task = type(desk.app).send_task

    def moment() -> None:
        if next(moments) == number:
            raise Interruption

    def interrupted(backend: Backend, effect: Any) -> Any:
        moment()
        result = perform(backend, effect)
        moment()
        return result

    def send(app: Any, *args: Any, **options: Any) -> Any:
        moment()
        return send_task(app, *args, **options)

    for number in itertools.count():
        moments = itertools.count()
        with pytest.MonkeyPatch.context() as patch, suppress(Interruption):
            patch.setattr(Backend, "_perform", interrupted)
            patch.setattr(type(desk.app), "send_task", send)
            task.delay(7)
        waiting = desk.messages()
        if marked() and not waiting:
            left.append(number)
            task.unmark((7,))
        for message in waiting:
            desk.execute(message)
        assert marked() == set()
        if next(moments) <= number:
            return left
    raise AssertionError


def test_an_interrupted_publisher_leaves_no_mark_without_a_message(desk):
    """A time limit may end a task that sends: else nothing would be sent until queue_ttl."""
    assert interrupted_publishers(desk) == []


def test_a_mark_that_stays_is_noticed(desk, monkeypatch):
    """Broken: a publisher that was interrupted while it marked takes nothing back."""
    monkeypatch.setattr(OutgoingMessage, "take_back", lambda _: None)
    assert interrupted_publishers(desk)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "x",
        {},
        {"alias": "default", "key": "redlock:lock:account:7", "nonce": "0" * 32},
        {"alias": "gone", "key": "redlock:mark:x", "nonce": "0" * 32},
        {"alias": "default", "key": 7, "nonce": "0" * 32},
        {"alias": "default", "key": "redlock:mark:x", "nonce": ":"},
    ],
)
def test_a_header_that_makes_no_sense_stops_no_task(desk, header):
    """It is no mark, or one that cannot be removed; a run deletes no other kind of key."""
    task = sync(desk)
    task.delay(7)
    message = desk.only()
    message.headers[HEADER] = header
    assert desk.execute(message).retval == "account:7"


# -- keys and times ----------------------------------------------------------------------------


def test_the_key_is_that_of_the_run(desk):
    """The publisher has a tuple and a UUID; the worker gets what the serializer makes of it."""

    @locked_task("work:{items}:{day}", mode="until_finished")
    def work(items, day):
        return task.delay(items=(1, 2), day=dt.date(2026, 1, 2)).duplicate

    task = desk.task(work, base=LockedTask)
    task.delay((1, 2), dt.date(2026, 1, 2))
    assert desk.execute(desk.only()).retval is True
    assert publishing._as_delivered(task, [(1,)], None, {}) == (([1],), {})


class In(NamedTuple):
    """So many seconds from when a message is sent."""

    seconds: float
    as_text: bool = False

    def now(self) -> Any:
        """The time as ``apply_async`` takes it."""
        when = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.seconds)
        return when.isoformat() if self.as_text else when


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 600),
        ({"countdown": 100}, 700),
        ({"eta": In(100)}, 700),
        ({"eta": In(100, as_text=True)}, 700),
        ({"eta": In(-100)}, 600),
        ({"expires": 50}, 50),
        ({"expires": In(50)}, 50),
        ({"countdown": 100, "expires": 150.5}, 150.5),
        ({"expires": In(864_000, as_text=True)}, 864_000),
    ],
)
def test_a_mark_lasts_as_long_as_its_message_may_wait(desk, options, seconds):
    """Until it expires; else queue_ttl from its ETA, however long MAX_TTL is."""
    task = sync(desk, lock={"queue_ttl": 600})
    sent = {name: each.now() if isinstance(each, In) else each for name, each in options.items()}
    task.apply_async((7,), **sent)
    (left,) = {node.pttl("redlock:mark:desk.sync:account:7") // 1000 for node in memory().nodes}
    assert seconds - 60 <= left <= seconds


def test_a_task_that_expires_by_itself_has_marks_that_do(desk):
    """``expires`` of the task counts where the message says nothing."""
    task = sync(desk, expires=50)
    task.delay(7)
    assert 0 < memory().nodes[0].pttl("redlock:mark:desk.sync:account:7") <= 50_000
    task.apply_async((8,), expires=-5)  # no worker will run it
    assert marked() == {"desk.sync:account:7"}


# -- what never runs ---------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [{}, {"expires": -0.001}], ids=["revoked", "expired"])
def test_a_message_that_never_runs_loses_its_mark(desk, sent, monkeypatch):
    """Revoked or expired, in the main process of the worker."""
    task = sync(desk, expires=100)
    task.delay(7)
    message = desk.only()
    if sent:
        message.headers["expires"] = In(-1, as_text=True).now()
    request = Request(message, app=desk.app, task=task, decoded=False)
    revoked = {request.id} if not sent else set()
    monkeypatch.setattr("celery.worker.request.revoked_tasks", revoked)
    assert request.revoked()
    eventually(lambda: marked() == set())


def test_a_revoked_message_leaves_the_mark_of_its_successor(desk):
    """A mark is removed by its nonce: that of a message sent later stays, of the same id, too."""
    task = sync(desk)
    first = task.delay(7)
    message = desk.only()
    task.apply_async((7,), task_id=first.id)
    signals.task_revoked.send(sender=task, request=SimpleNamespace(headers=message.headers))
    signals.task_revoked.send(sender=task, request=SimpleNamespace())
    mark = mark_in(message.headers)
    assert mark is not None
    mark.remove()
    assert task.delay(7).id == first.id


def test_a_mark_is_removed_by_arguments_as_they_are_sent(desk):
    """By keywords, too; too many are refused."""
    task = sync(desk)
    task.delay(7)
    task.unmark(kwargs={"account": 7})
    assert marked() == set()
    with pytest.raises(TypeError, match=r"unmark\(\) takes the arguments of .*: too many"):
        task.unmark((1, 2, 3))


# -- transactions ------------------------------------------------------------------------------


def test_a_message_has_the_arguments_of_its_call(desk, transactional):
    """The caller goes on with its objects, and the message is sent after the COMMIT."""

    def read(payload):
        return payload["id"]

    task = desk.task(
        locked_task("sync:{payload[id]}", mode="until_finished")(read), base=LockedTask
    )
    payload = {}
    with transaction.atomic():
        for number in (1, 2, 3):
            payload["id"] = number
            task.delay(payload)
    assert [each.decode()[0][0]["id"] for each in desk.messages()] == [1, 2, 3]


def test_delay_on_commit_works(desk, transactional):
    """Celery's method for Django, outside and inside a transaction."""
    task = sync(desk)
    with transaction.atomic():
        task.delay_on_commit(7)
        task.apply_async_on_commit((7,))
        assert desk.messages() == []
    assert len(desk.messages()) == 1
    task.delay_on_commit(8)
    assert len(desk.messages()) == 1


def test_another_database_is_named(desk, transactional):
    """A transaction of a database that is not ``using`` holds up nothing; a wrong one is told."""
    task = sync(desk, lock={"using": "other"})
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    with connected(sqlite, "other"), transaction.atomic():
        assert task.delay(7).duplicate is False
        assert len(desk.messages()) == 1
    task = sync(desk, lock={"using": "defualt"}, name="wrong")
    meant = r"DATABASES has no 'defualt' \(did you mean 'default'\?\); it has: 'default'"
    with transaction.atomic(), pytest.raises(ConnectionDoesNotExist, match=meant):
        task.delay(8)
    assert (desk.messages(), marked()) == ([], {"desk.sync:account:7"})


def test_in_a_testcase_a_message_is_sent_at_once_and_on_commit_is_captured(desk, transactional):
    """The transaction around a test does not count; one inside it waits for the capture."""
    task = sync(desk)
    found = []

    class InTest(TestCase):
        def test(self) -> None:
            found.append(task.delay(7).duplicate)
            with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                result = task.delay(8)
                found.append(result.duplicate)
            found.append(result.duplicate)

    outcome = InTest("test").run()
    assert outcome is not None
    assert outcome.wasSuccessful(), outcome
    assert found == [False, None, False]


# -- a message that no worker will begin -------------------------------------------------------


def lost(desk: Desk, task: Any, times: int) -> tuple[str, list[bool]]:
    """Send a message that a worker fetches and dies with, then more; its id, and what they were."""
    first = task.delay(7)
    desk.only()
    return first.id, [task.delay(7).duplicate for _ in range(times)]


def warnings_of(caplog: Any) -> list[str]:
    """What the package has logged as a warning."""
    told = [each for each in caplog.records if each.name == "django_redlock"]
    return [each.getMessage() for each in told if each.levelno == logging.WARNING]


@MODES
def test_a_message_that_keeps_many_others_from_being_sent_is_told(desk, mode, caplog):
    """Once, with what to do; when that is done, the next one is sent."""
    task = sync(desk, lock={"mode": mode})
    first, duplicates = lost(desk, task, decisions.REFUSALS - 1)
    assert all(duplicates)
    assert warnings_of(caplog) == []
    for _ in range(decisions.REFUSALS + 1):
        assert task.delay(7).duplicate
    (said,) = warnings_of(caplog)
    assert said.startswith(
        f"10 messages of desk.sync in a row were not sent, because {first} waits"
    )
    command = re.search(r"'manage\.py (.*?)'", said)
    assert command
    call_command(*command[1].split(), "--yes", stdout=StringIO())
    assert not task.delay(7).duplicate
    assert len(desk.messages()) == 1


@pytest.mark.parametrize("later", [{}, {"countdown": 60}], ids=["by a run", "sent for later"])
def test_what_keeps_many_others_from_being_sent_on_purpose_is_not_told(desk, caplog, later):
    """A run does, which is what ``until_finished`` is for, and one of many that are to wait."""
    duplicates: list[bool] = []

    def send(task: Any) -> None:
        more = range(decisions.REFUSALS + 1)
        results = [Context().run(task.apply_async, (7,), **later) for _ in more]
        duplicates.extend(each.duplicate for each in results)

    task = sync(desk, send)
    task.apply_async((7,), **later)
    if later:
        send(task)
    else:
        desk.execute(desk.only())
    assert duplicates == [True] * (decisions.REFUSALS + 1)
    assert warnings_of(caplog) == []


def test_refusals_are_counted_for_few_messages(desk, monkeypatch):
    """A process that lives for years keeps no note of each message."""
    monkeypatch.setattr(decisions, "MOST_REFUSALS", 3)
    task = sync(desk)
    for account in range(9):
        task.delay(account)
        task.delay(account)
        assert len(decisions._refusals) <= 3


# -- where it is not set up --------------------------------------------------------------------


@MODES
def test_a_mode_without_its_base_says_so(desk, mode):
    """The first run fails; before, a system check finds it: see test_checks."""

    @locked_task("account:{account}", mode=mode, on_conflict="retry")
    def sync(account):
        return None

    task = desk.task(sync)
    task.delay(7)
    failed = desk.execute(desk.only()).info.retval
    assert isinstance(failed, TypeError)
    assert "base=LockedTask" in str(failed)


# -- rules that are needed ---------------------------------------------------------------------


# What is replaced, by what, and a test that fails then.
RULES: dict[str, tuple[tuple[Any, str, object], Callable[..., object]]] = {
    "a retry is left out like any other message": (
        (publishing, "_is_sent_again", lambda *_: False),
        lambda desk: test_what_is_sent_again_is_sent_whatever_is_there(desk, put_off=False),
    ),
    "a retry waits for the COMMIT": (
        (publishing, "_is_sent_again", lambda *_: False),
        test_a_retry_in_a_transaction_that_it_rolls_back_is_sent,
    ),
    "parts of chords are left out": (
        (publishing, "AWAITED", ()),
        test_what_somebody_waits_for_is_always_sent,
    ),
    "the last task of a chain is left out": (
        (publishing, "_is_awaited", lambda options: any(map(options.get, (*AWAITED, "chain")))),
        test_what_somebody_waits_for_is_always_sent,
    ),
    "a message does not say which mark is its own": (
        (marks, "header", lambda _: {}),
        test_a_retry_owns_its_mark,
    ),
    "the key is made of what the publisher has": (
        (publishing, "_as_delivered", lambda _, args, kwargs, options: (args or (), kwargs or {})),
        test_the_key_is_that_of_the_run,
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(desk, transactional, monkeypatch, rule):
    """Without it, the test that is named beside it fails."""
    broken, test = RULES[rule]
    more = {"transactional": transactional, "monkeypatch": monkeypatch}
    needed = inspect.signature(test).parameters
    monkeypatch.setattr(*broken)
    with pytest.raises((AssertionError, ValueError)):
        test(desk, **{name: more[name] for name in needed if name in more})
