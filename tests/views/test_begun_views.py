"""A lock that is refused inside of a view: nobody is told to try again."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path
from ninja import NinjaAPI
from rest_framework.response import Response
from rest_framework.views import APIView

from django_redlock import LockTaken, redlock
from django_redlock.views import RedlockMiddleware, Refusal, lock, refusals, single_flight
from django_redlock.views import rest_framework as drf
from django_redlock.views.lock import INSIDE, ViewLock
from tests.support.replays import note_broken

from . import asking
from .asking import BEGUN, BROWSER, OURS

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


def first(request: Any) -> HttpResponse:
    """Work, and take a lock: the first one, as nobody knows."""
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


@single_flight("stock", status=429, retry_after=7)
def inner(request: Any) -> HttpResponse:
    """A view that others call."""
    return HttpResponse("ran")


@single_flight("order")
def calling(request: Any) -> Any:
    """Work, and call another view that is locked."""
    charge()
    return inner(request)


@single_flight("order", methods=["GET"])
def calling_unlocked(request: Any) -> Any:
    """The same, of a view that does not lock this request."""
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


@single_flight("order")
async def asingle(request: Any) -> HttpResponse:
    """Work under the lock of the decorator, and take another, in a task."""
    charge()
    async with redlock("stock"):
        return HttpResponse("ran")


@single_flight("stock")
async def ainner(request: Any) -> HttpResponse:
    """A view that others call."""
    return HttpResponse("ran")


@single_flight("order")
async def acalling(request: Any) -> Any:
    """Work, and call another view that is locked."""
    charge()
    return await ainner(request)


BEGIN: tuple[Callable[..., Any], ...] = (
    first,
    behind,
    single,
    calling,
    calling_unlocked,
    templated,
    awaited,
    asingle,
    acalling,
)
urlpatterns: list[Any] = [path(f"{each.__name__}/", each) for each in (*BEGIN, inner)]
ask_at = functools.partial(asking.ask, __name__)


def ask(view: str, *middleware: str, **more: Any) -> Any:
    """The response of a site with this middleware."""
    return ask_at(f"/{view}/", *middleware, **more)


USES = pytest.mark.parametrize("use", ["sync", "async"])


@USES
@pytest.mark.parametrize("view", [each.__name__ for each in BEGIN])
def test_a_view_that_has_begun_is_not_to_be_repeated(view, use, caplog):
    """It is a 409 without `Retry-After`, whose text says why; it is no fault to be logged."""
    with redlock("stock"):
        page = ask(view, OURS, use=use, accept=BROWSER)
        problem = ask(view, OURS, use=use, accept="application/json")
    assert charged == ["card"] * 2
    assert (page.status_code, "Retry-After" in page.headers) == (409, False)
    assert page.headers["Cache-Control"] == "no-store"
    assert BEGUN in page.content.decode()
    assert (problem.status_code, "Retry-After" in problem.headers) == (409, False)
    about = {"type": "about:blank", "title": "Conflict", "status": 409, "detail": BEGUN}
    assert json.loads(problem.content) == about
    ours = [each for each in caplog.records if each.name == "django_redlock"]
    assert all(each.levelno < logging.WARNING for each in ours)
    assert redlock("order").try_acquire() is not None


@USES
def test_the_outermost_single_flight_says_when_to_come_again(use):
    """It refuses the request before its view begins."""
    with redlock("stock"):
        response = ask("inner", OURS, use=use)
    assert (response.status_code, response.headers["Retry-After"]) == (429, "7")


def test_a_view_inside_is_not_to_be_repeated_without_nodes(memory):
    """Nor where no majority of the nodes can be asked any more."""

    @single_flight("order", on_unavailable="run")
    def outer(request: Any) -> Any:
        return inner(request)

    memory.down = {0, 1, 2}
    response = outer(RequestFactory().post("/"))
    assert (response.status_code, "Retry-After" in response.headers) == (503, False)
    assert BEGUN in response.content.decode()


def test_a_site_is_told():
    """Functions and templates know it by `refusal.begun`."""
    seen: list[Refusal] = []

    class Mine(RedlockMiddleware):
        def on_refused(self, request: Any, refusal: Refusal) -> None:
            seen.append(refusal)

    def see(request: Any, refusal: Refusal) -> None:
        seen.append(refusal)

    with redlock("order"):
        with pytest.raises(LockTaken) as taken:
            redlock("order").acquire()
        request = RequestFactory().post("/")
        Mine(lambda request: HttpResponse()).process_exception(request, taken.value)
        single_flight("order", on_refused=see)(lambda request: HttpResponse())(request)
    assert [(each.status, each.retry_after, each.begun) for each in seen] == [
        (409, None, True),
        (409, 1, False),
    ]


# -- frameworks ------------------------------------------------------------------------------------


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


@drf.single_flight("order")
class Calling(APIView):
    """Works under the lock of the decorator, and calls another view that is locked."""

    def post(self, request: Any) -> Any:
        charge()
        return inner(request)


def answers(address: str) -> tuple[int, str | None, str]:
    """Status, `Retry-After` and detail of an API's answer."""
    with override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"]), redlock("stock"):
        answer = Client().post(address, headers={"Accept": "application/json"})
    return answer.status_code, answer.headers.get("Retry-After"), answer.json()["detail"]


@pytest.mark.usefixtures("handled")
def test_rest_framework_answers_a_view_that_has_begun():
    """Its exception handler tells nobody to try again."""
    for address in ("/drf/behind/", "/drf/locked/", "/drf/calling/"):
        assert answers(address) == (409, None, BEGUN)


def api() -> NinjaAPI:
    """An API whose handler is that of the page."""
    made = NinjaAPI(urls_namespace="begun")
    asking.answer_refusals(made)
    for each in (single, behind, calling, asingle, awaited):
        made.post(f"/{each.__name__}/")(each)
    made.post("/inner/")(inner)
    return made


def test_django_ninja_answers_a_view_that_has_begun():
    """The handler of the page tells nobody to try again."""
    assert answers("/ninja/inner/")[:2] == (429, "7")
    for view in ("behind", "single", "calling", "awaited", "asingle"):
        assert answers(f"/ninja/{view}/") == (409, None, BEGUN)


urlpatterns += [
    path("drf/behind/", Behind.as_view()),
    path("drf/locked/", Locked.as_view()),
    path("drf/calling/", Calling.as_view()),
    path("ninja/", api().urls),
]


# -- broken variants -------------------------------------------------------------------------------


def again(error: Any) -> Refusal:
    """Invite to try again, whatever the view has done."""
    return Refusal(409, 1, error)


def forget(self: ViewLock, request: Any) -> None:
    """Take every decorated view for the outermost one."""
    setattr(request, INSIDE, False)


BROKEN: list[tuple[Any, str, Any, str]] = [
    (refusals, "refused_inside", again, "single"),
    (lock, "refused_inside", again, "calling"),
    (ViewLock, "enter", forget, "calling"),
]


@pytest.mark.parametrize(("owner", "name", "variant", "view"), BROKEN)
def test_answers_that_forget_that_the_view_has_begun_are_noticed(
    owner, name, variant, view, monkeypatch
):
    """Each part of the rule is needed by one of the tests above."""
    note_broken(name)
    monkeypatch.setattr(owner, name, variant)
    with redlock("stock"):
        assert "Retry-After" in ask(view, OURS).headers
