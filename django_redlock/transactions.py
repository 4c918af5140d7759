"""Open transactions inside a lock instead of around it: of ATOMIC_REQUESTS, of ``Lock.atomic``.

The request handler opens a transaction around a view for every database with ATOMIC_REQUESTS that
is not in the view's set ``_non_atomic_requests``. For a wrapper whose set is an ``EveryDatabase``
the handler opens none, and the wrapper opens the same ones itself by ``atomic``.

A block of ``Lock.atomic`` that is interrupted before its ``__exit__`` has begun leaves its
transaction open, as Django's ``atomic`` does. Later code in this thread would write into it, and
nothing would be committed. So ``end_torn`` rolls it back before each request and each Celery task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from threading import get_ident, local
from typing import TYPE_CHECKING, Any, Final

from django.core import signals
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.utils.asyncio import async_unsafe
from django.utils.connection import ConnectionDoesNotExist

from django_redlock.core.names import did_you_mean
from django_redlock.nodes.background import running_loop

from .locks.atomic import NO_ASYNC

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.http import HttpRequest


BEGUN: Final = "redlock_begun"  # the attribute of a connection: its last TransactionUnderLock
ABORTED: Final = 3  # as psycopg and libpq number it: each statement is refused until a ROLLBACK
COMMITTED: Final = "The transaction of the block is committed: the error came behind the COMMIT."
MYSQL: Final = "mysql"  # Django's name for MariaDB, too
WHOLE: Final = "redlock_whole"  # a savepoint at the BEGIN; with its transaction it is gone
NOT_WHOLE: Final = (
    "The block is no longer the transaction that it began: MariaDB and MySQL roll all back at a "
    "deadlock, whose error the block seems to have caught (let it end the block), and commit at a "
    "statement such as CREATE TABLE (write it outside). What came after that is rolled back."
)


class EveryDatabase(set[str]):
    """A set that contains every database, for the request handler.

    Its members are those that the project marks by ``transaction.non_atomic_requests``, below
    or above the decorator of the wrapper: these get no transaction at all.
    """

    def __contains__(self, alias: object) -> bool:
        """Return True: the handler leaves out every database."""
        return True


def wanted(request: HttpRequest, marked: Iterable[str]) -> list[str]:
    """Return the databases with ATOMIC_REQUESTS that are not marked.

    A mark may also be on the resolved function, set by a decorator of the class.
    """
    match = getattr(request, "resolver_match", None)
    resolved = getattr(match and match.func, "_non_atomic_requests", ())
    left_out = frozenset(marked) | frozenset(resolved)
    return [
        alias
        for alias, settings in connections.settings.items()
        if settings["ATOMIC_REQUESTS"] and alias not in left_out
    ]


def atomic(view: Callable[..., Any], aliases: Iterable[str]) -> Callable[..., Any]:
    """Wrap the view in transactions, nested as the request handler does it."""
    for alias in aliases:
        view = transaction.atomic(using=alias)(view)
    return view


def in_transaction(alias: str | None = None) -> bool:
    """Return True if this thread is inside a transaction; those of a TestCase do not count.

    Args:
        alias: the database; None: any.
    """
    # The object whose attributes are the connections of this thread or task, by alias. Each lock
    # looks at it. Django keeps them in a ``Local`` of asgiref, which for each look raises an error
    # and catches it, to see that no event loop runs; in a thread it has a ``threading.local``
    # inside. Where another version has none, the ``Local`` itself tells the same.
    opened = connections._connections  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    inside = getattr(opened, "_storage", None)
    if isinstance(inside, local) and running_loop() is None:
        opened = inside
    for each in connections.settings if alias is None else (alias,):
        connection = getattr(opened, each, None)
        if connection is not None and connection.in_atomic_block:
            blocks = connection.atomic_blocks
            if not all(getattr(block, "_from_testcase", False) for block in blocks):
                return True
    return False


def no_database(alias: str) -> str:
    """Return what is wrong where this is the alias of no database; "" where it is one."""
    known = connections.settings
    if alias in known:
        return ""
    has = ", ".join(map(repr, known))
    return f"DATABASES has no {alias!r}{did_you_mean(alias, known)}; it has: {has}"


def check_database(alias: str) -> None:
    """Check that this is the alias of a database.

    Raises:
        ConnectionDoesNotExist: it is not; the text names those that there are.
    """
    if problem := no_database(alias):
        raise ConnectionDoesNotExist(problem)


def check_none(decorator: str, module: str) -> None:
    """Check that this thread is in no transaction, as a decorator of this module wants.

    Raises:
        RuntimeError: it is in one, so the lock would be released before the COMMIT.
    """
    if in_transaction():
        msg = (
            f"{decorator} runs inside a transaction, so the lock would be released before "
            "the COMMIT: put it above transaction.atomic and @idempotent, and on 'dispatch' of a "
            f"class; under ATOMIC_REQUESTS take {decorator} of {module}.rest_framework for a view "
            "of REST framework, and non_atomic of django_redlock.views.ninja for django-ninja"
        )
        raise RuntimeError(msg)


def check_autocommit(alias: str) -> None:
    """Check that the end of a transaction of this database is its COMMIT.

    Raises:
        ConnectionDoesNotExist: there is no such database.
        RuntimeError: autocommit is off.
    """
    check_database(alias)
    connection = connections[alias]
    if not (connection.in_atomic_block or connection.get_autocommit()):
        msg = (
            f"autocommit is off for the database {alias!r}, so the COMMIT would come after "
            "the release: call set_autocommit(True), and leave out AUTOCOMMIT in DATABASES"
        )
        raise RuntimeError(msg)


def is_spoiled(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the open transaction of this connection can only be rolled back.

    By ``set_rollback``, or after an error that was caught: Django notes it, or PostgreSQL does. The
    COMMIT of PostgreSQL is a ROLLBACK then, without an error, so that Django takes it for a COMMIT.
    SQLite may have rolled back by itself, as for ON CONFLICT ROLLBACK, and is in none any more.
    """
    raw = connection.connection
    aborted = getattr(getattr(raw, "info", None), "transaction_status", 0) == ABORTED
    return connection.needs_rollback or aborted or not getattr(raw, "in_transaction", True)


