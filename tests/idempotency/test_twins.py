"""Two equal requests at the same time, on each database, with the lock and without."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.http import HttpResponse, JsonResponse
from django.test import Client
from django.urls import path
from django.utils import timezone
from psycopg import IsolationLevel

from django_redlock import conf
from django_redlock.idempotency import idempotent, idempotent_work
from django_redlock.idempotency.models import Record
from django_redlock.idempotency.records import Begun, Work
from django_redlock.inspection.survey import survey
from tests.fencing import tables
from tests.fencing.tables import Ticket
from tests.support.databases import KINDS, MARIADB, POSTGRESQL, SQLITE, WAITERS, connected
from tests.support.waiting import eventually
from tests.views.asking import urls

from .shop import KEY

pytestmark = pytest.mark.slow  # it starts databases
SHOP = "shop"  # the alias of the database
PATIENCE = 60.0  # seconds, for what takes less than one


class Counter:
    """A site whose view stops in the middle, and clients that click at the same time."""

    def __init__(self, kind: str, pool: ThreadPoolExecutor) -> None:
        self.kind = kind
        self.runs: list[threading.Event] = []  # of each run of the view: whether it may go on
        self.status = 201  # of the next answer
        self._pool = pool

    def view(self, request: Any) -> HttpResponse:
        """Make an order, and wait before it is answered."""
        made = Ticket.objects.using(SHOP).create(seat=uuid.uuid4().hex[:20])
        go_on = threading.Event()
        self.runs.append(go_on)
        assert go_on.wait(PATIENCE)
        return JsonResponse({"token": made.seat}, status=self.status)

    def click(self, **data: int) -> Future[Any]:
        """Send the request from a thread of its own."""

        def send() -> Any:
            try:
                client = Client(raise_request_exception=False)
                headers = {"Idempotency-Key": KEY}
                return client.post("/", data, content_type="application/json", headers=headers)
            finally:
                connections.close_all()

        return self._pool.submit(send)

    def at_work(self, runs: int = 1) -> threading.Event:
        """Return when the view has begun so often; what lets the last run go on."""
        eventually(lambda: len(self.runs) >= runs, what="a view at work")
        return self.runs[runs - 1]

    def await_insert(self, click: Future[Any]) -> None:
        """Return when the INSERT of a twin waits; SQLite cannot tell."""
        if self.kind == SQLITE:
            assert not click.done()
            return

        def waits() -> bool:
            with connections[SHOP].cursor() as cursor:
                cursor.execute(WAITERS[self.kind])
                return bool(cursor.fetchall()) or click.done()

        eventually(waits, every=0.12, what="an INSERT that waits")
        assert not click.done(), click.result()

    def orders(self) -> int:
        """How many are in the database."""
        return Ticket.objects.using(SHOP).count()


@pytest.fixture(params=KINDS)
def counter(request, databases, django_db_blocker) -> Iterator[Counter]:
    """A shop on a database of each kind, with empty tables."""
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(connected(databases(request.param), SHOP))
        stack.callback(tables.drop, SHOP)
        tables.create(SHOP)
        stack.callback(_edit, "delete_model")
        _edit("create_model")
        yield Counter(request.param, stack.enter_context(ThreadPoolExecutor(4)))


def _edit(verb: str) -> None:
    with connections[SHOP].schema_editor() as editor:
        getattr(editor, verb)(Record)


def site(view: Callable[..., Any], **options: Any) -> Any:
    """A site of the view, which writes to the database."""
    return urls(path("", idempotent(scope="anybody", using=SHOP, **options)(view)))


def only(*kinds: str) -> Any:
    """Ask of some databases only."""
    return pytest.mark.parametrize("counter", kinds, indirect=True)


def tokens(*clicks: Future[Any]) -> list[str]:
    """What was answered."""
    return [json.loads(each.result(PATIENCE).content)["token"] for each in clicks]


def test_a_double_click_shows_the_first_answer(counter):
    """The second one waits for the lock; then it gets the answer of the first."""
    with site(counter.view, wait=PATIENCE):
        first = counter.click()
        go_on = counter.at_work()
        second = counter.click()
        eventually(lambda: survey(conf.backend("default"), memory=True).waiting == 1)
        go_on.set()
        one, other = tokens(first, second)
    assert one == other
    assert second.result()["Idempotency-Replayed"] == "true"
    assert (counter.orders(), len(counter.runs)) == (1, 1)


@pytest.mark.parametrize("status", [201, 500])
def test_without_nodes_the_record_is_the_last_line(counter, memory, status, caplog):
    """The twin's INSERT waits for the first transaction, and its view does not run meanwhile.

    That is how it should be, and no error is logged.
    """
    memory.down = set(range(5))
    counter.status = status
    with site(counter.view, on_unavailable="run"):
        first = counter.click()
        go_on = counter.at_work()
        second = counter.click()
        counter.await_insert(second)
        assert len(counter.runs) == 1
        go_on.set()
        assert first.result(PATIENCE).status_code == status
        if status == 500:  # rolled back, so the twin is the first one now
            counter.status = 201
            counter.at_work(2).set()
        assert second.result(PATIENCE).status_code == 201
    assert counter.orders() == 1
    if status == 201:
        one, other = tokens(first, second)
        assert one == other
        assert "after an error" not in caplog.text


def test_a_twin_with_another_content_is_refused(counter, memory):
    """Also where it is found out at its INSERT."""
    memory.down = set(range(5))
    with site(counter.view, on_unavailable="run"):
        first = counter.click(seats=1)
        go_on = counter.at_work()
        second = counter.click(seats=2)
        counter.await_insert(second)
        go_on.set()
        assert second.result(PATIENCE).status_code == 422
        assert first.result(PATIENCE).status_code == 201
    assert counter.orders() == 1


@only(POSTGRESQL, MARIADB)  # one transaction of SQLite writes at a time
def test_without_the_record_both_commit(counter, memory, monkeypatch):
    """The broken variant: a record that is written after the view lets the twin run."""
    memory.down = set(range(5))
    late: list[Record] = []

    def begin(self: Work) -> Record:
        late.append(self._record())
        return late[-1]

    def finish(self: Work, record: Record, **answer: Any) -> None: ...

    monkeypatch.setattr(Work, "begin", begin)
    monkeypatch.setattr(Work, "finish", finish)
    with site(counter.view, on_unavailable="run"):
        first, second = counter.click(), counter.click()
        counter.at_work(2)
        for each in counter.runs:
            each.set()
        one, other = tokens(first, second)
    assert one != other
    assert counter.orders() == 2


@only(POSTGRESQL)
def test_a_twin_of_a_serializable_transaction(counter, memory, monkeypatch):
    """PostgreSQL may tell it only by a failure to serialize; the answer is the same."""
    memory.down = set(range(5))
    strictly = {"isolation_level": IsolationLevel.SERIALIZABLE}
    options = connections.settings[SHOP].get("OPTIONS", {})
    monkeypatch.setitem(connections.settings[SHOP], "OPTIONS", options | strictly)
    with site(counter.view, on_unavailable="run"):
        first = counter.click()
        go_on = counter.at_work()
        second = counter.click()
        counter.await_insert(second)
        go_on.set()
        one, other = tokens(first, second)
    assert one == other
    assert counter.orders() == 1


def test_a_busy_database_is_asked_again(counter, memory, monkeypatch):
    """An INSERT that fails is tried three times; what the view has done is never repeated."""
    asked = []
    insert = Work._insert

    def busy(self: Work, record: Record) -> None:
        asked.append(record)
        if len(asked) < 3:
            raise Begun from OperationalError("database is locked")
        insert(self, record)

    monkeypatch.setattr(Work, "_insert", busy)
    with site(counter.view):
        click = counter.click()
        counter.at_work().set()
        assert click.result(PATIENCE).status_code == 201
    assert (len(asked), counter.orders()) == (3, 1)


def fails(request: Any) -> HttpResponse:
    """Make an order, and answer 500."""
    Ticket.objects.using(SHOP).create(seat=uuid.uuid4().hex[:20])
    return HttpResponse(status=500)


def test_a_connection_that_is_gone_is_no_success(counter):
    """The view has closed it, and with it went the order."""

    def closing(request: Any) -> HttpResponse:
        fails(request)
        connections[SHOP].close()
        return HttpResponse(status=201)

    with site(closing):
        assert counter.click().result(PATIENCE).status_code == 500
    assert (counter.orders(), Record.objects.using(SHOP).count()) == (0, 0)


@only(SQLITE, POSTGRESQL)
def test_an_error_of_the_database_that_a_view_has_caught(counter):
    """Its refusal is stored; the order is not where PostgreSQL has given the transaction up."""

    def refusing(request: Any) -> HttpResponse:
        fails(request)
        with suppress(DatabaseError), connections[SHOP].cursor() as cursor:
            cursor.execute("SELECT * FROM nowhere")
        return HttpResponse("a seat that is being sold", status=409)

    with site(refusing):
        assert counter.click().result(PATIENCE).status_code == 409
        again = counter.click().result(PATIENCE)
    assert (again.status_code, again["Idempotency-Replayed"]) == (409, "true")
    assert counter.orders() == (0 if counter.kind == POSTGRESQL else 1)


def test_an_interruption_before_the_rollback_commits_nothing(counter, monkeypatch):
    """A signal handler ends the process, as that of a server's worker does; Django would commit."""
    rollback = BaseDatabaseWrapper.rollback
    struck: list[Any] = []

    def strike(self: Any) -> None:
        if not struck:
            struck.append(self)
            raise SystemExit
        rollback(self)

    monkeypatch.setattr(BaseDatabaseWrapper, "rollback", strike)
    with site(fails):
        assert isinstance(counter.click().exception(PATIENCE), SystemExit)
    assert (counter.orders(), Record.objects.using(SHOP).count()) == (0, 0)


