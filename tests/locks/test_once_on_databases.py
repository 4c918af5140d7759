"""``once(...).atomic()`` on servers of databases and nodes: what was committed is recorded."""

from __future__ import annotations

import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction

from django_redlock import redlock, transactions
from tests.simulation.mutants import Patch, with_edits
from tests.support.databases import MARIADB, POSTGRESQL, SQLITE, WAITERS, connected
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # it starts databases
BILLS = "bills"  # the alias of the database
OTHER = "other"  # the same database, by another connection
WORK = "bills of a day"
CHUNK = 65536


@pytest.fixture(params=[SQLITE, POSTGRESQL])
def kind(request, databases, django_db_blocker, patient_nodes) -> Iterator[str]:
    """A database of each kind with an empty table, and five nodes."""
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(connected(databases(request.param), BILLS))
        stack.callback(execute, "DROP TABLE bill")
        execute("CREATE TABLE bill (name TEXT)")
        yield request.param


def execute(sql: str) -> list[Any]:
    """Run a statement, and return its rows if it has some."""
    with connections[BILLS].cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []


def work(last: Callable[[], object]) -> bool:
    """Write a bill, unless that is done; end the body so. Return whether it was to be done."""
    with redlock(WORK).once(keep=60).atomic(BILLS) as run:
        if run.fresh:
            execute("INSERT INTO bill VALUES ('a')")
            last()
    return run.fresh


def kept() -> tuple[int, str]:
    """How many bills are written, and what the nodes have of the name."""
    return len(execute("SELECT * FROM bill")), str(redlock(WORK).state().kind)


def fail() -> None:
    """A broker that is away."""
    raise ZeroDivisionError


def on_commit(function: Callable[[], object]) -> None:
    """Have it called behind the COMMIT."""
    transaction.on_commit(function, using=BILLS)


def test_an_error_behind_the_commit_leaves_the_record(kind):
    """One bill is written, and the next caller has nothing to do."""
    with pytest.raises(ZeroDivisionError):
        work(lambda: on_commit(fail))
    assert kept() == (1, "done")
    assert not work(fail)


def test_a_rollback_that_was_asked_for_leaves_no_record(kind):
    """Nothing is written, so the next caller does the work."""
    assert work(lambda: transaction.set_rollback(True, using=BILLS))
    assert kept() == (0, "free")
    assert work(bool)
    assert kept() == (1, "done")


def catch(called: list[int]) -> None:
    """Catch the error of a statement outside of a savepoint."""
    on_commit(lambda: called.append(1))
    with suppress(DatabaseError):
        execute("SELECT * FROM nowhere")


def test_an_error_that_the_body_has_caught(kind):
    """PostgreSQL rolls all back at the COMMIT, and says so in no error; SQLite commits."""
    called: list[int] = []
    assert work(lambda: catch(called))
    assert (kept(), called) == (((0, "free"), []) if kind == POSTGRESQL else ((1, "done"), [1]))


@pytest.mark.parametrize("kind", [POSTGRESQL], indirect=True)
def test_a_commit_that_is_taken_at_its_word_is_noticed(kind):
    """Broken: as Django does, by which there is a record of no bill."""
    with with_edits(Patch(transactions, "ABORTED", lambda _: -1)):
        assert work(lambda: catch([]))
    assert kept() == (0, "done")


def wait_for_each_other() -> None:
    """Catch a deadlock with another transaction, which has written more and so goes on."""
    execute("UPDATE bill SET name = 'x' WHERE name = 'c'")
    with connections[OTHER].cursor() as cursor:
        cursor.execute("UPDATE bill SET name = 'y' WHERE name IN ('d', 'e', 'f')")
    other = connections[OTHER]
    other.inc_thread_sharing()
    waiting = threading.Thread(target=other.cursor().execute, args=("DELETE FROM bill",))
    waiting.start()
    # MariaDB looks anew only when nobody has asked for a tenth of a second.
    eventually(lambda: execute(WAITERS[MARIADB]), every=0.12)
    with pytest.raises(OperationalError, match="Deadlock"):  # and its error is caught
        execute("SELECT * FROM bill WHERE name = 'y' FOR UPDATE")
    waiting.join(60)
    other.dec_thread_sharing()
    transaction.rollback(using=OTHER)


@pytest.mark.parametrize("kind", [MARIADB], indirect=True)
@pytest.mark.parametrize("knows", [True, False], ids=["", "without-a-savepoint"])
def test_a_deadlock_that_the_body_has_caught(kind, databases, knows, monkeypatch):
    """MariaDB has rolled all back: the block says so, and the work is done again."""
    if not knows:  # broken: as Django does, by which there is a record of half the work
        monkeypatch.setattr(transactions, "MYSQL", "")
    execute("INSERT INTO bill VALUES ('c'), ('d'), ('e'), ('f')")
    with connected(databases(kind), OTHER):
        transaction.set_autocommit(False, using=OTHER)
        if not knows:
            assert work(wait_for_each_other)
            assert kept() == (4, "done")
            return
        with pytest.raises(OperationalError) as caught:
            work(wait_for_each_other)
        assert caught.value.__notes__ == [transactions.NOT_WHOLE]
        assert kept() == (4, "free")
    assert work(bool)
    assert kept() == (5, "done")


@pytest.mark.parametrize("kind", [MARIADB], indirect=True)
def test_a_statement_that_commits(kind):
    """The block says so: what it wrote before that is kept, and what it wrote later is not."""

    def create() -> None:
        execute("CREATE TABLE more (name TEXT)")
        execute("INSERT INTO bill VALUES ('b')")

    with pytest.raises(OperationalError) as caught:
        work(create)
    execute("DROP TABLE more")
    assert caught.value.__notes__ == [transactions.NOT_WHOLE]
    assert kept() == (1, "free")


class Relay:
    """Stands before PostgreSQL at a socket of its own; a context manager.

    Attributes:
        home: the folder of the socket.
        cuts: whether it ends the connection in place of the next reply to a COMMIT.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self.home = tempfile.mkdtemp(prefix="relay-")
        self.cuts = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(self.home, ".s.PGSQL.5432")))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()
        shutil.rmtree(self.home)

    def _accept(self) -> None:
        with suppress(OSError):  # it is shut down
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._pass_on, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(Path(self._server, ".s.PGSQL.5432")))
            while True:
                ready, _, _ = select.select([client, server], [], [])
                data = ready[0].recv(CHUNK)
                if not data:
                    return
                (server if ready[0] is client else client).sendall(data)
                if self.cuts and ready[0] is client and b"COMMIT" in data:
                    self.cuts = False
                    server.recv(CHUNK)  # it is committed
                    return


def test_a_commit_whose_reply_is_lost_leaves_no_record(databases, django_db_blocker, patient_nodes):
    """Nobody knows whether it is committed, so the work is done again: at least once."""
    settings = databases(POSTGRESQL)
    with ExitStack() as stack:
        relay = stack.enter_context(Relay(settings["HOST"]))
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(connected(settings | {"HOST": relay.home}, BILLS))
        stack.callback(execute, "DROP TABLE bill")
        execute("CREATE TABLE bill (name TEXT)")
        relay.cuts = True
        with pytest.raises(OperationalError) as caught:
            work(bool)
        assert not hasattr(caught.value, "__notes__")
        eventually(lambda: kept() == (1, "free"))
        assert work(bool)
        assert kept() == (2, "done")