def end_torn(**_: object) -> None:
    """Roll back in this thread what blocks of ``Lock.atomic`` have left open that are gone.

    Call it where no such block can be at work. The garbage collector may be closing the generator
    of a block that is gone, and its ``finally`` still writes. What is inside the transaction of a
    TestCase stays open.
    """
    for connection in connections.all(initialized_only=True):
        begun = getattr(connection, BEGUN, None)
        if begun is not None and begun.torn:
            begun.roll_back()


class TransactionUnderLock:
    """The transaction of ``Lock.atomic``: the outermost of its connection, in one thread.

    Django's ``Atomic`` begins and commits it. It does not roll back: if an exception of a signal
    handler arrives there between the end of the body and the ROLLBACK, ``Atomic`` sets the
    connection to autocommit, by which SQLite and MySQL commit what the failed body wrote.

    Attributes:
        committed: whether it is known to be committed. A COMMIT whose reply is lost is not known.

    Args:
        using: the alias of the database. None: "default".

    Raises:
        ConnectionDoesNotExist: there is no such alias.
        RuntimeError: autocommit is off, so no COMMIT would end the block.
    """

    def __init__(self, using: str | None) -> None:
        alias = DEFAULT_DB_ALIAS if using is None else using
        check_autocommit(alias)
        self._connection = connections[alias]
        self._atomic: Any = transaction.atomic(using=alias, durable=True)
        self.committed = False
        self._in_testcase = False
        self._thread = 0  # where it has begun and has not ended
        self._pid = 0
        self._parents: Any = None
        self._block: Callable[[], object] | None = None

    @property
    def torn(self) -> bool:
        """Whether it has not ended, and the block is gone that was to end it."""
        gone = self._block is not None and self._block() is None
        return gone and self._thread != 0 and not self._in_testcase

    def begin(self, block: Callable[[], object]) -> None:
        """Begin it; ``block`` returns None once the block is gone that is to end it.

        Raises:
            Error: of the database.
        """
        self._in_testcase = self._connection.in_atomic_block
        self._block, self._thread, self._pid = block, get_ident(), os.getpid()
        setattr(self._connection, BEGUN, self)
        self._atomic.__enter__()
        if not self._in_testcase:  # whose tests may capture the functions, and count them
            self._connection.on_commit(self._note)  # the first one, so no other keeps it from it
            self._execute("SAVEPOINT")

    def _note(self) -> None:
        self.committed = True

    def _execute(self, what: str) -> None:
        """Set the savepoint or release it, where a server may end a transaction by itself."""
        if self._connection.vendor == MYSQL and not self._in_testcase:
            with self._connection.cursor() as cursor:
                cursor.execute(f"{what} {WHOLE}")

    def commit(self) -> None:
        """Commit it, or roll back where a COMMIT would; ``committed`` tells which it was.

        Raises:
            Error: of the database; ``Exception``: of a function that ``on_commit`` registered. A
                note of the exception says so where the transaction is committed all the same.
        """
        if self._thread != get_ident() or self._pid != os.getpid():
            raise RuntimeError("a transaction ends in another thread or process than it began")
        if is_spoiled(self._connection):
            self.roll_back()
            return
        try:
            self._execute("RELEASE SAVEPOINT")
        except Error as error:
            error.add_note(NOT_WHOLE)
            raise
        try:
            self._atomic.__exit__(None, None, None)
        except BaseException as error:
            if self.committed:
                error.add_note(COMMITTED)
            raise
        self.committed |= self._in_testcase
        self._thread = 0

    def roll_back(self) -> None:
        """Roll back, unless it has ended; leave the connection as it was before."""
        if self._thread != get_ident():  # ended; or the block ends in another thread
            return
        if self._in_testcase:
            while self._atomic in self._connection.atomic_blocks:
                self._atomic.__exit__(RuntimeError, None, None)
        else:
            self._roll_back()
        self._thread = 0

    def _roll_back(self) -> None:
        """Roll back from whatever state an interruption has left; may begin anew."""
        connection = self._connection
        connection.in_atomic_block = False  # else Django refuses what follows
        if self._pid != os.getpid():
            # In a child that was forked: the session is its parent's, which a ROLLBACK would end,
            # or a driver that forgets the connection. So nothing is sent, and it is kept.
            self._parents, connection.connection = connection.connection, None
        try:
            if not connection.closed_in_transaction and connection.connection is not None:
                connection.rollback()
                connection.set_autocommit(True)
        except Error:  # the connection is broken, and its server rolls back
            connection.close()
        if connection.closed_in_transaction:
            connection.connection, connection.closed_in_transaction = None, False
        connection.needs_rollback = False
        connection.savepoint_ids.clear()
        connection.atomic_blocks.clear()


@async_unsafe(NO_ASYNC)
def under_lock(using: str | None) -> TransactionUnderLock:
    """Return a transaction for ``Lock.atomic``, which has not begun yet.

    Raises:
        SynchronousOnlyOperation: an event loop runs in this thread.
    """
    return TransactionUnderLock(using)


signals.request_started.connect(end_torn, dispatch_uid="redlock")
if "celery" in sys.modules:  # a worker has imported it
    import celery.signals

    celery.signals.task_prerun.connect(end_torn, dispatch_uid="redlock")
