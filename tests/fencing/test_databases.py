"""What a claim and its writes do on SQLite, PostgreSQL and MariaDB, by one table of scenarios."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from django.db import IntegrityError, OperationalError, connections, migrations, models, transaction
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import F, QuerySet

from django_redlock import redlock
from django_redlock.fencing import FenceField, StaleFence, fenced, field
from django_redlock.leases.lease import Lease
from tests.support.databases import (
    KINDS,
    MARIADB,
    POSTGRESQL,
    SQLITE,
    WAITERS,
    Settings,
    connected,
)
from tests.support.waiting import eventually

from . import tables
from .outside import environment, started
from .tables import Counter, Ticket

TIMES_OUT = 0.2  # seconds for which a claim waits, where a test says how long; MariaDB: 1


class Store(NamedTuple):
    """A database with the tables, and one connection of this thread.

    Attributes:
        take: gives a lease with a higher fence than those before it.
        run: calls a function in another thread, which has a connection of its own.
    """

    kind: str
    alias: str
    settings: Settings
    take: Callable[[], Lease]
    run: Callable[..., Future[Any]]

    def counters(self) -> QuerySet[Counter]:
        found: QuerySet[Counter] = Counter.objects.using(self.alias)
        return found

    def counter(self) -> QuerySet[Counter]:
        """One row, which is made here."""
        made = self.counters().create()
        return self.counters().filter(pk=made.pk)

    def atomic(self, alias: str | None = None) -> Any:
        return transaction.atomic(using=alias or self.alias)

    def execute(self, sql: str, *parameters: Any) -> list[Any]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def await_waiter(self, started: Future[Any]) -> None:
        """Return when a statement waits for a lock; SQLite cannot tell."""
        if self.kind == SQLITE:
            assert not started.done()
            return

        def waits() -> bool:  # by another connection: in a transaction, the answer stays as it was
            return bool(self.run(self.execute, WAITERS[self.kind]).result(20)) or started.done()

        # MariaDB looks anew only when nobody has asked for a tenth of a second.
        eventually(waits, every=0.12, what="a waiting statement")
        assert not started.done(), started.result()


def of(*kinds: str) -> list[Any]:
    """Parameters for these databases; those that must be started are slow."""
    return [pytest.param(kind, marks=() if kind == SQLITE else pytest.mark.slow) for kind in kinds]


@pytest.fixture(params=of(*KINDS))
def store(request, databases, django_db_blocker) -> Iterator[Store]:
    """A database with empty tables."""
    settings = databases(request.param)

    def take() -> Lease:
        return stack.enter_context(redlock(uuid.uuid4().hex))

    def run(call: Callable[..., Any], *args: Any) -> Future[Any]:
        def work() -> Any:
            try:
                return call(*args)
            finally:
                connections.close_all()

        return pool.submit(work)

    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        stack.enter_context(connected(settings, "fenced"))
        stack.callback(tables.drop, "fenced")
        tables.create("fenced")
        pool = stack.enter_context(ThreadPoolExecutor(4))
        yield Store(request.param, "fenced", settings, take, run)


def only(kinds: str) -> Any:
    """Ask of some databases only."""
    return pytest.mark.parametrize("store", of(*kinds.split()), indirect=True)


# -- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["older", "newer"])
def test_a_claim_by_a_lower_equal_and_higher_fence(store, first):
    """A holder that has the fence of the row, or a higher one, claims it; no other does."""
    leases = dict(zip(("older", "newer"), (store.take(), store.take()), strict=True))
    assert leases["older"].fence < leases["newer"].fence
    row = store.counter()
    fenced(leases[first], row)
    assert fenced(leases[first], row).get().fence == leases[first].fence
    if first == "older":
        assert fenced(leases["newer"], row).get().fence == leases["newer"].fence
    with pytest.raises(StaleFence) as caught:
        fenced(leases["older"], row)
    assert caught.value.keys == (row.get().pk,)
    assert row.get().fence == leases["newer"].fence


def test_a_stale_holder_writes_nothing(store):
    """Neither by update, F() included, nor by save or delete; and it reads nothing."""
    older, newer = store.take(), store.take()
    row = store.counter()
    stale = fenced(older, row)
    instance = stale.get()
    fenced(newer, row).update(value=7)
    instance.value = 1
    for act in (
        lambda: stale.update(value=1),
        lambda: stale.update(value=F("value") + 1),
        lambda: stale.save(instance),
        stale.delete,
        stale.get,
        lambda: list(stale),
    ):
        with pytest.raises(StaleFence) as caught:
            act()
        assert caught.value.keys == (instance.pk,)
    assert row.values_list("value", "fence").get() == (7, newer.fence)


def test_a_comparison_without_a_claim_loses_the_write_of_a_successor(store):
    """The check can fail: who only compares when it writes lets an older holder write between."""
    older, newer = store.take(), store.take()
    row = store.counter()
    table = Counter._meta.db_table

    def compared(lease: Lease, value: int) -> None:
        sql = f"UPDATE {table} SET value = %s, fence = %s WHERE id = %s AND fence <= %s"  # noqa: S608
        store.execute(sql, value, lease.fence, row.get().pk, lease.fence)

    first, second = row.get().value, row.get().value  # both hold it, by their own clocks
    compared(older, first + 1)
    compared(newer, second + 1)
    assert row.get().value == 1
    assert row.get().fence == newer.fence


def test_an_update_to_the_same_value_is_no_loss(store):
    """Matched rows count: MariaDB counts changed ones, where Django does not ask it otherwise."""
    row = store.counter()
    rows = fenced(store.take(), row)
    for _ in range(2):
        assert rows.update(value=5) == 1
    again = rows.get()
    rows.save(again)
    rows.save(again)
    assert rows.delete()[0] == 1


@only(MARIADB)
def test_changed_rows_are_too_few(store):
    """Without FOUND_ROWS, of which W011 warns, a holder is told of a loss that there was not."""
    row = store.counter()
    lease = store.take()
    options = {**store.settings, "OPTIONS": {"client_flag": 0}}
    with connected(options, "changed"):
        rows = fenced(lease, row.using("changed"))
        assert rows.update(value=5) == 1
        with pytest.raises(StaleFence):
            rows.update(value=5)


# -- several rows ---------------------------------------------------------------------------------


def test_several_rows_are_claimed_and_written_together(store):
    """All or none: a row with a higher fence keeps the others as they were."""
    older, newer, newest = store.take(), store.take(), store.take()
    keys = [store.counters().create().pk for _ in range(3)]
    rows = store.counters().filter(pk__in=keys)
    mine = fenced(newer, rows)
    assert mine.update(value=F("value") + 1) == 3
    assert [row.value for row in mine] == [1, 1, 1]
    fenced(newest, rows.filter(pk=keys[1]))
    for act in (lambda: mine.update(value=9), mine.delete, lambda: list(mine)):
        with pytest.raises(StaleFence) as caught:
            act()
        assert caught.value.keys == (keys[1],)
    for lease, higher in ((newer, keys[1:2]), (older, keys)):
        with pytest.raises(StaleFence) as caught:
            fenced(lease, rows)
        assert sorted(caught.value.keys) == higher
    assert list(rows.values_list("value", flat=True)) == [1, 1, 1]
    found = dict(rows.values_list("pk", "fence"))
    assert [found[key] for key in keys] == [newer.fence, newest.fence, newer.fence]


def test_rows_that_are_claimed_in_two_orders(store):
    """In transactions the database ends a deadlock, and one of the two goes on; nothing is lost."""
    keys = [store.counters().create().pk for _ in range(2)]
    both = store.take(), store.take()
    attempts: list[Future[str]] = []

    def claim(lease: Lease, first: int, second: int, claimed: Future[None]) -> str:
        try:
            with store.atomic():
                rows = fenced(lease, store.counters().filter(pk=first))
                claimed.set_result(None)
                if store.kind != SQLITE:  # whose second one waits for the first to commit
                    for each in starts:
                        each.result(20)
                rows.update(value=F("value") + 1)
                fenced(lease, store.counters().filter(pk=second)).update(value=F("value") + 1)
        except OperationalError:
            return "deadlock"
        except StaleFence:
            return "stale"
        return "done"

    starts: list[Future[None]] = [Future(), Future()]
    for lease, order, start in zip(both, (keys, keys[::-1]), starts, strict=True):
        attempts.append(store.run(claim, lease, *order, start))
    outcomes = [each.result(30) for each in attempts]
    written = store.counters().filter(pk__in=keys).values_list("value", flat=True)
    assert list(written) == [outcomes.count("done")] * 2
    if store.kind == SQLITE:
        assert "deadlock" not in outcomes
    else:
        assert sorted(outcomes) == ["deadlock", "done"]


# -- rows that come and go ------------------------------------------------------------------------


def test_a_row_that_is_deleted_has_no_fence(store):
    """A stale holder neither writes nor claims it; only a row that stays remembers the fence."""
    older, newer = store.take(), store.take()
    seat = Ticket.objects.using(store.alias)
    seat.create(seat="1A", owner="nobody")
    stale = fenced(older, seat.filter(seat="1A"))
    with pytest.raises(IntegrityError):
        seat.create(seat="1A", owner="second")
    fenced(newer, seat.filter(seat="1A")).delete()
    with pytest.raises(StaleFence):
        stale.update(owner="first")
    with pytest.raises(Ticket.DoesNotExist):
        fenced(older, seat.filter(seat="1A"))
    assert seat.create(seat="1A", owner="first").fence == 0  # nothing keeps it from that


def test_a_rollback_undoes_a_claim(store):
    """The row refuses nobody that it did not refuse before; a new claim brings the fence back."""
    older, newer = store.take(), store.take()
    row = store.counter()
    before = fenced(older, row)
    with store.atomic():
        fenced(newer, row).update(value=9)
        transaction.set_rollback(True, using=store.alias)
    assert row.get().fence == older.fence
    assert before.update(value=1) == 1
    fenced(newer, row)
    with pytest.raises(StaleFence):
        before.update(value=2)


# -- waiting --------------------------------------------------------------------------------------


def test_a_claim_waits_for_the_transaction_of_a_newer_holder(store):
    """Then it looks again: the older one is refused, whatever it saw before it waited."""
    older, newer = store.take(), store.take()
    row = store.counter()
    with store.atomic():
        fenced(newer, row).update(value=1)
        claim = store.run(fenced, older, row)
        store.await_waiter(claim)
    with pytest.raises(StaleFence):
        claim.result(30)
    assert row.values_list("value", "fence").get() == (1, newer.fence)


def test_a_claim_waits_for_the_transaction_of_an_older_holder(store):
    """Then it has the row, and reads what was committed: no write is lost."""
    older, newer = store.take(), store.take()
    row = store.counter()

    def add() -> int:
        rows = fenced(newer, row)
        return int(rows.update(value=rows.get().value + 1))

    with store.atomic():
        rows = fenced(older, row)
        value = rows.get().value
        successor = store.run(add)
        store.await_waiter(successor)
        rows.update(value=value + 1)
    assert successor.result(30) == 1
    assert row.get().value == 2


@only(POSTGRESQL)
def test_a_claim_by_a_subquery_is_fooled(store):
    """The check can fail: PostgreSQL does not ask a subquery again after it has waited."""
    older, newer = store.take(), store.take()
    row = store.counter()
    table = Counter._meta.db_table
    sql = f"UPDATE {table} SET fence = %s WHERE id IN (SELECT id FROM {table} WHERE fence <= %s)"  # noqa: S608
    with store.atomic():
        fenced(newer, row)
        claim = store.run(store.execute, sql, older.fence, older.fence)
        store.await_waiter(claim)
    claim.result(30)
    assert row.get().fence == older.fence


@pytest.mark.slow
def test_a_holder_that_pauses_in_a_transaction_holds_up_its_successor(store):
    """Its row lock outlives its lease; the successor's lock timeout ends the waiting."""
    older, newer = store.take(), store.take()
    row = store.counter()

    def impatient() -> int:
        connection = connections[store.alias]
        if store.kind == SQLITE:
            with connected({**store.settings, "OPTIONS": {"timeout": TIMES_OUT}}, "hasty"):
                return int(fenced(newer, row.using("hasty")).get().value)
        with store.atomic(), connection.cursor() as cursor:
            if store.kind == POSTGRESQL:
                cursor.execute(f"SET LOCAL lock_timeout = '{TIMES_OUT:g}s'")
            else:
                cursor.execute("SET innodb_lock_wait_timeout = 1")
            return int(fenced(newer, row).get().value)

    with store.atomic():
        paused = fenced(older, row)
        with pytest.raises(OperationalError):
            store.run(impatient).result(30)
        paused.update(value=1)  # nobody else has had the row
    assert store.run(impatient).result(30) == 1


