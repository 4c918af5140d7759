"""The examples of "which lock" run in a new project."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction

from tests.docs.pages import BILLING, ROOT, Block, Reader, blocks, make_tables, reader
from tests.support.databases import POSTGRESQL, connected
from tests.support.waiting import eventually

ALIAS = "page"
PAGE = ROOT / "docs/how-to/which-lock.md"
SETTINGS = """\
INSTALLED_APPS += ["django_redlock", "billing"]
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
"""
USE = """\
from django.db import IntegrityError, connection, transaction
from django_redlock import redlock
from django_redlock.fencing import StaleFence, fenced
from billing.models import Order, Seat
from billing.prices import raise_price
from billing.quotes import refresh_price
from billing.seats import take

seat = Seat.objects.create(price=100)
assert [take(seat.pk, "a"), take(seat.pk, "b")] == [True, False]
Order.objects.create(customer="a")
try:
    Order.objects.create(customer="a")
except IntegrityError:
    print("one open order")
assert Order.objects.get_or_create(customer="a", open=True)[1] is False
Order.objects.update(open=False)
Order.objects.create(customer="a")
assert not connection.features.has_select_for_update
assert raise_price(seat.pk, lambda price: price + 5) == 105
assert refresh_price(seat.pk, lambda price: price + 1) == 106

def slow(price):  # a later holder comes meanwhile
    with connection.cursor() as cursor:
        cursor.execute("UPDATE billing_seat SET fence = %s", [2**62])
    return 0

try:
    refresh_price(seat.pk, slow)
except StaleFence:
    print("refused")
seat.refresh_from_db()
print(seat.price)
from billing.advisory import lock_until_commit
try:
    lock_until_commit("a")
except transaction.TransactionManagementError:
    print("needs a transaction")
"""


def project(someone: Reader) -> None:
    """A new project with the files of the page."""
    someone.begin(*BILLING)
    (someone.home / "billing/models.py").unlink()  # a comment and an import
    someone.write(Block("python", "mysite/settings.py", SETTINGS))
    for block in blocks(PAGE):
        assert block.file, "an example without a file would run nowhere"
        someone.write(block)
    make_tables(someone)


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    """One statement, a constraint, a row lock and a fenced row do on SQLite what the page says."""
    with reader(tmp_path, "mysite.settings") as someone:
        project(someone)
        someone.type(USE)
        assert someone.seen == "one open order\nrefused\n106\nneeds a transaction\n"


@pytest.mark.slow
def test_an_advisory_lock_lasts_until_commit(databases, django_db_blocker) -> None:
    """On PostgreSQL another session waits for the name until this one's transaction has ended."""
    (text,) = [block.text for block in blocks(PAGE) if block.file == "billing/advisory.py"]
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102 - our own page
    names["connection"] = _Current()
    got = threading.Event()

    def another() -> None:
        try:
            with transaction.atomic(using=ALIAS):
                names["lock_until_commit"]("a")
                got.set()
        finally:
            connections[ALIAS].close()

    def waits() -> bool:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            return cursor.fetchone() is not None

    with django_db_blocker.unblock(), connected(databases(POSTGRESQL), ALIAS):
        waiter = threading.Thread(target=another)
        with transaction.atomic(using=ALIAS):
            names["lock_until_commit"]("a")
            waiter.start()
            eventually(waits)
            assert not got.is_set()
        waiter.join(60)
        assert got.is_set()


class _Current:
    """``django.db.connection`` for the alias "page": each thread's own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(connections[ALIAS], name)
