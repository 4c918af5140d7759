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
from django.test import RequestFactory
from django.urls import path
from ninja import NinjaAPI
from rest_framework.views import APIView

from django_redlock import LockTaken, redlock
from django_redlock.views import RedlockMiddleware, Refusal, single_flight
from django_redlock.views import rest_framework as drf

from . import asking
from .asking import BEGUN, BROWSER, OURS

charged: list[str] = []  # by the views, in order


def charge() -> None:
    """Do what cannot be undone."""
    charged.append("card")


def first(request: Any) -> HttpResponse:
    """Work, and take the lock that is refused: the first one, as nobody knows."""
    charge()
    with redlock("stock"):
        return HttpResponse("ran")


@single_flight("order")
def single(request: Any) -> HttpResponse:
    """Work under the lock of the decorator, and take another."""
    return first(request)


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
    """Take another lock while the template is rendered."""
    template = engines["django"].from_string("{{ stock }}")
    return TemplateResponse(request, template, {"stock": functools.partial(first, request)})


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


@drf.single_flight("order")
class Calling(APIView):
    """The same, of REST framework."""

    def post(self, request: Any) -> Any:
        return calling.__wrapped__(request)  # type: ignore[attr-defined]


def api() -> NinjaAPI:
    """An API whose handler is that of the page."""
    made = NinjaAPI(urls_namespace="begun")
    asking.answer_refusals(made)
    for each in (single, calling, asingle):
        made.post(f"/{each.__name__}/")(each)
    return made


BEGIN: tuple[Callable[..., Any], ...] = (
    *(first, single, calling, calling_unlocked, templated),
    *(asingle, acalling),
)
urlpatterns: list[Any] = [path(f"{each.__name__}/", each) for each in (*BEGIN, inner)]
urlpatterns += [path("drf/calling/", Calling.as_view()), path("ninja/", api().urls)]
ask = functools.partial(asking.ask, __name__)
USES = pytest.mark.parametrize("use", ["sync", "async"])


@USES
@pytest.mark.parametrize("view", [each.__name__ for each in BEGIN])
def test_a_view_that_has_begun_is_not_to_be_repeated(view, use, caplog):
    """It is a 409 without `Retry-After`, whose text says why; it is no fault to be logged."""
    charged.clear()
    with redlock("stock"):
        page = ask(f"/{view}/", OURS, use=use, accept=BROWSER)
        problem = ask(f"/{view}/", OURS, use=use, accept="application/json")
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


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(
    "address", ["/drf/calling/", "/ninja/single/", "/ninja/calling/", "/ninja/asingle/"]
)
def test_nor_is_one_of_a_framework(address):
    """By the exception handlers of REST framework and django-ninja."""
    with redlock("stock"):
        answer = ask(address, accept="application/json")
    assert (answer.status_code, answer.headers.get("Retry-After")) == (409, None)
    assert answer.json()["detail"] == BEGUN


@USES
def test_the_outermost_single_flight_says_when_to_come_again(use):
    """It refuses the request before its view begins."""
    with redlock("stock"):
        response = ask("/inner/", OURS, use=use)
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
