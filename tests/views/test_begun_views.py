"""A view that has held a lock and is refused another one: nobody is told to try again."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import sync_and_async_middleware
from ninja import NinjaAPI
from rest_framework.response import Response
from rest_framework.views import APIView

from django_redlock import LockTaken, redlock
from django_redlock.leases import context
from django_redlock.views import RedlockMiddleware, Refusal, refusal_of, refusals, single_flight
from django_redlock.views import rest_framework as drf
from tests.support.replays import note_broken

from . import asking
from .asking import BROWSER, OURS

TEXT = "This request was not completed, and part of it may have been processed. "


TEXT += "Please look at the result before you repeat it."


charged: list[str] = []  # by the views, in order


@pytest.fixture(autouse=True)
def _nothing_charged() -> None:
    charged.clear()


def charge() -> None:
    """Do what cannot be undone."""
    charged.append("card")


def stock() -> HttpResponse:
    """Take the lock that is refused."""
    with redlock("stock"):
        return HttpResponse("ran")


def within(request: Any) -> HttpResponse:
    """Work under one lock, and take another."""
    with redlock("order"):
        charge()
        return stock()


def behind(request: Any) -> HttpResponse:
    """Work under one lock, leave it, and take another."""
    with redlock("order"):
        charge()
    return stock()


@single_flight("order")
def single(request: Any) -> HttpResponse:
    """Work under the lock of the decorator, and take another."""
    charge()
    return stock()


@single_flight("stock")
def inner(request: Any) -> HttpResponse:
    """A view that others call."""
    return HttpResponse("ran")


@single_flight("order")
def calling(request: Any) -> Any:
    """Work, and call another view that is locked."""
    charge()
    return inner(request)


def calling_within(request: Any) -> Any:
    """Work under a lock of one's own, and call another view that is locked."""
    with redlock("order"):
        charge()
        return inner(request)


def calling_behind(request: Any) -> Any:
    """Work under a lock of one's own, leave it, and call another view that is locked."""
    with redlock("order"):
        charge()
    return inner(request)


@single_flight("order")
def templated(request: Any) -> Any:
    """Work, and take another lock while the template is rendered."""
    charge()
    template = engines["django"].from_string("{{ stock }}")
    return TemplateResponse(request, template, {"stock": stock})


async def awaited(request: Any) -> HttpResponse:
    """Work under one lock, leave it, and take another, in a task."""
    async with redlock("order"):
        charge()
    async with redlock("stock"):
        return HttpResponse("ran")


async def in_tasks(request: Any) -> HttpResponse:
    """Work in a task of the view's own."""

    async def work() -> None:
        async with redlock("order"):
            charge()

    await asyncio.create_task(work())
    async with redlock("stock"):
        return HttpResponse("ran")


async def in_threads(request: Any) -> HttpResponse:
    """Work in a thread of the view's own, and take another lock in one."""

    def work() -> None:
        with redlock("order"):
            charge()

    await asyncio.to_thread(work)
    return await sync_to_async(stock)()


@single_flight("order")
async def asingle(request: Any) -> HttpResponse:
    """Work under the lock of the decorator, and take another, in a task."""
    charge()
    async with redlock("stock"):
        return HttpResponse("ran")


@sync_and_async_middleware
def locking(get_response: Any) -> Any:
    """A middleware that takes a lock and leaves it."""

    def middleware(request: Any) -> Any:
        with redlock("of the middleware"):
            pass
        return get_response(request)

    async def amiddleware(request: Any) -> Any:
        async with redlock("of the middleware"):
            pass
        return await get_response(request)

    return amiddleware if inspect.iscoroutinefunction(get_response) else middleware


LOCKING = f"{__name__}.locking"


BEGIN: tuple[Callable[..., Any], ...] = (
    within,
    behind,
    single,
    calling,
    calling_within,
    calling_behind,
    templated,
    awaited,
    in_tasks,
    in_threads,
    asingle,
)


urlpatterns: list[Any] = [path(f"{each.__name__}/", each) for each in (*BEGIN, inner)]


