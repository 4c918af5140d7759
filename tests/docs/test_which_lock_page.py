"""The examples of "which lock" run in a new project."""

from __future__ import annotations

import re
from pathlib import Path

from django.db.backends.sqlite3.features import DatabaseFeatures as SQLite

from tests.docs.tables import ROOT, table
from tests.docs.test_docs import Block, Reader, blocks, reader

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
    someone.run("django-admin startproject mysite .")
    someone.run("python manage.py startapp billing")
    (someone.home / "billing/models.py").unlink()  # a comment and an import
    someone.write(Block("python", "mysite/settings.py", SETTINGS))
    for block in blocks(PAGE):
        assert block.file, "an example without a file would run nowhere"
        someone.write(block)
    someone.run("python manage.py makemigrations billing")
    someone.run("python manage.py migrate")


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    """One statement, a constraint, a row lock and a fenced row do on SQLite what the page says."""
    with reader(tmp_path, "mysite.settings") as someone:
        project(someone)
        someone.type(USE)
        assert someone.seen == "one open order\nrefused\n106\nneeds a transaction\n"


def test_what_the_page_says_of_sqlite() -> None:
    """Django ignores ``select_for_update`` there, and the table says so."""
    page = table("docs/how-to/which-lock.md", "", "`UPDATE … WHERE`, unique key")
    (row,) = [each for each in page.rows if each[0] == "SQLite"]
    assert row[page.header.index("`select_for_update()`")] == "is ignored"
    assert not SQLite.has_select_for_update


def test_each_cell_of_the_comparison_is_filled() -> None:
    """Each row has a cell for each kind of lock; an empty one follows a kind that does not wait."""
    page = table("docs/how-to/which-lock.md", "", "`UPDATE … WHERE`, unique key")
    assert len(page.rows) > 15
    for row in page.rows:
        assert len(row) == len(page.header)
        assert row[-1]


def test_the_page_and_redlock_explained_agree() -> None:
    """The short table of "Redlock explained" leads to this page."""
    explained = (ROOT / "docs/explanation/redlock.md").read_text()
    assert re.search(r"\]\(\.\./how-to/which-lock\.md\)", explained)
