"""What somebody writes on the first day, and what is said of it: each text has what to write.

Mistakes in ``REDLOCK`` are in ``test_bad_input.py`` and ``checks/``, nodes that refuse or are no
nodes in ``nodes/test_refusals.py``, tasks in ``celery/``. Here are locks and views, most of
them in a real request, under ATOMIC_REQUESTS.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from celery import shared_task
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import AnonymousUser, User
from django.db import models, transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.views.generic import View

from django_redlock import current_lease, redlock
from django_redlock.celery import LockedTask, locked_task
from django_redlock.leases.lease import NO_BLOCK, Lease
from django_redlock.locks import advice
from django_redlock.views import rest_framework, single_flight

from .support.addresses import explained
from .views.asking import urls
from .views.conftest import memory, orders  # noqa: F401 - fixtures
from .views.test_rest_framework import Base

# What a type checker would refuse already.
untyped: Any = redlock
locked: Any = single_flight
rest_locked: Any = rest_framework.single_flight
untyped_task: Any = locked_task

pytestmark = pytest.mark.django_db(databases=["default"])


def view(request: Any, pk: int = 0) -> HttpResponse:
    """Any view."""
    return HttpResponse("done")


async def aview(request: Any) -> HttpResponse:
    """Any async view."""
    return HttpResponse("done")


def ask(found: Any) -> Any:
    """Send a request to a view, once its module has been loaded."""
    with urls(path("", found)):
        return Client().post("/")


def aask(found: Any) -> Any:
    """The same of an async view."""
    with urls(path("", found)):
        return asyncio.run(AsyncClient().post("/"))


def refused(found: Any) -> Any:
    """The same, while somebody else has the lock "x"."""
    with redlock("x"):
        return ask(found)


class Bare(View):
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse("done")


class Inside(View):
    @method_decorator(single_flight("x"))
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse("done")


async def blocking_in_a_task() -> None:
    """Take a lock by a plain ``with``."""
    with redlock("x"):
        pass


def lazy_user() -> SimpleLazyObject:
    """What ``request.user`` is."""
    return SimpleLazyObject(lambda: User(pk=7, username="ada"))


@redlock("user:{user}")
def of_a_user(user: Any) -> None:
    """Run under a lock of a user."""


@redlock("invoice:{invoice.pk}")
def of_an_invoice(invoice: Any) -> None:
    """Run under a lock of an invoice."""


def entered(manager: Any) -> None:
    """Enter a block."""
    with manager:
        pytest.fail("the body runs")


async def aentered(manager: Any) -> None:
    """The same in a task."""
    async with manager:
        pytest.fail("the body runs")


async def aacquired(use: Any) -> None:
    """Take a lock in a task, and use its lease."""
    used = use(await redlock("x").aacquire())
    await used


def released(use: Any) -> None:
    """Take a lock, use its lease, and release it."""
    lease = redlock("x").acquire()
    try:
        use(lease)
    finally:
        lease.release()


# What was written, and what its text has to say.
AT_ONCE: dict[str, tuple[Callable[[], Any], str]] = {
    "no braces are filled": (lambda: redlock("invoice:{pk}").acquire(), "write an f-string"),
    "a decorator without a name": (lambda: untyped(view), r"as in @redlock\('report:\{year\}'\)"),
    "a lock above a task": (
        lambda: untyped("x")(shared_task(name="newcomers.above", shared=False)(view)),
        "below @shared_task",
    ),
    "a coroutine that is told of a loss": (
        lambda: untyped("x", on_lost=aview),
        "let it wake a task by loop.call_soon_threadsafe",
    ),
    "a blocking lock in a task": (
        lambda: asyncio.run(blocking_in_a_task()),
        "use 'async with', or aacquire",
    ),
    "a blocking lock that shall not wait": (
        lambda: untyped("x").acquire(False),
        r"try_acquire\(\) does not wait, and returns None where",
    ),
    "an alias by keyword": (lambda: untyped("x", alias="a"), r"'alias': write redlock\.using\('a"),
    "a misspelt keyword": (lambda: untyped("x", limt=3), r"'limt' \(did you mean 'limit'\?\); it"),
    "once by keyword": (
        lambda: untyped("x", once=3),
        r"'once': write redlock\(name\)\.once\(",
    ),
    "two names": (lambda: untyped("a", "b"), r"write .*a list of names: redlock\(\['a', 'b'\]\)"),
    "leader by position": (lambda: untyped("a").leader(view, view), r"write \.leader\(on_elected="),
    "once without keep": (lambda: untyped("a").once(), r"write \.once\(keep=timedelta\(hours=20\)"),
    "a leader's work without a lease": (
        lambda: untyped("a").leader(on_elected=lambda: None),
        r"on_elected is a function that takes \(\), and is called with \(lease\)",
    ),
    "a leader's work that is called": (
        lambda: untyped("a").leader(on_elected=print()),
        "on_elected is None: write the function without parentheses",
    ),
    "acquire of once": (
        lambda: untyped("a").once(keep=5).acquire(),
        r"'acquire': it takes its lock in a block only: .* 'if run\.fresh:'",
    ),
    "release of a lock": (
        lambda: untyped("a").release(),
        "'release': a lock holds nothing: .*lease",
    ),
    "locked": (lambda: untyped("a").locked(), r"'locked': write lock\.state\(\)\.held"),
    "a wait without waiting": (
        lambda: untyped("a").try_acquire(wait=5),
        r"write acquire\(wait=5\)",
    ),
    "on_lost without a lease": (
        lambda: untyped("a", on_lost=lambda: None),
        r"on_lost is a function that takes \(\), and is called with \(lease\)",
    ),
    "request.user as a name": (lambda: untyped(lazy_user()), r"f'user:{user\.pk}'"),
    "a user among names": (lambda: untyped(["a", lazy_user()]), r"f'user:{user\.pk}'"),
    "a user in a name": (lambda: of_a_user(User(pk=7)), r"{user} .* is a User, .* {user\.pk}"),
    "nobody in a name": (lambda: of_a_user(AnonymousUser()), r"or {client} in the key of a view"),
    "users in a name": (lambda: of_a_user([User(pk=7)]), "a list of model instances"),
    "a query in a name": (lambda: of_a_user(User.objects.all()), "a QuerySet of model instances"),
    "an object in a name": (lambda: of_a_user(object()), "whose text is its address"),
    "an invoice that is not saved": (
        lambda: of_an_invoice(User()),
        r"{invoice\.pk} in a lock's name is None, because the User is not saved",
    ),
    "the text of what is not saved": (
        lambda: redlock(f"log:{models.Model.__str__(LogEntry())}").acquire(),
        "is not saved, and all such would share one lock",
    ),
    "request.user in a key": (
        lambda: ask(with_user(locked("x:{request.user}")(view))),
        r"{request\.user} in a lock's name is a User, .* write {request\.user\.pk}",
    ),
    "a key that makes a user": (
        lambda: ask(with_user(locked(key=lambda request: request.user)(view))),
        r"key= must return a str.*f'pay:{request\.user\.pk}'",
    ),
    "an invoice as the only argument of a task": (
        lambda: locked_task(lambda invoice: None)(User(pk=7)),
        r'no key can be made of a User: .*"invoice:{invoice\.pk}"',
    ),
    "a misspelt field": (
        lambda: locked("x:{requst.user.pk}")(view),
        r"\(did you mean 'request'\?\)",
    ),
    "milliseconds": (lambda: untyped("x", ttl=5000).acquire(), "in seconds: did you mean 5?"),
    "a text that is no handle": (lambda: redlock.adopt("x"), "not a handle"),
    "a field that there is not": (
        lambda: locked("x:{user}")(view),
        "the parameters are: client, pk, request",
    ),
    "a key by position": (
        lambda: ask(locked(lambda request: "x")(view)),
        r"@single_flight\(key=function\)",
    ),
    "a key without the request": (
        lambda: locked(key=lambda: "x")(view),
        r"key is a function that takes \(\), and is called with \(request\)",
    ),
    "a key that makes no name": (
        lambda: ask(locked(key=lambda request: None)(view)),
        "key= must return a str, or a list of str",
    ),
    "an async key of a plain view": (lambda: locked(key=aview)(view), "a plain function"),
    "a method's name as methods": (
        lambda: locked("x", methods="POST"),
        r"a list of HTTP methods, e\.g\. \['POST'\]",
    ),
    "another status": (lambda: locked("x", status=500), r"one of \[409, 423, 429\]"),
    "another on_unavailable": (
        lambda: locked("x", on_unavailable="raise"),
        "none of 'refuse', 'run'",
    ),
    "a response as on_refused": (
        lambda: locked("x", on_refused=HttpResponse("no")),
        "must be a function of the request and the refusal, or the name of a template",
    ),
    "a class of responses as on_refused": (
        lambda: locked("x", on_refused=HttpResponse),
        "write a function",
    ),
    "on_refused of one argument": (
        lambda: locked("x", on_refused=lambda request: HttpResponse("no")),
        r"takes \(request\), and is called with \(request, refusal\)",
    ),
    "on_refused that returns text": (
        lambda: refused(locked("x", on_refused=lambda request, refusal: "no")(view)),
        "must return a response, or None for the usual one",
    ),
    "an async on_refused of a plain view": (
        lambda: locked("x", on_refused=aview)(view),
        "on_refused",
    ),
    "retry_after of no argument": (
        lambda: locked("x", retry_after=lambda: 5),
        r"retry_after is a function that takes \(\), and is called with \(taken\)",
    ),
    "retry_after that returns text": (
        lambda: refused(locked("x", retry_after=lambda taken: "5")(view)),
        "retry_after must be a number of seconds, not str",
    ),
    "a class": (lambda: locked("x")(Bare), r"@method_decorator\(.*name='dispatch'\)"),
    "a method": (lambda: locked("x")(Bare.post), r"write @method_decorator\(single_flight"),
    "a class of REST framework": (
        lambda: locked(Base),
        r"write @single_flight\(\.\.\.\) of django_redlock\.views\.rest_framework",
    ),
    "a method inside of a transaction": (lambda: ask(Inside.as_view()), "on 'dispatch' of a class"),
    "a transaction around it": (
        lambda: ask(transaction.atomic(locked("x")(view))),
        "put it above transaction.atomic",
    ),
    "a decorator as the view": (
        lambda: ask(locked("x")),
        r"in urls\.py write single_flight\('pay:\{pk\}'\)\(view\)",
    ),
    "an async view under ATOMIC_REQUESTS": (
        lambda: aask(locked("x")(aview)),
        "write @transaction.non_atomic_requests below",
    ),
    "a view of REST framework": (
        lambda: locked("x")(Base.as_view()),
        r"write @single_flight\(\.\.\.\) of django_redlock\.views\.rest_framework",
    ),
    "a plain view as one of REST framework": (
        lambda: rest_locked("x")(view),
        r"other views: django_redlock\.views\.single_flight",
    ),
    "a lock that is asked whether it is true": (
        lambda: "held" if untyped("x") else "free",
        r"'with redlock\(name\):' takes it, try_acquire\(\) returns a lease or None, state\(\)",
    ),
    "a lock with a transaction that is asked": (lambda: not untyped("x").atomic(), "takes it"),
    "redlock without a name": (lambda: entered(untyped), r"write 'with redlock\(\"name\"\):'"),
    "redlock without a name in a task": (
        lambda: asyncio.run(aentered(untyped.using(ttl=5))),
        r"'async with redlock\(\"name\"\):'",
    ),
    "a lease as a block": (
        lambda: entered(untyped("x").acquire()),
        r"write 'with redlock\(name\) as lease:', without acquire\(\)",
    ),
    "a lease as a block of a task": (
        lambda: asyncio.run(aacquired(aentered)),
        r"write 'async with redlock\(name\) as lease:', without aacquire\(\)",
    ),
    "a lease that is asked whether it is held": (
        lambda: released(lambda lease: lease.locked()),
        r"no 'locked' .*: ask lease\.remaining\(\) > 0, or call lease\.ensure\(\)",
    ),
    "a lease that is asked whose it is": (lambda: released(lambda lease: lease.owned()), "ensure"),
    "a database that there is not": (
        lambda: entered(redlock("x").atomic("order")),
        r"DATABASES has no 'order' \(did you mean 'orders'\?\); it has: 'default', 'orders'",
    ),
}


def with_user(found: Any) -> Any:
    """A view whose request has a user, as behind Django's middleware."""

    @functools.wraps(found)
    def called(request: Any) -> Any:
        request.user = lazy_user()
        return found(request)

    return called


