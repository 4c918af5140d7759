"""What "which lock" says of PostgreSQL and MariaDB is so, on servers that the tests start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

from tests.docs.tables import table
from tests.docs.test_docs import blocks
from tests.docs.test_which_lock_page import PAGE
from tests.fencing.tables import Counter
from tests.support.databases import MARIADB, POSTGRESQL, connected, database, why_not
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
ALIAS = "page"
TAKE = {
    POSTGRESQL: "SELECT pg_try_advisory_lock(7)::int",
    MARIADB: "SELECT GET_LOCK('seven', 0)",
}
WHO = {POSTGRESQL: "SELECT pg_backend_pid()", MARIADB: "SELECT CONNECTION_ID()"}
KILL = {POSTGRESQL: "SELECT pg_terminate_backend(%s)", MARIADB: "KILL %s"}
LOST = OperationalError, InterfaceError


@pytest.fixture(scope="module", params=[POSTGRESQL, MARIADB])
def kind(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[str]:
    """A server of this kind, with a table, by the alias "page"."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    with (
        django_db_blocker.unblock(),
        database(request.param) as settings,
        connected(settings, ALIAS),
    ):
        with connections[ALIAS].schema_editor() as editor:
            editor.create_model(Counter)
        yield request.param


def cell(row: str, column: str) -> str:
    """A cell of the comparison."""
    page = table("docs/how-to/which-lock.md", "", "`UPDATE … WHERE`, unique key")
    (found,) = [each for each in page.rows if each[0] == row]
    return found[page.header.index(column)]


def ask(sql: str, *parameters: Any) -> Any:
    """The one value that a statement returns."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchone()[0] if cursor.description else None


def elsewhere(function: Callable[[], Any]) -> Any:
    """What a function returns in another session."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except DatabaseError as error:
            found.append(error)
        finally:
            connections[ALIAS].close()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    return found[0]


def locked(pk: int) -> Any:
    """Lock a row as another transaction would, without waiting; the row or the error."""
    with transaction.atomic(using=ALIAS):
        return Counter.objects.using(ALIAS).select_for_update(nowait=True).get(pk=pk)


def test_a_row_lock_lasts_until_commit(kind: str) -> None:
    """Another transaction is refused until this one has ended; outside of one it is an error."""
    row = Counter.objects.using(ALIAS).create()
    with transaction.atomic(using=ALIAS):
        Counter.objects.using(ALIAS).select_for_update().get(pk=row.pk)
        assert isinstance(elsewhere(lambda: locked(row.pk)), OperationalError)
    assert elsewhere(lambda: locked(row.pk)) == row
    with pytest.raises(transaction.TransactionManagementError):
        Counter.objects.using(ALIAS).select_for_update().get(pk=row.pk)
    assert cell("Lasts", "`select_for_update()`") == "until COMMIT or ROLLBACK"


def test_a_lost_connection_undoes_the_transaction(kind: str) -> None:
    """The next statement is an error, nothing is written, and the row is free."""
    row = Counter.objects.using(ALIAS).create()
    with pytest.raises(LOST), transaction.atomic(using=ALIAS):  # noqa: PT012 - one transaction
        held = Counter.objects.using(ALIAS).select_for_update().get(pk=row.pk)
        held.save(using=ALIAS)
        session = ask(WHO[kind])
        elsewhere(lambda: ask(KILL[kind], session))
        eventually(lambda: ask("SELECT 1") != 1, what="an error")
    connections[ALIAS].close()
    assert elsewhere(lambda: locked(row.pk)) == row
    said = cell("The connection is lost", "`select_for_update()`")
    assert said == "an error, and all is rolled back"


def test_a_session_lock_outlives_the_transaction_and_not_the_connection(kind: str) -> None:
    """A COMMIT leaves it; a new connection of Django's does not have it, and nobody says so."""
    with transaction.atomic(using=ALIAS):
        assert ask(TAKE[kind]) == 1
    assert elsewhere(lambda: ask(TAKE[kind])) == 0
    connections[ALIAS].close()  # as at the end of a request
    assert ask("SELECT 1") == 1  # no error: Django has connected anew
    eventually(lambda: elsewhere(lambda: ask(TAKE[kind])) == 1)
    column = "`pg_advisory_lock`, `GET_LOCK()`"
    assert "a COMMIT does not end it" in cell("MySQL, MariaDB", column)
    assert "or never" in cell("The connection is lost", column)


def test_what_the_kinds_of_server_have(kind: str) -> None:
    """Row locks on both; unique keys with a condition on PostgreSQL alone."""
    features = connections[ALIAS].features
    assert features.has_select_for_update
    assert features.supports_partial_indexes == (kind == POSTGRESQL)
    assert cell("MySQL, MariaDB", "`select_for_update()`") == "works"
    assert "no conditions" in cell("MySQL, MariaDB", "`UPDATE … WHERE`, unique key")
    assert cell("MySQL, MariaDB", "`pg_advisory_xact_lock`") == "no"


class _Current:
    """``django.db.connection`` for the alias "page": each thread's own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(connections[ALIAS], name)


def test_an_advisory_lock_lasts_until_commit(kind: str) -> None:
    """Another session waits for the name until this one's transaction has ended."""
    if kind != POSTGRESQL:
        pytest.skip("PostgreSQL's own")
    (text,) = [block.text for block in blocks(PAGE) if block.file == "billing/advisory.py"]
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102 - our own page
    names["connection"] = _Current()
    got = threading.Event()

    def another() -> None:
        with transaction.atomic(using=ALIAS):
            names["lock_until_commit"]("a")
            got.set()

    with pytest.raises(transaction.TransactionManagementError):
        names["lock_until_commit"]("a")
    waiter = threading.Thread(target=lambda: elsewhere(another))
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with transaction.atomic(using=ALIAS):
        names["lock_until_commit"]("a")
        waiter.start()
        eventually(lambda: ask(waits) == 1)
        assert not got.is_set()
    waiter.join(60)
    assert got.is_set()
