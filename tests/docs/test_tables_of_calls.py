"""Tables of errors and of calls say what the code has, in both directions."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pytest
from django.db import transaction

import django_redlock
from django_redlock import errors, redlock
from django_redlock.celery import DuplicateTask
from django_redlock.core.names import check_names
from django_redlock.fencing import FencedRows, StaleFence, fenced
from django_redlock.leases.lease import Lease
from django_redlock.locks.atomic import LockInTransactionWarning
from django_redlock.locks.lock import Lock
from django_redlock.views import single_flight
from tests.docs.tables import ROOT, codes, first_codes, table

DURABLE = "`redlock(name, durable=…)`", "Inside a transaction"


ERRORS = {each.__name__ for each in errors.RedlockError.__subclasses__()} & set(errors.__all__)


def test_the_tables_of_errors():
    """Each error has a row in the reference; those of a lock have one in "Errors", in its order."""
    assert set(first_codes(table("docs/reference/api.md", "Error"))) == {*ERRORS, "StaleFence"}
    assert issubclass(StaleFence, errors.LeaseLost)
    page = table("docs/how-to/errors.md", "Error")
    of_locks = ERRORS - {DuplicateTask.__name__}
    assert set(first_codes(page)) == of_locks
    answers = table("docs/how-to/errors.md", "", "`LockTaken`")
    assert [codes(each)[0] for each in answers.header[1:]] == first_codes(page)
    for name in ERRORS:
        assert issubclass(getattr(errors, name), errors.RedlockError)


def test_the_places_of_lease_lost():
    """Each place that the page names is there: a method of a lease or of the template."""
    named = first_codes(table("docs/how-to/errors.md", "Place"))
    called = [name.partition("(")[0] for name in named if "(" in name]
    assert len(called) >= 7
    for name in called:
        owner, _, method = name.rpartition(".")
        alone = Lock if name.startswith(".") else django_redlock
        found = {"lease": Lease, "redlock": redlock, "": alone}[owner]
        assert callable(getattr(found, method)), name


def test_the_calls_of_threads_and_tasks():
    """Each call in a thread is, with an "a" before its name, a coroutine function for tasks."""
    page = table("docs/how-to/asyncio.md", "In a thread", "In a task")
    owners: dict[str, Any] = {"lock": Lock, "lease": Lease, "redlock": type(redlock)}
    pairs = 0
    for blocking, awaiting in page.rows:
        calls = re.findall(r"`(\w+)\.(\w+)\(", blocking)
        assert re.findall(r"`await (\w+)\.a(\w+)\(", awaiting) == calls
        for owner, method in calls:
            pairs += 1
            assert inspect.iscoroutinefunction(getattr(owners[owner], f"a{method}"))
            assert not inspect.iscoroutinefunction(getattr(owners[owner], method))
    every = [
        f"a{name}" for owner in owners.values() for name in vars(owner) if f"a{name}" in vars(owner)
    ]
    assert pairs == len(every)


def test_the_methods_of_claimed_rows():
    """The table has each method of claimed rows, and the text those for tasks."""
    page = ROOT / "docs/how-to/fencing.md"
    rows = first_codes(table("docs/how-to/fencing.md", "", "statement"))
    assert rows[0] == f"fenced({', '.join(list(inspect.signature(fenced).parameters)[:2])})"
    named = [code.partition("(")[0] for code in rows[1:]]
    methods = [name for name, each in vars(FencedRows).items() if inspect.isfunction(each)]
    public = {name for name in methods if not name.startswith("_")}
    of_tasks = {name for name in public if inspect.iscoroutinefunction(getattr(FencedRows, name))}
    assert set(named) == public - of_tasks
    (line,) = re.findall(r"^There are (`a.*)\.$", page.read_text(), re.MULTILINE)
    assert set(codes(line)) == of_tasks


def test_the_keys_of_the_views_page_are_names():
    """Each key of the table is a key that ``single_flight`` accepts, or a name."""
    for (key,) in map(codes, table("docs/how-to/views.md", "Key").column("Key")[1:]):
        value = ast.literal_eval(key)
        single_flight(value)
        if "{" not in key:
            check_names([value])


@pytest.mark.django_db
def test_what_durable_does(memory):
    """Each value of the table does in a transaction what its row says."""
    page = table("docs/how-to/transactions.md", *DURABLE)
    assert page.column(DURABLE[0]) == ["not given", "`True`", "`False`"]
    with transaction.atomic():
        with pytest.warns(LockInTransactionWarning), redlock("a"):
            pass
        with pytest.raises(RuntimeError), redlock("b", durable=True):
            pass
        with redlock("c", durable=False):
            pass
