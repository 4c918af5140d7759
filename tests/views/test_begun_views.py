"""A lock that is refused inside of a view: nobody is told to try again."""

from __future__ import annotations

import functools
import json
import logging
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


def first(request: Any) -> HttpResponse:
    """Do what cannot be undone, and take the lock that is refused: nobody knows it is the first."""
    charged.append("card")
    with redlock("stock"):
        return HttpResponse("ran")


async def afirst(request: Any) -> HttpResponse:
    """The same, in a task."""
    charged.append("card")
    async with redlock("stock"):
        return HttpResponse("ran")


def calling(request: Any) -> Any:
    """Work, and call another view that is locked."""
    charged.append("card")
    return inner(request)


async def acalling(request: Any) -> Any:
    """The same, async."""
    charged.append("card")
    return await ainner(request)


def templated(request: Any) -> Any:
    """Take the lock while the template is rendered."""
    template = engines["django"].from_string("{{ stock }}")
    return TemplateResponse(request, template, {"stock": functools.partial(first, request)})


inner = single_flight("stock", status=429, retry_after=7)(lambda request: HttpResponse("ran"))
ainner = single_flight("stock")(afirst)
order = single_flight("order")
VIEWS: dict[str, Any] = {
    "first": first,
    "afirst": afirst,
    "single": order(first),
    "asingle": order(afirst),
    "calling": order(calling),
    "acalling": order(acalling),
    "unlocked": single_flight("order", methods=["GET"])(calling),
    "templated": order(templated),
}


@drf.single_flight("order")
class Calling(APIView):
    """The same, of REST framework."""

    def post(self, request: Any) -> Any:
        return calling(request)


api = NinjaAPI(urls_namespace="begun")
asking.answer_refusals(api)
for name in ("single", "asingle", "calling"):
    api.post(f"/{name}/")(VIEWS[name])
urlpatterns: list[Any] = [path(f"{name}/", VIEWS[name]) for name in VIEWS]
urlpatterns += [path("inner/", inner), path("drf/", Calling.as_view()), path("ninja/", api.urls)]
ask = functools.partial(asking.ask, __name__)
SECURITY = "django.middleware.security.SecurityMiddleware"
USES = pytest.mark.parametrize("use", ["sync", "async"])


@USES
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_has_begun_is_not_to_be_repeated(view, use, caplog):
    """It is a 409 without `Retry-After`, whose text says why; it is no fault to be logged."""
    charged.clear()
    with redlock("stock"):
        page = ask(f"/{view}/", SECURITY, OURS, use=use, accept=BROWSER)
        problem = ask(f"/{view}/", OURS, use=use, accept="application/json")
    assert charged == ["card"] * 2
    assert (page.status_code, "Retry-After" in page.headers) == (409, False)
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers["X-Content-Type-Options"] == "nosniff"  # of the middleware above
    assert BEGUN in page.content.decode()
    assert (problem.status_code, "Retry-After" in problem.headers) == (409, False)
    about = {"type": "about:blank", "title": "Conflict", "status": 409, "detail": BEGUN}
    assert json.loads(problem.content) == about
    ours = [each for each in caplog.records if each.name == "django_redlock"]
    assert all(each.levelno < logging.WARNING for each in ours)
    assert redlock("order").try_acquire() is not None


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize(
    "address", ["/drf/", "/ninja/single/", "/ninja/calling/", "/ninja/asingle/"]
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
