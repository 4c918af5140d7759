"""What somebody writes on the first day, and what is said of it: each text has what to write.

Mistakes in ``REDLOCK`` are in ``test_bad_input.py`` and ``checks/``, nodes that refuse or are no
nodes in ``transport/test_refusals.py``, tasks in ``celery/``. Here are locks and views, most of
them in a real request, under ATOMIC_REQUESTS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import shared_task
from django.db import transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View

from django_redlock import redlock
from django_redlock.views import RedlockMiddleware, rest_framework, single_flight

from .views.test_rest_framework import Base
from .views.test_views import in_transaction, memory, orders, urls  # noqa: F401 - fixtures

# What a type checker would refuse already.
untyped: Any = redlock
locked: Any = single_flight
rest_locked: Any = rest_framework.single_flight

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


class Status(RedlockMiddleware):
    status = 500


async def blocking_in_a_task() -> None:
    """Take a lock by a plain ``with``."""
    with redlock("x"):
        pass


def without_nodes() -> None:
    """Take a lock without ``REDLOCK``."""
    with override_settings(REDLOCK=None):
        redlock("x").acquire()


# What was written, and what its text has to say.
AT_ONCE: dict[str, tuple[Callable[[], Any], str]] = {
    "no braces are filled": (lambda: redlock("invoice:{pk}").acquire(), "write an f-string"),
    "a decorator without a name": (lambda: untyped(view), r"as in @redlock\('report:\{year\}'\)"),
    "a lock above a task": (
        lambda: untyped("x")(shared_task(name="newcomers.above", shared=False)(view)),
        "below @shared_task",
    ),
    "a timedelta": (lambda: untyped("x", ttl=pytest), "must be a number of seconds"),
    "a coroutine that is told of a loss": (
        lambda: untyped("x", on_lost=aview),
        "let it wake a task, or connect an async receiver",
    ),
    "an option of another lock": (lambda: untyped.using(timeout=5), "the options are: ttl, wait"),
    "a blocking lock in a task": (
        lambda: asyncio.run(blocking_in_a_task()),
        "use 'async with', or aacquire",
    ),
    "a text that is no handle": (lambda: redlock.adopt("x"), "not a handle"),
    "a field that there is not": (
        lambda: locked("x:{user}")(view),
        "the parameters are: client, pk, request",
    ),
    "a name that is typed with the wrong type": (lambda: locked(7)(view), "a str or a list"),
    "a key by position": (
        lambda: ask(locked(lambda request: "x")(view)),
        r"@single_flight\(key=function\)",
    ),
    "a key without the request": (
        lambda: locked(key=lambda: "x")(view),
        r"key is a function that takes \(\), and is called with \(request\)",
    ),
    "a key without what the view gets": (
        lambda: locked(key=lambda request: "x")(lambda request, pk: None),
        r"called with \(request, pk\)",
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
    "a status of the middleware": (lambda: Status(view), r"one of \[409, 423, 429\]"),
    "ttl above MAX_TTL": (
        lambda: ask(locked("x", ttl=600)(view)),
        "lower it, or raise MAX_TTL on all processes first",
    ),
    "an alias that there is not": (
        lambda: ask(locked("x", alias="payments")(view)),
        "it has: 'default'",
    ),
    "release of a lock": (
        lambda: untyped("x").release(),
        r"has no attribute 'release'; keep the lease that acquire\(\) returns",
    ),
    "a lock that is asked whether it is held": (
        lambda: untyped("x").locked(),
        r"ask state\(\)\.held; to take it if it is free, use try_acquire\(\)",
    ),
    "no nodes at all": (without_nodes, r"set REDLOCK to a dictionary: \{'default'"),
}


@pytest.mark.parametrize("mistake", AT_ONCE)
def test_what_is_said_of_a_mistake(mistake, orders):  # noqa: F811
    """It is an error when the module is loaded, or with the first request, that says what to do."""
    make, text = AT_ONCE[mistake]
    with pytest.raises(Exception, match=text) as error:
        make()
    assert len(str(error.value)) < 400


def test_a_request_that_lacks_a_field_is_told_in_the_log(orders, caplog):  # noqa: F811
    """The client is answered 400, and the log names the field."""
    with caplog.at_level(logging.WARNING, logger="django_redlock"):
        assert ask(locked("x:{request.headers[X-Order]}")(view)).status_code == 400
    assert "{request.headers[X-Order]}" in caplog.records[0].getMessage()


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    """No noise of Django's about the errors that are meant."""
    logging.getLogger("django.request").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("django.request").setLevel(logging.NOTSET)
