"""A lock inside a transaction: `durable=True` refuses it, and without `durable` Python warns."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from celery import Celery
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path

from django_redlock import redlock, redlocks, transactions
from django_redlock.celery import locked_task
from django_redlock.errors import LockInTransactionWarning
from django_redlock.locks.lock import Lock
from django_redlock.transactions import in_transaction
from django_redlock.views import single_flight

NAME = "durable"


def block(lock: Lock) -> None:
    """Enter and leave."""
    with lock:
        pass


def by_stack(lock: Lock) -> None:
    """Enter by a stack."""
    with ExitStack() as stack:
        stack.enter_context(lock)


def by_once(lock: Lock) -> None:
    """Enter and leave, for work that is done once; it fails, so no record stays."""
    with suppress(KeyError), lock.once(keep=60):
        raise KeyError


def decorated(lock: Lock) -> None:
    """Call a function."""
    lock(lambda: None)()


def by_acquire(lock: Lock) -> None:
    """Acquire and release."""
    lock.acquire().release()


def by_try(lock: Lock) -> None:
    """Acquire without waiting, and release."""
    lease = lock.try_acquire()
    assert lease is not None
    lease.release()


async def ablock(lock: Lock) -> None:
    """Enter and leave in a task."""
    async with lock:
        pass


async def adecorated(lock: Lock) -> None:
    """Call a coroutine function."""

    @lock
    async def nothing() -> None: ...

    await nothing()


async def by_aacquire(lock: Lock) -> None:
    """Acquire and release in a task."""
    lease = await lock.aacquire()
    await lease.arelease()


async def by_atry(lock: Lock) -> None:
    """Acquire without waiting, and release, in a task."""
    lease = await lock.atry_acquire()
    assert lease is not None
    await lease.arelease()


@pytest.fixture
def unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django lets a coroutine use the database, as in a notebook."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


def close() -> None:
    """Close the connection of a coroutine; Django's own method keeps a database in memory."""
    BaseDatabaseWrapper.close(connections["default"])


@pytest.fixture(autouse=True)
def free() -> Iterator[None]:
    """Afterwards nothing is taken."""
    yield
    redlock(NAME).acquire().release()


# -- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [block, by_stack, decorated, by_acquire, by_try])
@pytest.mark.django_db
def test_a_transaction_of_the_code_counts(way):
    """A durable lock is refused in it, and takes nothing; that of a test case does not count."""
    template = redlocks["default"].using(durable=True)
    for lock in (redlock(NAME), template(NAME)):
        way(lock)
    with transaction.atomic():
        for lock in (redlock(NAME, durable=True), template(NAME)):
            with pytest.raises(RuntimeError, match="COMMIT"):
                way(lock)
        way(template(NAME, durable=False))  # it is meant
        with warnings.catch_warnings():
            warnings.simplefilter("error", LockInTransactionWarning)
            with pytest.raises(LockInTransactionWarning):
                way(redlock(NAME))
        redlock(NAME, durable=False).acquire().release()


@pytest.mark.parametrize("way", [ablock, adecorated, by_aacquire, by_atry])
@pytest.mark.usefixtures("unsafe")
@pytest.mark.django_db(transaction=True)
def test_a_transaction_of_a_coroutine_counts(way):
    """Where a coroutine opens a transaction, which Django forbids by default, it counts, too."""

    async def main() -> None:
        await way(redlock(NAME, durable=True))
        with transaction.atomic():
            with pytest.raises(RuntimeError, match="COMMIT"):
                await way(redlock(NAME, durable=True))
            with pytest.warns(LockInTransactionWarning) as caught:
                await way(redlock(NAME))
        close()
        assert [each.filename for each in caught] == [__file__]
        first = inspect.getsourcelines(way)[1]
        assert first <= caught[0].lineno <= first + len(inspect.getsourcelines(way)[0])

    asyncio.run(main())


def seen() -> tuple[bool, bool, bool, bool]:
    """Whether there is a transaction: at all, here, in another database, and by Django's word."""
    told = any(
        not getattr(block, "_from_testcase", False)
        for each in connections.all(initialized_only=True)
        for block in each.atomic_blocks
    )
    return in_transaction(), in_transaction("default"), in_transaction("nowhere"), told


@pytest.mark.parametrize("asked", ["the thread", "asgiref"])
@pytest.mark.usefixtures("unsafe")
@pytest.mark.django_db(transaction=True)
def test_a_transaction_is_seen_where_it_is_open(monkeypatch, asked):
    """In its thread, or in its coroutine; also where asgiref keeps no attributes of a thread."""
    if asked == "asgiref":
        monkeypatch.setattr(transactions, "local", tuple)
    inside, outside = (True, True, False, True), (False, False, False, False)

    async def in_a_loop() -> None:
        assert seen() == outside
        with transaction.atomic():
            assert seen() == inside
        close()

    assert seen() == outside
    asyncio.run(in_a_loop())
    with transaction.atomic(), ThreadPoolExecutor(1) as another:
        assert seen() == inside
        asyncio.run(in_a_loop())
        assert another.submit(seen).result() == outside