# -- a transaction with an older view --------------------------------------------------------------


@pytest.fixture
def repeatable(store) -> Iterator[str]:
    """The database, by a connection whose transactions see what there was when they began."""
    options = dict(store.settings.get("OPTIONS", {}))
    if store.kind == POSTGRESQL:
        from psycopg import IsolationLevel

        options["isolation_level"] = IsolationLevel.REPEATABLE_READ
    elif store.kind == MARIADB:
        options["isolation_level"] = "repeatable read"
    with connected({**store.settings, "OPTIONS": options}, "repeatable") as alias:
        yield alias


def test_an_older_view_lets_no_stale_holder_claim(store, repeatable):
    """PostgreSQL and SQLite end the transaction; MariaDB's claim sees the row as it is."""
    older, newer = store.take(), store.take()
    row = store.counter()

    def claim() -> None:
        with store.atomic(repeatable):
            assert row.using(repeatable).get().fence == 0
            store.run(lambda: fenced(newer, row).update(value=7)).result(30)
            assert row.using(repeatable).get().fence == 0
            fenced(older, row.using(repeatable))

    with pytest.raises(StaleFence if store.kind == MARIADB else OperationalError):
        claim()
    assert row.values_list("value", "fence").get() == (7, newer.fence)


def test_who_claims_with_an_older_view_reads_no_older_value(store, repeatable):
    """PostgreSQL and SQLite end the transaction; MariaDB reads the row that was claimed."""
    older, newer = store.take(), store.take()
    row = store.counter()

    def add() -> int:
        with store.atomic(repeatable):
            assert row.using(repeatable).get().value == 0
            store.run(lambda: fenced(older, row).update(value=7)).result(30)
            rows = fenced(newer, row.using(repeatable))
            return int(rows.update(value=rows.get().value + 1))

    if store.kind == MARIADB:
        assert add() == 1
        assert row.get().value == 8
    else:
        with pytest.raises(OperationalError):
            add()
        assert row.get().value == 7


