"""`redlock(...).atomic()`: lock, BEGIN, body, COMMIT or ROLLBACK, release."""

# ruff: noqa: PT012 - what raises is a block with its end

from __future__ import annotations

import asyncio
import gc
import itertools
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from celery.signals import task_prerun
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.core.signals import request_started
from django.db import Error, IntegrityError, OperationalError, connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from django_redlock import LeaseLost, conf, current_lease, redlock
from django_redlock.backend import Backend
from django_redlock.core import hold
from django_redlock.core.policy import Policy
from django_redlock.leases.lease import Lease
from django_redlock.locks import atomic
from django_redlock.locks.atomic import AtomicLock
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from django_redlock.transactions import COMMITTED, TransactionUnderLock, end_torn
from tests.simulation.mutants import Patch, with_edits
from tests.support.waiting import eventually

NUMBERS = itertools.count()
NAME = "row"
TABLES = """
CREATE TABLE parent (id INTEGER PRIMARY KEY);
CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
"""


class Failing(Exception):  # noqa: N818 - a stand-in
    """What a body raises."""


@pytest.fixture
def rows(
    memory: MemoryNodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, django_db_blocker
) -> Iterator[str]:
    """The alias of a database of SQLite, beside five fresh nodes; afterwards both are free."""
    alias, options = f"rows{next(NUMBERS)}", {"timeout": 20}
    setting = {"NAME": str(tmp_path / "rows.sqlite3"), "OPTIONS": options}
    monkeypatch.setitem(connections.settings, alias, connections.settings["default"] | setting)
    with django_db_blocker.unblock():
        connections[alias].ensure_connection()
        connections[alias].connection.executescript(TABLES)
        yield alias
        assert is_over(alias)
        assert is_free()
        connections[alias].close()
        del connections[alias]


def execute(alias: str, sql: str) -> list[Any]:
    """Run a statement."""
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def insert(alias: str) -> None:
    """Write a row."""
    execute(alias, "INSERT INTO parent DEFAULT VALUES")


def count(alias: str) -> int:
    """How many rows there are."""
    return int(execute(alias, "SELECT count(*) FROM parent")[0][0])


def is_free(name: str = NAME) -> bool:
    """Whether somebody else could have the name."""
    lease = redlock(name, durable=False).try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


def is_over(alias: str) -> bool:
    """Whether the connection is in no transaction, by what Django says and by what SQLite says."""
    connection = connections[alias]
    inside = connection.in_atomic_block or connection.atomic_blocks or connection.savepoint_ids
    server = connection.connection
    return not inside and (server is None or not server.in_transaction)


# -- the order ------------------------------------------------------------------------------------


def test_the_block_is_a_transaction_under_the_lock(rows):
    """In the block, both are open; when `on_commit` runs, only the lock; afterwards neither."""
    seen = []
    with redlock(NAME).atomic(rows) as lease:
        insert(rows)
        assert [current_lease()] == [lease]
        assert not is_free()
        assert connections[rows].in_atomic_block
        transaction.on_commit(lambda: seen.append((is_over(rows), is_free())), using=rows)
    assert seen == [(True, False)]
    assert lease.ended
    assert count(rows) == 1


def test_the_transaction_begins_with_the_lock(rows, monkeypatch):
    """No transaction is open while the nodes are asked, neither before it nor after it."""
    seen: list[bool] = []
    group = conf.backend("default").group
    ask = group.ask

    def watched(request):
        seen.append(is_over(rows))
        return ask(request)

    monkeypatch.setattr(group, "ask", watched)
    with redlock(NAME).atomic(rows):
        insert(rows)
    assert len(seen) >= 2
    assert all(seen)


def test_a_body_that_closes_the_connection_commits_nothing(rows):
    """As in Django's block; the next statement connects again."""
    with redlock(NAME).atomic(rows):
        insert(rows)
        connections[rows].close()
    assert count(rows) == 0


