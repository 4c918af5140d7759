"""`RedlockMiddleware`: views that take a lock themselves, and do not get it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import sync_and_async_middleware

from django_redlock import LeaseLost, NodesUnavailable, conf, redlock
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.views import (
    IgnoreRefusals,
    RedlockMiddleware,
    refusals,
    single_flight,
)
from tests.views.shop.served import GUNICORN, UVICORN, served

NUMBERS = itertools.count()
OURS = "django_redlock.views.RedlockMiddleware"


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    """A node in memory of one's own."""
    with override_settings(REDLOCK={"default": {"NODES": [f"memory://mw-{next(NUMBERS)}"]}}):
        yield conf.backend("default").group


def plain(request: Any) -> HttpResponse:
    """A view that takes a lock."""
    with redlock("stock"):
        return HttpResponse("ran")


async def awaited(request: Any) -> HttpResponse:
    """The same, async."""
    async with redlock("stock"):
        return HttpResponse("ran")


@single_flight("outer")
def inside(request: Any) -> HttpResponse:
    """A view with a lock of its own, and another one."""
    return plain(request)


class Mine(RedlockMiddleware):
    """Answers of a site's own."""

    status = 423

    def retry_after(self, taken: Any) -> float:
        return 7

    def on_refused(self, request: Any, refusal: Any) -> HttpResponse | None:
        return HttpResponse("mine", status=refusal.status) if refusal.status == 423 else None


class Awaited(RedlockMiddleware):
    """A mistake."""

    async def on_refused(self, request: Any, refusal: Any) -> None:
        return None


@sync_and_async_middleware
def noticed(get_response: Any) -> Any:
    """A middleware above, which marks what passes through it."""

    async def amiddleware(request: Any) -> Any:
        response = await get_response(request)
        response.headers["X-Seen"] = "yes"
        return response

    def middleware(request: Any) -> Any:
        response = get_response(request)
        response.headers["X-Seen"] = "yes"
        return response

    return amiddleware if asyncio.iscoroutinefunction(get_response) else middleware


urlpatterns: list[Any] = [
    path("plain/", plain),
    path("awaited/", awaited),
    path("inside/", inside),
]


def ask(address: str, *middleware: str, use: str = "sync", **headers: str) -> Any:
    """The response of a site with this middleware, under WSGI or ASGI."""
    settings = {"ROOT_URLCONF": __name__, "MIDDLEWARE": middleware, "ALLOWED_HOSTS": ["*"]}
    with override_settings(**settings):
        if use == "sync":
            return Client(raise_request_exception=False).post(address, headers=headers)
        client = AsyncClient(raise_request_exception=False)
        return asyncio.run(client.post(address, headers=headers))


USES = pytest.mark.parametrize("use", ["sync", "async"])


@USES
@pytest.mark.parametrize("address", ["/plain/", "/awaited/"])
def test_a_lock_that_is_held_is_409(address, use):
    """The answer is that of `single_flight`, and passes through the middleware above."""
    above = f"{__name__}.noticed"
    assert ask(address, OURS, use=use).content == b"ran"
    with redlock("stock"):
        assert ask(address, use=use).status_code == 500
        page = ask(address, above, OURS, use=use)
        problem = ask(address, OURS, use=use, accept="application/json")
    assert (page.status_code, page.headers["Retry-After"], page.headers["X-Seen"]) == (
        409,
        "1",
        "yes",
    )
    assert page.headers["Cache-Control"] == "no-store"
    assert b"<h1>One moment, please</h1>" in page.content
    assert json.loads(problem.content)["status"] == 409


@USES
@pytest.mark.parametrize("address", ["/plain/", "/awaited/", "/inside/"])
def test_nodes_that_cannot_be_asked_are_503(address, use, memory):
    """And never 409."""
    memory.down = {0}
    response = ask(address, OURS, use=use)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")


@USES
def test_answers_of_a_sites_own(use, memory):
    """A subclass changes them by attributes and methods; None is the usual answer."""
    mine = f"{__name__}.Mine"
    with redlock("stock"):
        response = ask("/plain/", mine, use=use)
    assert (response.status_code, response.content) == (423, b"mine")
    assert response.headers["Retry-After"] == "7"
    memory.down = {0}
    assert ask("/plain/", mine, use=use).status_code == 503


def test_an_answer_that_has_to_be_awaited():
    """Django calls it in a thread, so it is refused when the site starts."""
    with pytest.raises(TypeError, match="on_refused is a coroutine function"):
        ask("/plain/", f"{__name__}.Awaited")


LOST = LeaseLost("lost", name="stock")
NOT_EXTENDED = NodesUnavailable(because(ReasonCode.NOT_EXTENDED, votes=1, size=3), name="stock")


def raising(error: BaseException) -> Any:
    """The status of a view that raises this."""

    def view(request: Any) -> HttpResponse:
        raise error

    patterns: Any = (path("", view),)
    with override_settings(ROOT_URLCONF=patterns, MIDDLEWARE=[OURS], ALLOWED_HOSTS=["*"]):
        return Client(raise_request_exception=False).post("/").status_code


@pytest.mark.parametrize("error", [LOST, NOT_EXTENDED, ValueError("the site's own")], ids=type)
def test_what_happened_under_the_lock_is_a_fault(error):
    """A lease that was lost or not extended had begun its work: no answer invites to repeat it."""
    assert raising(error) == 500


def test_an_answer_that_invites_to_repeat_half_the_work_is_noticed(monkeypatch):
    """Where every NodesUnavailable is a refusal, the view that was not extended is a 503."""
    monkeypatch.setattr(refusals, "_OF_A_HOLDER", frozenset())
    assert raising(NOT_EXTENDED) == 503


def test_the_filter_leaves_out_its_answers(caplog):
    """`IgnoreRefusals` knows them as well."""
    with redlock("stock"), caplog.at_level(logging.WARNING, logger="django.request"):
        ask("/plain/", OURS)
    (record,) = [each for each in caplog.records if each.name == "django.request"]
    assert record.status_code == 409
    assert not IgnoreRefusals().filter(record)


# -- real servers ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "addresses"), [(GUNICORN, ("/with/",)), (UVICORN, ("/with/", "/awith/"))]
)
def test_double_submits_to_real_servers(server, addresses, patient_nodes, tmp_path):
    """Of two requests that take one lock themselves, one orders and one is answered 409."""
    alias = patient_nodes.settings(NODE_TIMEOUT=10, MAX_TTL=60, RESTART_GUARD=False)
    with served(server, tmp_path, alias) as shop:
        for address in addresses:
            for customer in range(10):
                assert shop.double_submit(address, customer) == [201, 409]
        assert shop.orders() == 10 * len(addresses)