@only(MARIADB)
def test_a_record_that_is_committed_and_says_nothing(counter):
    """By a statement that commits by itself, in a view that fails: the repetition does the work."""

    def creating(request: Any) -> HttpResponse:
        with connections[SHOP].cursor() as cursor:
            cursor.execute("CREATE TABLE another (number INT)")
        return fails(request)

    with site(creating):
        assert counter.click().result(PATIENCE).status_code == 500
    assert [each.finished for each in Record.objects.using(SHOP).all()] == [None]
    with site(counter.view):
        click = counter.click()
        counter.at_work().set()
        assert click.result(PATIENCE).status_code == 201
        assert counter.click().result(PATIENCE)["Idempotency-Replayed"] == "true"
    with connections[SHOP].cursor() as cursor:
        cursor.execute("DROP TABLE another")


def test_a_record_ends_by_the_clock_of_its_database(counter, monkeypatch):
    """In UTC, wherever its server says that it stands; web servers may have any time."""
    with ExitStack() as stack:
        if counter.kind == MARIADB:
            stack.callback(_say, "SET GLOBAL time_zone = SYSTEM")
            _say("SET GLOBAL time_zone = '+05:00'")
            connections[SHOP].close()
        stack.enter_context(site(counter.view))
        before = timezone.now()
        first = counter.click()
        counter.at_work().set()
        assert first.result(PATIENCE).status_code == 201
        with monkeypatch.context() as patched:
            patched.setattr(timezone, "now", lambda: before + timedelta(days=2))
            assert counter.click().result(PATIENCE)["Idempotency-Replayed"] == "true"
        (record,) = Record.objects.using(SHOP).all()
        assert record.expires - record.begun == timedelta(days=1)
        assert abs(record.begun - before) < timedelta(hours=1)
        Record.objects.using(SHOP).update(expires=F("expires") - timedelta(days=1))
        again = counter.click()
        counter.at_work(2).set()
        assert again.result(PATIENCE).status_code == 201
    assert counter.orders() == 2


def _say(statement: str) -> None:
    with connections[SHOP].cursor() as cursor:
        cursor.execute(statement)


def test_work_of_a_task_and_its_twin(counter):
    """``idempotent_work``: the second one gets the result of the first."""
    at_work, go_on = threading.Event(), threading.Event()

    def run() -> Any:
        try:
            with idempotent_work("charge", 7, using=SHOP, wait=PATIENCE) as work:
                if not work.done:
                    made = Ticket.objects.using(SHOP).create(seat=uuid.uuid4().hex[:20])
                    at_work.set()
                    assert go_on.wait(PATIENCE)
                    work.result = {"receipt": made.seat}
            return work.done, work.result
        finally:
            connections.close_all()

    first = counter._pool.submit(run)
    assert at_work.wait(PATIENCE)
    second = counter._pool.submit(run)
    eventually(lambda: survey(conf.backend("default"), memory=True).waiting == 1)
    go_on.set()
    assert not first.result(PATIENCE)[0]
    assert second.result(PATIENCE) == (True, first.result()[1])
    assert counter.orders() == 1
