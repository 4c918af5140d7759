"""Scenarios of ``injected`` with a transaction, and what an interruption must not leave of one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import django
from django.conf import settings
from django.core.signals import request_started
from django.db import connections

from django_redlock.locks.lock import Lock

ALIAS = "storm"


class Failing(Exception):  # noqa: N818 - a stand-in
    """What a body raises."""


def wired() -> dict[str, Any]:
    """What a backend with transactions has; they are those of SQLite in memory."""
    if not settings.configured:
        nowhere = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(DATABASES={"default": nowhere, ALIAS: nowhere})
        django.setup()
        _execute("CREATE TABLE written (body TEXT)")
    from django_redlock.transactions import in_transaction, under_lock

    return {"in_transaction": in_transaction, "atomic": under_lock}


def _execute(sql: str) -> list[Any]:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def atomic(lock: Lock) -> None:
    """Enter, write and leave."""
    with lock.atomic(ALIAS):
        _execute("INSERT INTO written VALUES ('succeeded')")


def atomic_failing(lock: Lock) -> None:
    """Enter, write and fail."""
    with suppress(Failing), lock.atomic(ALIAS):
        _execute("INSERT INTO written VALUES ('failed')")
        raise Failing


def atomic_decorated(lock: Lock) -> None:
    """Call a function that writes."""

    @lock.atomic(ALIAS)
    def write() -> None:
        _execute("INSERT INTO written VALUES ('succeeded')")

    write()


def atomic_by_stack(lock: Lock) -> None:
    """Enter by what asks the class for ``__exit__``."""
    with ExitStack() as stack:
        stack.enter_context(lock.atomic(ALIAS))
        _execute("INSERT INTO written VALUES ('succeeded')")


SCENARIOS: dict[str, Callable[[Lock], Any]] = {
    each.__name__: each for each in (atomic, atomic_failing, atomic_decorated, atomic_by_stack)
}


def left(*, torn: bool) -> list[str]:
    """What is left of a transaction: an open one, or what a failed body wrote.

    Args:
        torn: whether the block was, so that the next request ends the transaction.
    """
    connection = connections[ALIAS]
    if torn:
        request_started.send(None)
    found = []
    if connection.in_atomic_block or connection.atomic_blocks or connection.savepoint_ids:
        found.append("Django believes that it is in a transaction")
    if connection.connection.in_transaction:
        found.append("SQLite is in a transaction")
    if not connection.get_autocommit() or connection.needs_rollback or connection.run_on_commit:
        found.append("the connection is not as it was")
    if not found and _execute("SELECT 1 FROM written WHERE body = 'failed'"):
        found.append("the failed body is committed")
    return found


# -- broken variants ------------------------------------------------------------------------------


def _djangos() -> None:
    """Roll back by Django's own code, without a frame in which nothing would be interrupted."""
    from django_redlock.transactions import TransactionUnderLock

    roll_back = property(lambda self: partial(self._atomic.__exit__, Failing, None, None))
    TransactionUnderLock._roll_back = roll_back  # type: ignore[method-assign,assignment]


def _forgotten() -> None:
    """Leave the transaction of a torn block open."""
    from django_redlock.transactions import TransactionUnderLock

    TransactionUnderLock.torn = False  # type: ignore[method-assign,assignment]


VARIANTS: dict[str, Callable[[], None]] = {"djangos": _djangos, "forgotten": _forgotten}
