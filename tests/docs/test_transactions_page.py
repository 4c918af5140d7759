"""The examples of "Transactions" run as they stand, and it is as it says."""

from __future__ import annotations

import pytest

from tests.docs.pages import (
    INSTALL,
    ROOT,
    TESTING,
    Reader,
    blocks,
    follow,
    make_tables,
    reader,
)

PAGE = ROOT / "docs/how-to/transactions.md"

# Each is typed into the shell of the project.
ADDED = """\
from billing.invoices import add, clear
from django.db import connection
from django_redlock import LeaseLost, LockTaken, redlock

add(invoice.pk, 5)
invoice.refresh_from_db()
assert invoice.total == 12
with redlock(f"invoice:{invoice.pk}"):
    try:
        redlock(f"invoice:{invoice.pk}").atomic().__enter__()
    except LockTaken:
        assert not connection.in_atomic_block
clear(invoice.pk)
invoice.refresh_from_db()
assert invoice.total == 0
print("added and cleared")
"""
WRONG = """\
import warnings
import billing.wrong
from django_redlock.errors import LockInTransactionWarning

try:
    billing.wrong.add(invoice.pk, 5)
except LockInTransactionWarning:
    print("an error in tests")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    for _ in range(3):
        billing.wrong.add(invoice.pk, 5)
(told,) = caught
assert told.filename == billing.wrong.__file__
line = open(told.filename).read().splitlines()[told.lineno - 1]
assert "# free before the COMMIT" in line, line
"""
VIEWS = """\
from billing import views
from django.conf import settings
from django.db import connections
from django.test import Client
from django.test.utils import override_settings
from django.urls import path

connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
class Urls:
    urlpatterns = [path("pay/<int:pk>/", views.pay), path("remind/<int:pk>/", views.remind)]
with override_settings(ROOT_URLCONF=Urls, MIDDLEWARE=[]):
    client = Client(SERVER_NAME="localhost")
    for address, total in (("pay", 0), ("remind", 5)):
        assert client.post(f"/{address}/{invoice.pk}/").status_code == 200
        invoice.refresh_from_db()
        assert invoice.total == total
    with redlock(f"invoice:{invoice.pk}"):
        assert client.post(f"/pay/{invoice.pk}/").status_code == 409
connections["default"].settings_dict["ATOMIC_REQUESTS"] = False
print("views")
"""
COROUTINES = """\
import asyncio
import threading
from billing import asynchronous
from billing.models import Invoice
from django_redlock import redlock

asyncio.run(asynchronous.achange(invoice.pk, 9))
invoice.refresh_from_db()
assert invoice.total == 9

# A task that is cancelled while the function runs.
entered, go_on, told = threading.Event(), threading.Event(), []
queryset, ended = asynchronous.Invoice, threading.Event()
class Slow:
    class objects:
        @staticmethod
        def filter(**how):
            entered.set()
            assert go_on.wait(30)
            return Invoice.objects.filter(**how)
known = asynchronous.assert_locked
def asked(name):
    try:
        return known(name)
    except Exception as error:
        told.append(type(error).__name__)
        raise
    finally:
        ended.set()
asynchronous.Invoice, asynchronous.assert_locked = Slow, asked

async def main():
    task = asyncio.create_task(asynchronous.achange(invoice.pk, 1000))
    await asyncio.to_thread(entered.wait, 30)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    async with redlock(f"invoice:{invoice.pk}"):  # it is free
        go_on.set()
        await asyncio.to_thread(ended.wait, 30)
asyncio.run(main())
assert told == ["LeaseLost"], told
invoice.refresh_from_db()
assert invoice.total == 9
print("coroutines")
"""


@pytest.fixture
def someone(tmp_path):
    """A reader who has the files of the page, its tables, and its shell."""
    with reader(tmp_path, "mysite.test_settings") as someone:
        follow(someone, INSTALL)
        follow(someone, PAGE)
        follow(someone, TESTING)
        make_tables(someone)
        for block in blocks(PAGE):
            if block.language == "python" and not block.file:
                someone.type(block.text)
        yield someone


def test_the_examples_run(someone: Reader) -> None:
    """What each of them does is seen in the row, and the lock and the transaction are over."""
    for typed in (ADDED, VIEWS, COROUTINES):
        someone.type(typed)
    assert "written under the fence" in someone.seen
    assert someone.seen.endswith("added and cleared\nviews\ncoroutines\n")


def test_the_wrong_order_is_told_as_the_page_says(someone: Reader) -> None:
    """An error with the settings of the page; else a warning, once, that names the line."""
    someone.type(WRONG)
    assert someone.seen.endswith("an error in tests\n")