# -- warned of ------------------------------------------------------------------------------------


def places(run: Callable[[], object]) -> list[tuple[str, int]]:
    """Run this in a transaction; the lines of which Python warns."""
    with pytest.warns(LockInTransactionWarning) as caught, transaction.atomic():
        run()
    ours = [each for each in caught if issubclass(each.category, LockInTransactionWarning)]
    return [(each.filename, each.lineno) for each in ours]  # others may be of forgotten objects


def line_of(function: Callable[..., object], text: str) -> int:
    """The number of the line of a function that has this text."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [number for number, line in enumerate(lines, first) if text in line]
    return found


@pytest.mark.parametrize(
    ("way", "text"),
    [
        (block, "with lock"),
        (by_once, "lock.once"),
        (decorated, "lambda"),
        (by_acquire, "acquire()"),
        (by_try, "try_acquire()"),
    ],
)
@pytest.mark.django_db
def test_python_warns_of_the_line_that_takes_the_lock(way, text):
    """Not of one of this package; the lock is taken and released."""
    assert places(lambda: way(redlock(NAME))) == [(__file__, line_of(way, text))]
    assert places(lambda: way(redlocks["default"](NAME))) == [(__file__, line_of(way, text))]


@redlock(NAME)
def total() -> int:
    """Do it under the lock."""
    return 1


@locked_task(NAME)
def task() -> int:
    """Do it under the lock."""
    return 1


CALLS: dict[str, tuple[Callable[[], object], Callable[..., object]]] = {
    "by the code": (total, total),
    "by asgiref, as a view": (async_to_sync(sync_to_async(total)), total),
    "below atomic": (transaction.atomic(total), total),
    "a task by the code": (task, task),
    "a task by Celery": (lambda: Celery("x", set_as_current=False).task(task).apply(), task),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.django_db
def test_a_decorated_function_is_named_itself(call):
    """Whoever calls it: the line of its decorator is told, not one of Django or Celery."""
    run, function = CALLS[call]
    assert places(run) == [(__file__, line_of(function, "@"))]


def ask(monkeypatch: pytest.MonkeyPatch, view: Callable[..., HttpResponse]) -> None:
    """Ask a view under ATOMIC_REQUESTS."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF=type("Urls", (), {"urlpatterns": [path("", view)]})):
        assert Client().post("/").content == b"ran"


@pytest.mark.django_db(transaction=True)
def test_a_view_under_atomic_requests_is_named_itself(monkeypatch):
    """And not the line of Django, or of the server, which is the same for all views."""

    @redlock(NAME)
    def view(request: Any) -> HttpResponse:
        return HttpResponse("ran")

    with pytest.warns(LockInTransactionWarning) as caught:
        ask(monkeypatch, view)
    place = (__file__, line_of(view, "@redlock"))
    assert [(each.filename, each.lineno) for each in caught] == [place]


@pytest.mark.django_db
def test_a_lease_that_is_adopted_in_a_transaction_warns():
    """Its lock is free before the COMMIT as well; it may be refused, or be meant."""

    def adopt(template: Any) -> None:
        handle = redlock(NAME).acquire().handle()
        try:
            with transaction.atomic():
                template.adopt(handle).release()
        except RuntimeError:  # the handle is still good
            redlock.adopt(handle).release()
            raise

    with pytest.warns(LockInTransactionWarning, match="Adopt it before") as caught:
        adopt(redlock)
    assert [(each.filename, each.lineno) for each in caught] == [
        (__file__, line_of(adopt, "template.adopt"))
    ]
    with pytest.raises(RuntimeError, match="released before the COMMIT"):
        adopt(redlock.using(durable=True))
    adopt(redlock.using(durable=False))


@pytest.mark.django_db
def test_a_line_is_told_once_whatever_it_locks():
    """A thousand names at one line make one warning, and nothing that grows."""
    names: dict[str, Any] = {"redlock": redlock}
    source = "def many(names):\n    for name in names:\n        with redlock(name): pass\n"
    exec(source, names)  # noqa: S102 - our own
    with warnings.catch_warnings(record=True) as caught, transaction.atomic():
        warnings.simplefilter("default")
        names["many"](f"name:{number}" for number in range(100))
    (ours,) = (each for each in caught if each.category is LockInTransactionWarning)
    assert len(names["__warningregistry__"]) <= 2
    said = str(ours.message)
    assert "name:" not in said
    for way_out in (".atomic()", "@single_flight", "non_atomic_requests", "durable=False"):
        assert way_out in said


@pytest.mark.django_db
def test_the_views_decorator_is_silent(monkeypatch):
    """`@single_flight` opens the transactions of ATOMIC_REQUESTS itself, inside its lock."""

    @single_flight(NAME)
    def view(request: Any) -> HttpResponse:
        assert in_transaction()
        assert redlock(NAME, durable=False).try_acquire() is None
        return HttpResponse("ran")

    ask(monkeypatch, view)
