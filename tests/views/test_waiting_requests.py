"""How many requests of one process may wait for a lock, and what one more is answered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import AsyncRequestFactory, override_settings
from rest_framework.response import Response
from rest_framework.views import APIView

from django_redlock import conf, redlock
from django_redlock.core import acquire
from django_redlock.core.protocol import Sleep
from django_redlock.views import rest_framework, single_flight
from django_redlock.views.lock import waiting
from tests.support.loops import soon
from tests.support.waiting import eventually

from .asking import asked, post

MOST = 2


@pytest.fixture(autouse=True)
def two_may_wait(memory: Any) -> Iterator[None]:
    """Two requests may wait."""
    alias = settings.REDLOCK["default"] | {"MAX_WAITING_REQUESTS": MOST}
    with override_settings(REDLOCK={"default": alias}):
        waiting.reset()
        yield


def view(request: Any) -> Any:
    """A view whose requests wait; decorated anew, for a line of log is one for each view."""
    return single_flight("{request.path}", wait=60)(lambda request: HttpResponse("ran"))(request)


@single_flight("{request.path}", wait=60)
async def aview(request: Any) -> HttpResponse:
    """The same, async."""
    return HttpResponse("ran")


def queued() -> int:
    """How many of this process are in the queue for the name."""
    group: Any = conf.backend("default").group
    return len(group.queue.__self__.local.queues.get("redlock:queue:/name/", ()))


@contextmanager
def crowd(count: int = MOST) -> Iterator[list[Future[Any]]]:
    """So many requests that wait, until the block ends."""
    with ThreadPoolExecutor(count) as pool, redlock("/name/"):
        requests = [pool.submit(view, asked("/name/")) for _ in range(count)]
        eventually(lambda: queued() == count)
        yield requests


def test_one_more_than_may_wait_is_refused_at_once(caplog):
    """It is answered 503, a line is logged, and those that wait have their turn."""
    with crowd() as requests:
        decorated = single_flight("{request.path}", wait=60)(lambda request: HttpResponse())
        answers: list[Any] = [decorated(asked("/name/")) for _ in range(3)]
        assert view(asked("/other/")).status_code == 200  # its name is free
        never_waits = single_flight("{request.path}")(lambda request: HttpResponse())
        assert never_waits(asked("/name/")).status_code == 409
    assert [(each.status_code, each.headers["Retry-After"]) for each in answers] == [(503, "5")] * 3
    # An equal request runs, so what is said is not "try again", whatever the status.
    assert all("the result of the first request" in each.content.decode() for each in answers)
    assert not any("again" in each.content.decode() for each in answers)
    assert [each.result().status_code for each in requests] == [200] * MOST
    lines = [each for each in caplog.records if "MAX_WAITING_REQUESTS" in each.message]
    assert [each.levelname for each in lines] == ["WARNING"]
    assert view(asked("/name/")).status_code == 200


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_request_that_is_interrupted_waits_no_longer(error, monkeypatch):
    """Whatever ends the wait, the next one may wait."""

    def fail(*_: Any) -> None:
        raise error

    lock = type(redlock("a"))
    for _ in range(MOST + 1):
        with monkeypatch.context() as patched:
            patched.setattr(lock, "acquire", fail)
            with pytest.raises(error):
                view(asked("/name/"))
    with crowd(MOST):
        pass


def test_a_task_that_is_cancelled_waits_no_longer():
    """Of tasks, two wait; when they are cancelled, two others may."""

    async def main() -> list[int]:
        lease = await redlock("/name/").aacquire()
        found = []
        for _ in range(2):
            tasks = [
                asyncio.ensure_future(aview(AsyncRequestFactory().post("/name/")))
                for _ in range(MOST)
            ]
            await soon(lambda: queued() == MOST)
            answer: Any = await aview(AsyncRequestFactory().post("/name/"))
            found.append(answer.status_code)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await lease.arelease()
        return found

    assert asyncio.run(main()) == [503, 503]


@pytest.mark.parametrize("kind", ["def", "async"])
def test_a_request_that_has_its_turn_or_is_refused_waits_no_longer(kind):
    """While its view runs, or its response is made, which may take long, another one may wait."""
    crowded = []

    def look(*_: Any) -> HttpResponse:
        crowded.append(waiting.begin("default", 1, 1).crowded)
        return HttpResponse()

    async def alook(request: Any) -> HttpResponse:
        return look()

    decorated: Any = single_flight("a", wait=0.01, on_refused=look)(
        look if kind == "def" else alook
    )

    def ask() -> None:
        answer = decorated(asked())
        if kind == "async":
            asyncio.run(answer)

    ask()
    with redlock("a"):
        ask()
    assert crowded == [False, False]


def test_on_unavailable_run_runs_none_that_is_held():
    """Too many that wait is no reason to run two at a time; nodes that are down are."""
    unlocked = single_flight("{request.path}", wait=60, on_unavailable="run")(
        lambda request: HttpResponse("ran")
    )
    with crowd():
        assert unlocked(asked("/name/")).status_code == 503
        group: Any = conf.backend("default").group
        group.down = {0, 1, 2}
        assert unlocked(asked("/other/")).status_code == 200
        group.down = set()


hourly = single_flight("a", wait=3600)


@hourly
async def ahourly(request: Any) -> HttpResponse:
    """A view whose requests may wait for an hour."""
    return HttpResponse("ran")


@rest_framework.single_flight("a", wait=3600)
class Hourly(APIView):
    """The same, of REST framework."""

    def post(self, request: Any) -> Response:
        return Response("ran")


@pytest.mark.parametrize(
    "each",
    [hourly(lambda request: HttpResponse("ran")), ahourly, Hourly.as_view()],
    ids=["def", "async", "rest"],
)
def test_no_request_waits_for_nodes(each, monkeypatch):
    """Waiting is for who is held: without a majority the 503 comes at once, and not in an hour."""

    def asks_again(_: float) -> Sleep:
        raise AssertionError("it waits for nodes")

    monkeypatch.setattr(acquire, "Sleep", asks_again)
    group: Any = conf.backend("default").group
    group.down = {0, 1, 2}
    assert post(each).status_code == 503
    group.down = set()
    assert post(each).status_code == 200


def test_an_endless_number():
    """None is any number, and each alias has its own."""
    alias = {"NODES": ["memory://any"], "MAX_WAITING_REQUESTS": None}
    with override_settings(REDLOCK={"default": alias}), crowd(MOST + 3) as requests:
        pass
    assert {each.result().status_code for each in requests} == {200}
    kept = [waiting.begin("one", 1, 1), waiting.begin("two", 1, 1)]
    assert [each.crowded for each in kept] == [False, False]
    assert waiting.begin("one", 1, 1).crowded


def test_a_forked_child_counts_its_own():
    """The parent's requests do not wait in a child."""
    kept = waiting.begin("default", 1, 1)
    assert waiting.begin("default", 1, 1).crowded
    child = os.fork()
    if not child:
        os._exit(int(waiting.begin("default", 1, 1).crowded))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not kept.over


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "5"])
def test_a_bad_limit(value):
    """The error names the setting and what to write; 1 is the least."""
    conf.make("default", {"NODES": ["memory://a"], "MAX_WAITING_REQUESTS": 1})
    setting = {"NODES": ["memory://a"], "MAX_WAITING_REQUESTS": value}
    with pytest.raises(
        ImproperlyConfigured, match=r"'MAX_WAITING_REQUESTS'\] .*1 or more, or None"
    ):
        conf.make("default", setting)