def test_the_order_of_commit_and_release_is_noticed(rows):
    """A release before the COMMIT would be seen."""

    def end(block: Any, *_: object) -> None:
        block.held.release()
        block.inside.commit()

    with with_edits(Patch(atomic.block_exit, "_end", lambda _: end)), pytest.raises(AssertionError):
        test_the_block_is_a_transaction_under_the_lock(rows)
    connections[rows].in_atomic_block = False
    connections[rows].rollback()
    connections[rows].set_autocommit(True)
    connections[rows].atomic_blocks.clear()


# -- a lease that is lost -------------------------------------------------------------------------


def run_out(lease: Lease) -> None:
    """Let its time be over."""
    lease.grant = lease.grant._replace(deadline=lease.backend.policy.clock())


def deny(lease: Lease) -> None:
    """Let the nodes forget it and the lease hear of that."""
    lease.backend.run(hold.release(lease.backend.policy, lease.grant))
    with pytest.raises(LeaseLost):
        lease.extend()


ENDS = {
    "run out": run_out,
    "denied": deny,
    "released": lambda lease: lease.release(),
    "given away": lambda lease: redlock.using(durable=False).adopt(lease.handle()).release(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_lease_that_is_over_commits_nothing(rows, end):
    """LeaseLost instead of the COMMIT, whyever the lease is over; a note tells it."""
    with (
        pytest.raises(LeaseLost) as caught,
        redlock(NAME, renew=False).atomic(rows) as lease,
    ):
        insert(rows)
        end(lease)
    assert count(rows) == 0
    assert caught.value.__notes__ == ["The transaction of the block is rolled back."]


def test_a_commit_without_a_lease_is_noticed(rows):
    """The test above fails where nothing looks at the lease before the COMMIT."""
    careless = Patch(atomic, "ensure", lambda _: lambda lease: None)
    with with_edits(careless), pytest.raises(pytest.fail.Exception):
        test_a_lease_that_is_over_commits_nothing(rows, run_out)
    assert count(rows) == 1


def test_the_error_of_the_body_is_the_one_that_is_told(rows):
    """Also where the lease was lost as well."""
    with pytest.raises(Failing), redlock(NAME, renew=False).atomic(rows) as lease:
        run_out(lease)
        raise Failing


def test_what_is_committed_is_no_loss(rows):
    """A lease that ends after the COMMIT raises nothing: LeaseLost means: nothing was written."""
    lost: list[Lease] = []
    lock = redlock(NAME, renew=False, on_lost=lost.append)
    for each in (lock, redlock(NAME, renew=False, on_lost="raise")):
        with each.atomic(rows) as lease:
            insert(rows)
            transaction.on_commit(partial(run_out, lease), using=rows)
    assert count(rows) == 2
    assert len(lost) == 1


# -- errors of the database -----------------------------------------------------------------------


def test_a_commit_that_fails_releases(rows):
    """A deferred constraint is looked at by the COMMIT; its error goes on."""
    with pytest.raises(IntegrityError, match="FOREIGN KEY"), redlock(NAME).atomic(rows):
        insert(rows)
        execute(rows, "INSERT INTO child VALUES (99)")
    assert count(rows) == 0


def test_a_transaction_that_cannot_begin_releases(rows):
    """BEGIN IMMEDIATE beside another writer: the error goes on, and the lock is free."""
    connections[rows].close()
    connections[rows].settings_dict["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 0}
    vars(connections[rows])["transaction_mode"] = "IMMEDIATE"
    with closing(sqlite3.connect(connections[rows].settings_dict["NAME"])) as other:
        other.execute("INSERT INTO parent DEFAULT VALUES")
        for enter in (entered, by_stack, by_hand):
            with pytest.raises(OperationalError, match="locked"):
                enter(redlock(NAME).atomic(rows))
            assert is_free()
            assert is_over(rows)
        other.rollback()


def test_a_database_that_is_away_takes_no_lock(rows, monkeypatch):
    """The connection is made before the lock is taken."""
    connections[rows].close()
    monkeypatch.setitem(connections[rows].settings_dict, "NAME", "/nowhere/rows.sqlite3")
    with redlock(NAME), pytest.raises(OperationalError, match="unable to open"):
        entered(redlock(NAME).atomic(rows))


def test_a_rollback_that_fails_drops_the_connection(rows, monkeypatch):
    """The error of the body goes on, and the server rolls back what has no connection any more."""
    connection = connections[rows]

    def rollback() -> None:
        raise Error("gone")

    with pytest.raises(Failing), redlock(NAME).atomic(rows):
        insert(rows)
        monkeypatch.setattr(connection, "rollback", rollback)
        raise Failing
    assert connection.connection is None
    assert count(rows) == 0


def test_a_function_of_on_commit_that_raises(rows):
    """The row is written, the lock is free, and the error goes on: its note says what happened."""

    def fail() -> None:
        raise Failing

    with pytest.raises(Failing) as caught, redlock(NAME).atomic(rows):
        insert(rows)
        transaction.on_commit(fail, using=rows)
    assert count(rows) == 1
    assert caught.value.__notes__ == [COMMITTED]
    with pytest.raises(Failing) as caught, redlock(NAME).atomic(rows):
        fail()
    assert not hasattr(caught.value, "__notes__")


# -- inside another transaction -------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("durable", [None, False, True])
def test_inside_a_transaction_it_is_refused(rows, durable):
    """Of its own database or another one, also with `durable=False`; nothing is taken."""
    own, other = transaction.atomic(using=rows), transaction.atomic()
    for outer in (own, other, redlock("outer").atomic(rows)):
        with outer, pytest.raises(RuntimeError, match=r"COMMIT.*ATOMIC_REQUESTS use"):
            entered(redlock(NAME, durable=durable).atomic(rows))
        assert is_free()


@pytest.mark.django_db
def test_the_transaction_of_a_test_case_does_not_count():
    """There the block is a savepoint, which is kept, or undone, and the lock is free again."""
    with redlock(NAME).atomic():
        Group.objects.create(name="kept")
    with pytest.raises(Failing), redlock(NAME).atomic():
        Group.objects.create(name="undone")
        raise Failing
    with pytest.raises(LeaseLost), redlock(NAME).atomic() as lease:
        Group.objects.create(name="lost")
        lease.release()
    assert [group.name for group in Group.objects.all()] == ["kept"]
    assert is_free()


def test_without_autocommit_it_is_refused(rows):
    """No COMMIT would end the block; nothing is taken."""
    connections[rows].set_autocommit(False)
    with redlock(NAME), pytest.raises(RuntimeError, match="autocommit is off"):
        entered(redlock(NAME).atomic(rows))
    connections[rows].set_autocommit(True)


# -- ways to use it -------------------------------------------------------------------------------


def entered(lock: AtomicLock, do: Callable[[], object] = bool) -> None:
    """In a block."""
    with lock:
        do()


def by_stack(lock: AtomicLock, do: Callable[[], object] = bool) -> None:
    """By a stack."""
    with ExitStack() as stack:
        stack.enter_context(lock)
        do()


def by_hand(lock: AtomicLock, do: Callable[[], object] = bool) -> None:
    """By calls of the methods."""
    lock.__enter__()
    try:
        do()
    except BaseException as error:
        lock.__exit__(type(error), error, error.__traceback__)
        raise
    lock.__exit__(None, None, None)


def decorated(lock: AtomicLock, do: Callable[[], object] = bool) -> None:
    """By a decorated function."""

    def run() -> None:
        do()

    lock(run)()


@pytest.mark.parametrize("way", [entered, by_stack, by_hand, decorated])
def test_every_way_rolls_back_and_releases(rows, way):
    """When the body raises, and when its lease is over; else it commits. One object serves all."""
    lock = redlock(NAME).atomic(rows)

    def write() -> Lease:
        assert connections[rows].in_atomic_block
        assert not is_free()
        insert(rows)
        lease = current_lease()
        assert lease is not None
        return lease

    def fail() -> None:
        write()
        raise Failing

    for do, error in ((fail, Failing), (lambda: write().release(), LeaseLost)):
        with pytest.raises(error):
            way(lock, do)
        assert (is_over(rows), is_free(), count(rows)) == (True, True, 0)
    for number in (1, 2):
        way(lock, write)
        assert (is_over(rows), is_free(), count(rows)) == (True, True, number)


@pytest.mark.django_db(transaction=True)
def test_without_parentheses():
    """As Django's `@transaction.atomic`."""

    @redlock("row:{pk}").atomic
    def change(pk: int) -> bool:
        return connections["default"].in_atomic_block and not is_free(f"row:{pk}")

    assert change(7)
    assert is_over("default")


def test_a_function_that_returns_a_coroutine_is_rolled_back(rows):
    """Its body would run after the COMMIT."""

    @redlock(NAME).atomic(rows)
    def change() -> Any:
        insert(rows)
        return asyncio.sleep(0)

    with pytest.raises(TypeError, match="coroutine"):
        change()
    assert count(rows) == 0


def test_a_second_end_is_refused(rows):
    """Each finds its own lease."""
    lock = redlock(NAME).atomic(rows)
    by_hand(lock)
    with pytest.raises(RuntimeError, match="nothing entered it"):
        lock.__exit__(None, None, None)


# -- torn open ------------------------------------------------------------------------------------


@pytest.fixture
def torn(rows, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Lease]:
    """What leaves a torn block behind: it is interrupted before the first statement of its end."""

    def interrupted(*_: object) -> None:
        raise Failing

    def tear() -> Lease:
        lease: Lease
        with monkeypatch.context() as patch:
            patch.setattr(atomic.block_exit, "_leave", interrupted)
            with pytest.raises(Failing), redlock(NAME).atomic(rows) as lease:
                insert(rows)
        return lease

    return tear


@pytest.mark.parametrize("begins", [request_started, task_prerun], ids=["request", "Celery task"])
def test_a_torn_block_is_rolled_back_before_the_next_work(rows, torn, begins):
    """Its lease is renewed no more; what it wrote is never committed, nor mixed with later work."""
    lease = torn()
    assert lease.torn
    assert not is_over(rows)
    with pytest.raises(RuntimeError, match="COMMIT"):
        entered(redlock("other").atomic(rows))
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic(rows, durable=True):
        pass
    begins.send(None)
    assert is_over(rows)
    insert(rows)
    assert count(rows) == 1
    lease.release()


def test_only_torn_blocks_of_this_thread_are_rolled_back(rows, torn):
    """Neither one that is at work, nor Django's, nor one of another thread."""
    with redlock(NAME).atomic(rows):
        insert(rows)
        end_torn()
    with transaction.atomic(rows):
        insert(rows)
        end_torn()
    assert count(rows) == 2
    lease = torn()
    with ThreadPoolExecutor(1) as another:
        another.submit(end_torn).result()
    assert not is_over(rows)
    end_torn()
    assert count(rows) == 2
    lease.release()


@pytest.mark.parametrize("interruptions", [1, 2])
@pytest.mark.parametrize("way", ["commit", "roll_back", "release"])
def test_how_many_interruptions_an_end_survives(rows, monkeypatch, way, interruptions):
    """After one all is over; after two the next request rolls back, and nothing is renewed."""
    left = [Failing() for _ in range(interruptions)]

    def interrupt(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def interrupted(*args: Any) -> None:
            if left:
                raise left.pop()
            real(*args)

        monkeypatch.setattr(owner, name, interrupted)

    interrupt(Lease if way == "release" else TransactionUnderLock, way)
    if way == "commit":
        interrupt(TransactionUnderLock, "roll_back")
    with pytest.raises(Failing), redlock(NAME).atomic(rows) as lease:
        insert(rows)
        if way == "roll_back":
            raise Failing
    assert not lease.held or lease.torn
    end_torn()
    assert is_over(rows)
    assert count(rows) == (1 if way == "release" else 0)
    lease.release()


def test_what_a_block_writes_while_the_collector_closes_it_is_rolled_back(rows):
    """Its `finally` is still inside the transaction, which its end then rolls back."""

    def writes(me: dict[str, Any]) -> Iterator[None]:
        with redlock(NAME).atomic(rows):
            insert(rows)
            try:
                yield
            finally:
                insert(rows)
                me.clear()

    cycle: dict[str, Any] = {}
    cycle["me"], cycle["generator"] = cycle, writes(cycle)
    next(cycle["generator"])
    del cycle
    gc.collect()
    eventually(is_free)  # a thread of the background releases
    assert is_over(rows)
    assert count(rows) == 0


def test_a_callback_that_rolls_back_is_noticed(rows, monkeypatch):
    """What the `finally` writes is then committed by itself."""
    kept: list[object] = []
    begin = TransactionUnderLock.begin

    def beginning(self: TransactionUnderLock, block: Any) -> None:
        begin(self, block)
        kept.append(weakref.ref(block(), lambda _: self.roll_back()))

    monkeypatch.setattr(TransactionUnderLock, "begin", beginning)
    with pytest.raises(AssertionError):
        test_what_a_block_writes_while_the_collector_closes_it_is_rolled_back(rows)


# -- refused --------------------------------------------------------------------------------------


def test_coroutines_are_told_the_way(rows):
    """`async with`, `async def` and a `with` in a loop: the error names `sync_to_async`."""

    async def main() -> None:
        with pytest.raises(TypeError, match="sync_to_async"):
            async with redlock(NAME).atomic(rows):
                pass
        with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
            entered(redlock(NAME).atomic(rows))

        @transaction.atomic(using=rows)
        def change() -> None:
            assert not is_free()

        async with redlock(NAME):  # the way
            await sync_to_async(change)()

    asyncio.run(main())
    with pytest.raises(TypeError, match="sync_to_async"):

        @redlock(NAME).atomic(rows)
        async def change() -> None: ...


def test_what_makes_no_sense_is_refused(rows):
    """An alias that is no text, or that no database has, and a lock whose name has fields."""
    wrong: Any = 7
    with pytest.raises(TypeError, match="using must be the alias of a database, not int"):
        redlock(NAME).atomic(wrong)
    with pytest.raises(ConnectionDoesNotExist, match="nowhere"):
        entered(redlock(NAME).atomic("nowhere"))
    with pytest.raises(ValueError, match="pk"):
        entered(redlock("row:{pk}").atomic(rows))
    with pytest.raises(TypeError, match="generator"):

        @redlock(NAME).atomic(rows)
        def change() -> Iterator[None]:
            yield


def test_a_lock_without_django_has_no_transactions():
    """A backend that a program made itself says so, and takes nothing."""
    group = MemoryNodes([MemoryNode() for _ in range(3)])
    backend = Backend("alone", group, Policy(size=3))
    lock = LockTemplate(lambda _: backend)(NAME)
    with pytest.raises(RuntimeError, match="needs a database"):
        entered(lock.atomic())
    lock.acquire().release()


def test_a_block_that_ends_in_another_thread_commits_nothing(rows):
    """The transaction belongs to the thread that began it."""
    lock = redlock(NAME).atomic(rows)
    lock.__enter__()
    insert(rows)
    with ThreadPoolExecutor(1) as another, pytest.raises(RuntimeError, match="another thread"):
        another.submit(lock.__exit__, None, None, None).result()
    assert is_free()
    connections[rows].close()
    connections[rows].connect()
    assert count(rows) == 0