@pytest.mark.slow
@only("postgresql mariadb")  # two processes cannot share a connection of SQLite at all
def test_a_child_leaves_its_parent_the_transaction(store, patient_nodes, tmp_path):
    """A forked child that leaves the block sends nothing on the connection of its parent."""
    locks = patient_nodes.settings(NODE_TIMEOUT=10, RESTART_GUARD=False)
    env = environment(store.settings, locks)
    counter = store.counter()
    with started(1, "tests.fencing.forked", env, tmp_path) as (process,):
        for value, raises in ((1, True), (2, False)):
            process.tell(pk=counter.get().pk, value=value, raises=raises)
            assert process.hear("done")["child"] == 0
            assert counter.get().value == value


BEFORE = {
    "no column": None,
    "null": models.BigIntegerField(null=True),
    "not null": models.BigIntegerField(default=5),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_a_table_with_rows_gets_the_column(store, before):
    """By a migration; or the column that has such numbers already becomes one.

    The release before knows no fence, and still runs while the migration does: it goes on to add
    rows, which have 0.
    """
    fields: list[tuple[str, models.Field[Any, Any]]]
    fields = [("id", models.BigAutoField(primary_key=True))]
    fields += [] if before is None else [("fence", before)]
    old = ProjectState()
    old.add_model(ModelState("shop", "Filled", fields))
    new, fence = old.clone(), FenceField()
    change: Any = migrations.AddField if before is None else migrations.AlterField
    operation = change("Filled", "fence", fence)
    operation.state_forwards("shop", new)
    filled = old.apps.get_model("shop", "Filled")
    with connections[store.alias].schema_editor() as editor:
        editor.create_model(filled)
    try:
        filled.objects.using(store.alias).create(**({} if before is None else {"fence": 5}))
        if before is not None and before.null:
            filled.objects.using(store.alias).create()
        expected = {0} if before is None else {0, 5} if before.null else {5}
        with connections[store.alias].schema_editor() as editor:
            operation.database_forwards("shop", editor, old, new)
        rows = new.apps.get_model("shop", "Filled").objects.using(store.alias)
        fences = set(rows.values_list("fence", flat=True))
        assert fences == expected
        table = connections[store.alias].ops.quote_name(filled._meta.db_table)
        store.execute(f"INSERT INTO {table} (id) VALUES (%s)", 99)  # noqa: S608 - our own table
        assert rows.get(pk=99).fence == 0
        if before is None:
            made = filled.objects.using(store.alias).create()
            assert rows.get(pk=made.pk).fence == 0
        with connections[store.alias].schema_editor() as editor:
            operation.database_backwards("shop", editor, new, old)
    finally:
        with connections[store.alias].schema_editor() as editor:
            editor.delete_model(filled)


@only(SQLITE)
def test_a_fence_without_the_databases_default_is_noticed(store, monkeypatch):
    """Broken: the default of the model alone, which a release without the field does not know."""
    own = {name: each for name, each in field.OWN.items() if name != "db_default"}
    monkeypatch.setattr(field, "OWN", own)
    with pytest.raises(IntegrityError, match="NOT NULL"):
        test_a_table_with_rows_gets_the_column(store, None)
