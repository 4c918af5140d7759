"""How many requests of one process may wait for a lock, and what one more is answered."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings

from django_redlock import conf, redlock
from django_redlock.views import single_flight
from django_redlock.views.lock import Wait, WaitingRequests, waiting
from tests.support.loops import soon
from tests.support.replays import note_broken
from tests.support.waiting import eventually
from tests.views.shop.served import THREADED, UVICORN, Shop, served

NUMBERS = itertools.count()
MOST = 2


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    """A node in memory of one's own; two requests may wait."""
    alias = {"NODES": [f"memory://wait-{next(NUMBERS)}"], "MAX_WAITING_REQUESTS": MOST}
    with override_settings(REDLOCK={"default": alias}):
        waiting.reset()
        yield conf.backend("default").group


def view(request: Any) -> Any:
    """A view whose requests wait; decorated anew, for a line of log is one for each view."""
    return single_flight("{request.path}", wait=60)(lambda request: HttpResponse("ran"))(request)


@single_flight("{request.path}", wait=60)
async def aview(request: Any) -> HttpResponse:
    """The same, async."""
    return HttpResponse("ran")


def asked(path: str = "/name/") -> Any:
    """A POST."""
    return RequestFactory().post(path)


def queued(name: str = "/name/") -> int:
    """How many of this process are in the queue for a name."""
    group: Any = conf.backend("default").group
    return len(group.queue.__self__.local.queues.get(f"redlock:queue:{name}", ()))


@contextmanager
def crowd(count: int = MOST) -> Iterator[list[Future[Any]]]:
    """So many requests that wait, until the block ends."""
    with ThreadPoolExecutor(count) as pool, redlock("/name/"):
        requests = [pool.submit(view, asked()) for _ in range(count)]
        eventually(lambda: queued() == count)
        yield requests


def test_one_more_than_may_wait_is_refused_at_once(caplog):
    """It is answered 503, a line is logged, and those that wait have their turn."""
    with crowd() as requests:
        decorated = single_flight("{request.path}", wait=60)(lambda request: HttpResponse())
        answers: list[Any] = [decorated(asked()) for _ in range(3)]
    assert [(each.status_code, each.headers["Retry-After"]) for each in answers] == [(503, "5")] * 3
    # An equal request runs, so what is said is not "try again", whatever the status.
    assert all("look at its result" in each.content.decode() for each in answers)
    assert not any("again" in each.content.decode() for each in answers)
    assert [each.result().status_code for each in requests] == [200] * MOST
    lines = [each for each in caplog.records if "MAX_WAITING_REQUESTS" in each.message]
    assert [each.levelname for each in lines] == ["WARNING"]
    assert view(asked()).status_code == 200


def test_a_request_that_need_not_wait_is_not_refused():
    """With the limit reached, one whose name is free runs."""
    with crowd():
        assert view(asked("/other/")).status_code == 200


def test_a_limit_that_is_not_kept_is_noticed(monkeypatch):
    """Without the limit the third request is in the queue as well."""
    begin = WaitingRequests.begin
    monkeypatch.setattr(
        WaitingRequests, "begin", lambda self, alias, seconds, _: begin(self, alias, seconds, None)
    )
    note_broken("begin")
    with crowd(MOST + 1) as requests:
        assert queued() == MOST + 1
    assert {each.result().status_code for each in requests} == {200}


def hold_both(names: tuple[str, ...] = ("/a/", "/b/")) -> int:
    """The status of a request that may wait while two others run."""

    @single_flight("{request.path}", wait=60)
    def holder(request: Any) -> HttpResponse:
        entered.append(request.path)
        assert leave.wait(60)
        return HttpResponse()

    entered: list[str] = []
    leave = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        try:
            running = [pool.submit(holder, asked(name)) for name in names]
            eventually(lambda: len(entered) == len(names))
            with redlock("/name/"):
                last: Any = pool.submit(view, asked())
                eventually(lambda: queued() or last.done())
        finally:
            leave.set()
        assert {each.result().status_code for each in running} == {200}
        return int(last.result().status_code)


def test_a_request_that_runs_does_not_wait():
    """Views that have their lock are not counted."""
    assert hold_both() == 200


def test_a_wait_that_does_not_end_is_noticed(monkeypatch):
    """Where running requests are counted, the next one is refused."""
    monkeypatch.setattr(Wait, "over", property(lambda _: False, lambda *_: None))
    note_broken("over")
    assert hold_both() == 503


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_request_that_is_interrupted_waits_no_longer(error, monkeypatch):
    """Whatever ends the wait, the next one may wait."""

    def fail(*_: Any) -> None:
        raise error

    lock = type(redlock("a"))
    for _ in range(MOST + 1):
        with monkeypatch.context() as patched:
            patched.setattr(lock, "acquire", fail)
            with pytest.raises(error):
                view(asked())
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


def test_on_unavailable_run_runs_none_that_is_held(memory):
    """Too many that wait is no reason to run two at a time; nodes that are down are."""
    unlocked = single_flight("{request.path}", wait=60, on_unavailable="run")(
        lambda request: HttpResponse("ran")
    )
    with crowd():
        assert unlocked(asked()).status_code == 503
        memory.down = {0}
        assert unlocked(asked("/other/")).status_code == 200
        memory.down = set()


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
    """The error names the setting and what to write."""
    setting = {"NODES": ["memory://a"], "MAX_WAITING_REQUESTS": value}
    with pytest.raises(
        ImproperlyConfigured, match=r"'MAX_WAITING_REQUESTS'\] .*1 or more, or None"
    ):
        conf.make("default", setting)


# -- real servers ---------------------------------------------------------------------------------


def statuses_of_a_crowd(shop: Shop, address: str, home: Any) -> list[int]:
    """What three requests for one name are answered, of which one may wait."""
    name = address.rsplit("/", maxsplit=1)[-1]
    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        stack.callback((home / f"leave-{name}").touch)
        asking = [pool.submit(shop.ask, "POST", address, Basket="a")]
        eventually(lambda: list(home.glob(f"entered-{name}-*")), within=60)
        asking += [pool.submit(shop.ask, "POST", address, Basket="a") for _ in range(2)]
        refused = eventually(lambda: [each for each in asking if each.done()], within=60)
        assert [each.result()[0] for each in refused] == [503]
        assert shop.ask("GET", "/enter/1")[0] == 204  # a thread is left for others
        stack.close()
        return sorted(each.result()[0] for each in asking)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "addresses"),
    [(THREADED, ("/queue/sync",)), (UVICORN, ("/aqueue/async",))],
)
def test_a_real_server_keeps_answering(server, addresses, patient_nodes, tmp_path):
    """While one request runs and one waits, one more is refused, and other pages are served."""
    alias = patient_nodes.settings(
        NODE_TIMEOUT=10, MAX_TTL=60, RESTART_GUARD=False, MAX_WAITING_REQUESTS=1
    )
    with served(server, tmp_path, alias) as shop:
        for address in addresses:
            assert statuses_of_a_crowd(shop, address, tmp_path) == [201, 201, 503]