# Each callable that takes options, and some of those that it takes.
CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "redlock": (lambda **given: untyped("x", **given), "ttl, wait, renew"),
    "using": (untyped.using, "ttl, wait, renew"),
    "acquire": (lambda **given: untyped("x").acquire(**given), "wait"),
    "aacquire": (lambda **given: asyncio.run(untyped("x").aacquire(**given)), "wait"),
    "single_flight": (lambda **given: locked("x", **given), "key, "),
    "of REST framework": (lambda **given: rest_locked("x", **given), "key, "),
    "locked_task": (lambda **given: untyped_task("x", **given), "key, "),
    "LockedTask": (
        lambda **given: type("Own", (LockedTask,), {"lock": {"key": "x", **given}, "run": view}),
        "key, ",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_said_of_another_clients_keyword(call):
    """It is named, beside those that there are and the page that says what it becomes."""
    make, known = CALLS[call]
    for keyword in ("timeout", "blocking_timeout", "retry_delay", "masters", "unique_on"):
        with pytest.raises(TypeError, match=f"has no keyword '{keyword}'[^;]*; it takes ") as error:
            make(**{keyword: 5})
        assert known in str(error.value)
        assert explained(str(error.value))


@pytest.mark.parametrize("value", [7, "7", None, uuid.uuid4(), Decimal("7.50"), date(2026, 1, 1)])
def test_what_may_be_in_a_name(value, memory):  # noqa: F811
    """What is its own identity is a field as before; None, too, where no instance lacks its key."""

    @redlock("x:{value}:{value!s:>3}")
    def named(value: Any) -> Any:
        return current_lease().name  # type: ignore[union-attr]

    assert named(value) == f"x:{value}:{value!s:>3}"
    assert untyped("x:{user.pk}")(lambda user: current_lease().name)(AnonymousUser()) == "x:None"  # type: ignore[union-attr]
    assert untyped("x:{user.pk}")(lambda user: current_lease().name)(lazy_user()) == "x:7"  # type: ignore[union-attr]


@pytest.mark.parametrize("mistake", AT_ONCE)
def test_what_is_said_of_a_mistake(mistake, orders):  # noqa: F811
    """An error says what to do, at the latest with the first request; nothing stays taken."""
    make, text = AT_ONCE[mistake]
    with pytest.raises(Exception, match=text) as error:
        make()
    assert len(str(error.value)) < 400
    assert not redlock("x").state().held


def test_a_name_that_looks_unfilled_is_logged_once(orders, caplog, monkeypatch):  # noqa: F811
    """And locks as it is: a visitor may have chosen the text. There is an end to such lines."""
    monkeypatch.setattr(advice, "_warned", set())
    pieces = ["x:None", "x:None:7", "x:[1, 2]", "invoice:%s", "openai:*"]
    for name in (*pieces, *pieces, "Nonesuch:7", "a[7]", "100%", *(f"{i}:None" for i in range(50))):
        with redlock(name):
            pass
    told = [record.args[0] for record in caplog.records if "looks unfilled" in record.msg]
    assert told[: len(pieces)] == pieces
    assert len(told) == advice.MOST_WARNED


def test_a_misspelt_campaign_is_logged_once(orders, caplog, monkeypatch):  # noqa: F811
    """``leads`` of another name is False, and says so where this process has one like it."""
    monkeypatch.setattr(advice, "_warned", set())
    with redlock("beat").leader():
        for name in ("baet", "baet", "another", "beat"):
            redlock.leads(name)
    (told,) = (record for record in caplog.records if "no such campaign" in record.msg)
    assert told.getMessage().endswith("this process has no such campaign (did you mean 'beat'?)")


def test_a_lease_that_stays_taken_is_noticed(orders, monkeypatch):  # noqa: F811
    """Broken: an error alone, as Python's own for what is no block."""

    def enter(lease: Lease) -> None:
        raise TypeError(NO_BLOCK.format(lease.name, "with", "acquire"))

    monkeypatch.setattr(Lease, "__enter__", enter)
    with pytest.raises(AssertionError):
        test_what_is_said_of_a_mistake("a lease as a block", orders)


def test_a_visitor_who_writes_as_an_instance_that_is_not_saved(orders, caplog):  # noqa: F811
    """So may a mistake in ``key=``, and the log says so; neither is a 500."""
    with caplog.at_level(logging.WARNING, logger="django_redlock"):
        assert ask(locked(key=lambda request: "log:Order object (None)")(view)).status_code == 400
    said = "what key= returned has a model instance in it that is not saved"
    assert said in caplog.records[0].getMessage()


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    """No noise of Django's about the errors that are meant."""
    logging.getLogger("django.request").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("django.request").setLevel(logging.NOTSET)