urlpatterns.append(path("stock/", lambda request: stock()))
ask_at = functools.partial(asking.ask, __name__)


def ask(view: str, *middleware: str, **more: Any) -> Any:
    """The response of a site with this middleware."""
    return ask_at(f"/{view}/", *middleware, **more)


def told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The warnings and errors that this package has logged."""
    return [
        each
        for each in caplog.records
        if each.name == "django_redlock" and each.levelno >= logging.WARNING
    ]


USES = pytest.mark.parametrize("use", ["sync", "async"])


@USES
@pytest.mark.parametrize("view", [each.__name__ for each in BEGIN])
def test_a_view_that_has_begun_is_not_to_be_repeated(view, use, caplog):
    """It is a 409 without `Retry-After`, whose text says why, and one line in the log."""
    with redlock("stock"):
        page = ask(view, OURS, use=use, accept=BROWSER)
        assert len(told(caplog)) == 1
        problem = ask(view, OURS, use=use, accept="application/json")
    assert charged == ["card"] * 2
    assert (page.status_code, "Retry-After" in page.headers) == (409, False)
    assert page.headers["Cache-Control"] == "no-store"
    assert TEXT in page.content.decode()
    assert (problem.status_code, "Retry-After" in problem.headers) == (409, False)
    about = {"type": "about:blank", "title": "Conflict", "status": 409, "detail": TEXT}
    assert json.loads(problem.content) == about
    (first, _) = told(caplog)
    assert first.levelno == logging.WARNING
    assert (first.redlock_name, first.redlock_code) == ("stock", "held")
    assert redlock("order").try_acquire() is not None


@USES
@pytest.mark.parametrize("view", ["stock", "inner"])
def test_a_lock_that_a_middleware_left_is_not_the_views(view, use):
    """A view that is refused its first lock has not begun; nor has the next one of a thread."""
    with redlock("stock"):
        assert "Retry-After" not in ask("behind", LOCKING, OURS, use=use).headers
        response = ask(view, LOCKING, OURS, use=use)
        assert (response.status_code, response.headers.get("Retry-After")) == (409, "1")


@USES
@pytest.mark.parametrize(
    ("view", "classes", "retry_after"),
    [("inner", [], "1"), ("calling_within", [], None), ("calling_behind", [OURS], None)],
)
def test_a_view_begins_in_our_middleware_or_else_at_its_first_single_flight(
    view, classes, retry_after, use
):
    """A lock that was left before that is not the view's; one that is held there is."""
    lease = contextvars.Context().run(redlock("stock").acquire)  # nothing is held around the view
    response = ask(view, LOCKING, *classes, use=use)
    lease.release()
    assert (response.status_code, response.headers.get("Retry-After")) == (409, retry_after)


@USES
def test_a_site_is_told(use):
    """Functions and templates know it by `refusal.begun`; other options do not count."""
    seen: list[Refusal] = []

    class Mine(RedlockMiddleware):
        status = 429

        def retry_after(self, taken: Any) -> float:
            return 7

        def on_refused(self, request: Any, refusal: Refusal) -> None:
            seen.append(refusal)

    with pytest.MonkeyPatch.context() as patched, redlock("stock"):
        patched.setattr("tests.views.test_begun_views.Mine", Mine, raising=False)
        for view in ("behind", "stock"):
            ask(view, f"{__name__}.Mine", use=use)
    assert [(each.status, each.retry_after, each.begun) for each in seen] == [
        (409, None, True),
        (429, 7, False),
    ]


# -- frameworks ------------------------------------------------------------------------------------


class Stock(APIView):
    """Takes one lock."""

    def post(self, request: Any) -> Response:
        stock()
        return Response({})


class Behind(APIView):
    """Works under a lock, leaves it, and takes another."""

    def post(self, request: Any) -> Response:
        behind(request)
        return Response({})


@drf.single_flight("order")
class Locked(APIView):
    """Works under the lock of the decorator, and takes another."""

    def post(self, request: Any) -> Response:
        charge()
        return Response(stock().content)


def answers(classes: list[str], address: str) -> tuple[int, str | None, str]:
    """Status, `Retry-After` and detail of an API's answer to a request after another one."""
    with (
        override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=classes, ALLOWED_HOSTS=["*"]),
        redlock("stock"),
    ):
        Client().post("/drf/behind/")  # in the same thread: it is not this request's
        answer = Client().post(address, headers={"Accept": "application/json"})
    return answer.status_code, answer.headers.get("Retry-After"), answer.json()["detail"]


MIDDLEWARES = pytest.mark.parametrize("classes", [[], [OURS], [LOCKING, OURS]], ids=len)


@MIDDLEWARES
@pytest.mark.usefixtures("handled")
def test_rest_framework_answers_a_view_that_has_begun(classes):
    """Its exception handler tells nobody to try again, with our middleware and without it."""
    assert answers(classes, "/drf/stock/")[:2] == (409, "1")
    for address in ("/drf/behind/", "/drf/locked/"):
        assert answers(classes, address) == (409, None, TEXT)


def api() -> NinjaAPI:
    """An API whose handler is that of the page."""
    made = NinjaAPI(urls_namespace="begun")
    asking.answer_refusals(made)
    for each in (single, behind, asingle, awaited):
        made.post(f"/{each.__name__}/")(each)
    made.post("/stock/")(lambda request: stock())
    return made


@MIDDLEWARES
@pytest.mark.usefixtures("handled")
def test_django_ninja_answers_a_view_that_has_begun(classes):
    """The handler of the page tells nobody to try again, with our middleware and without it."""
    assert answers(classes, "/ninja/stock/")[:2] == (409, "1")
    for address in ("/ninja/behind/", "/ninja/single/", "/ninja/awaited/", "/ninja/asingle/"):
        assert answers(classes, address) == (409, None, TEXT)


urlpatterns += [
    path("drf/stock/", Stock.as_view()),
    path("drf/behind/", Behind.as_view()),
    path("drf/locked/", Locked.as_view()),
    path("ninja/", api().urls),
]


# -- broken variants -------------------------------------------------------------------------------


def never(request: Any) -> bool:
    """Know of no view that it has begun."""
    return False


def not_shared() -> int:
    """Let tasks and threads count leases of their own."""
    return context.now()


def whole_request(request: Any) -> None:
    """Do not note where the view begins."""


BROKEN: list[tuple[Any, str, Any, Callable[[], None]]] = [
    (
        refusals,
        "has_begun",
        never,
        lambda: invites_no_repetition("single"),
    ),
    (
        context,
        "share",
        not_shared,
        lambda: invites_no_repetition("in_tasks", use="async"),
    ),
    (
        refusals,
        "note_view",
        whole_request,
        lambda: test_a_lock_that_a_middleware_left_is_not_the_views("inner", "sync"),
    ),
]


def invites_no_repetition(view: str, use: str = "sync") -> None:
    """Assert that a view that has begun is answered without `Retry-After`."""
    with redlock("stock"):
        assert "Retry-After" not in ask(view, OURS, use=use).headers


@pytest.mark.parametrize(("owner", "name", "variant", "check"), BROKEN, ids=[b[1] for b in BROKEN])
def test_answers_that_forget_what_the_view_held_are_noticed(
    owner, name, variant, check, monkeypatch
):
    """Each part of the knowledge is needed by one of the tests above."""
    contextvars.Context().run(check)
    note_broken(name)
    monkeypatch.setattr(owner, name, variant)
    with pytest.raises(AssertionError):
        contextvars.Context().run(check)


def test_a_request_that_no_server_started():
    """A test that calls a view with a request of its own may hold the lock itself."""
    request: WSGIRequest = RequestFactory().post("/")
    with redlock("stock"):
        refused = inner(request)
        assert refused.headers["Retry-After"] == "1"
        with pytest.raises(LockTaken) as raised:
            redlock("stock").acquire()
        refusal = refusal_of(raised.value, RequestFactory().post("/"))
    assert refusal is not None
    assert not refusal.begun
