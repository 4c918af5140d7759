"""``@single_flight``: one of several equal requests runs, and nothing is let go too early."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import math
import pickle
import re
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View
from ninja import NinjaAPI
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redlock import LeaseLost, assert_locked, conf, current_lease
from django_redlock.views import rest_framework as drf
from django_redlock.views import single_flight
from django_redlock.views.ninja import non_atomic
from tests.support.waiting import eventually

from .asking import (
    asked,
    call,
    count,
    in_transaction,
    insert,
    is_free,
    leaves,
    post,
    urls,
    visiting,
)

# -- who runs, and who does not --------------------------------------------------------------------


def overlap(decorate: Callable[..., Any], first: Any, second: Any) -> tuple[Any, Any]:
    """The answers to a request, and to one that arrives while the view runs for the first."""
    answers: list[Any] = []

    @decorate
    def view(request):
        if request is first:
            answers.append(view(second))
        return HttpResponse("ran")

    return view(first), answers[0]


def plain(request: Any) -> HttpResponse:
    """A view."""
    return HttpResponse("ran")


ran: list[Any] = []  # the request that runs, and the response to one that arrives meanwhile


def work(request: Any) -> HttpResponse:
    """What each kind of view does."""
    assert current_lease() is assert_locked("order") is request.lease
    assert 30 < request.lease.remaining() <= 50  # not the 30 s of the settings
    ran.append(request)
    with ThreadPoolExecutor(1) as pool:
        ran.append(pool.submit(Client().post, "/").result())
    return HttpResponse("ran")


def on_loop(body: Any) -> Any:
    """The same as a coroutine function."""

    async def awaited(request: Any) -> HttpResponse:
        await asyncio.sleep(0)
        response: HttpResponse = body(request)
        return response

    return awaited


def classed(base: Any, body: Any, *, is_async: bool = False) -> Any:
    """A class with this method for POST."""

    def post(_: Any, request: Any) -> Any:
        return body(request)

    async def apost(_: Any, request: Any) -> Any:
        return await on_loop(body)(request)

    handler = apost if is_async else post
    return type("Order", (base,), {"post": handler, "authentication_classes": ()})


def operation(body: Any) -> Any:
    """The URLs of an API of django-ninja with this operation."""
    api = NinjaAPI(urls_namespace=f"equal{id(object())}")
    api.post("/")(body)
    return non_atomic(api.urls)


single = single_flight("order", ttl=50)
on_class = drf.single_flight("order", ttl=50)
CLIENTS: Any = {"wsgi": Client, "asgi": AsyncClient}
KINDS: dict[str, Callable[[Any], Any]] = {
    "def": single,
    "async def": lambda body: single(on_loop(body)),
    "class": lambda body: on_dispatch(classed(View, body), single),
    "class, in a list": lambda body: on_dispatch(classed(View, body), [never_cache, single]),
    "async class": lambda body: on_dispatch(classed(View, body, is_async=True), single),
    "as_view": lambda body: single(classed(View, body).as_view()),
    "REST framework": lambda body: on_class(classed(APIView, body)).as_view(),
    "api_view": lambda body: on_class(api_view(["POST"])(authentication_classes([])(body))),
    "viewset": lambda body: on_class(classed(ViewSet, body)).as_view({"post": "post"}),
    "ninja": lambda body: operation(single(body)),
    "async ninja": lambda body: operation(single(on_loop(body))),
}


@pytest.mark.parametrize("server", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_of_two_equal_requests_one_runs(kind, server):
    """While the view runs for a request, an equal one is answered without it."""
    ran.clear()
    with urls(path("", KINDS[kind](work))):
        answer: Any = CLIENTS[server]().post("/")
        done = asyncio.run(answer) if server == "asgi" else answer
    assert (done.status_code, done.content) == (200, b"ran")
    first, second = ran
    assert second.status_code == 409
    assert second.headers["Retry-After"] == "1"
    assert second.headers["Cache-Control"].startswith("no-store")
    assert first.lease.ended
    assert is_free("order")


def test_a_second_click_after_the_first_has_finished_is_a_second_request():
    """A mutex does not know what has been done; both run."""
    view = single_flight(plain)
    assert [view(asked()).status_code for _ in range(2)] == [200, 200]


def test_min_hold_keeps_the_door_shut(memory):
    """With `min_hold` an equal request is refused for that long, then runs."""
    view = single_flight(min_hold=50)(plain)
    assert [view(asked()).status_code for _ in range(2)] == [200, 409]
    begun = memory.nodes[0].clock()
    for seconds, status in [(40, 409), (50, 200)]:
        for node in memory.nodes:
            node.clock = lambda seconds=seconds: begun + seconds * 1000
        assert view(asked()).status_code == status


def test_the_body_is_constant(memory):
    """No key, holder or node in an answer: it is the same for every name, taken or unknown."""
    host = conf.backend("default").label().split(":")[0].encode()
    bodies = {
        overlap(single_flight(key), asked(where), asked(where))[1].content
        for key, where in [("secret-key", "/"), (None, "/<script>/"), ("k2", "/other/")]
    }
    assert len(bodies) == 1
    memory.down = {0, 1, 2}
    bodies.add(single_flight("secret-key")(plain)(asked()).content)
    for body in bodies:
        for secret in (b"secret-key", b"script", b"memory", b"down", host):
            assert secret not in body


def tells(request: Any) -> HttpResponse:
    """A view that tells its lease."""
    return HttpResponse(str(request.lease))


async def atells(request: Any) -> HttpResponse:
    """The same, async."""
    return tells(request)


@pytest.mark.parametrize("view", [tells, atells])
def test_on_unavailable_run_runs_without_the_lock(view, memory, caplog):
    """Only where `on_unavailable` asks for it the view runs unlocked, and a warning says so."""
    memory.down = {0, 1, 2}
    assert call(single_flight(view), asked()).status_code == 503
    assert call(single_flight(view), asked(method="GET")).content == b"None"
    caplog.clear()
    assert call(single_flight(on_unavailable="run")(view), asked()).content == b"None"
    of_the_lock, of_the_view = caplog.records
    assert "unavailable" in of_the_lock.message
    assert "runs without its lock" in of_the_view.message
    for record in caplog.records:
        assert (record.levelname, record.name) == ("WARNING", "django_redlock")
        assert record.redlock_alias == "default"


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("ends", "is_async"),
    [(None, False), (ValueError, False), (SystemExit, False), (None, True), (ValueError, True)],
)
def test_a_lock_is_renewed_while_its_view_works_and_released_at_its_end(ends, is_async):
    """However the view ends; it raises SystemExit when the server is stopped."""

    def view(request: Any) -> HttpResponse:
        lease = current_lease()
        assert lease is not None
        for _ in range(3):
            deadline = lease.grant.deadline
            eventually(lambda: lease.grant.deadline > deadline)  # noqa: B023 - called here
        assert not is_free("work")
        if ends is not None:
            raise ends
        return HttpResponse("ran")

    async def aview(request: Any) -> HttpResponse:
        return await asyncio.to_thread(view, request)

    with nullcontext() if ends is None else pytest.raises(ends):
        call(single_flight("work")(aview if is_async else view), asked())
    assert is_free("work")


def test_other_methods_pass():
    """Only the `methods` are locked, HEAD as GET; what passes has no lease."""
    found = []

    def view(request):
        found.append((request.method, request.lease is not None))
        return HttpResponse("ran")

    of_reading = single_flight(methods=["get"])
    for decorated in (single_flight(view), of_reading(view)):
        for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"):
            decorated(asked(method=method))
    assert {method for method, locked in found[:7] if locked} == {"POST", "PUT", "PATCH", "DELETE"}
    assert {method for method, locked in found[7:] if locked} == {"GET", "HEAD"}
    ran = overlap(of_reading, asked(method="GET"), asked(method="HEAD"))
    assert [each.status_code for each in ran] == [200, 409]


# -- what is decorated -----------------------------------------------------------------------------

WRONG: dict[type[Exception], dict[str, list[Any]]] = {
    ValueError: {
        "status": [200, 503, [409], 409.0],
        "retry_after": [0],
        "on_unavailable": ["raise"],
        "max_hold": [0],
        "methods": [[" POST"], ["POST", "PUT,PATCH"], [""], ["PSOT"], ["get", "delet"]],
        "wait": [float("inf"), -1],
        "ttl": [0],
        "limit": [0, 129],
    },
    TypeError: {
        "retry_after": ["5", asyncio.sleep],
        "on_refused": [5, "", lambda: None, HttpResponse],
        "result": [7, asyncio.sleep, lambda: "/orders/"],
        "on_lost": ["tell"],
        "methods": ["POST", [], [1]],
        "min_hold": ["5"],
        "renew": ["yes"],
        "limit": [True],
    },
}


@pytest.mark.parametrize(
    ("error", "option", "value"),
    [
        (error, option, value)
        for error, options in WRONG.items()
        for option, values in options.items()
        for value in values
    ],
)
def test_bad_options_are_refused_at_decoration(error, option, value):
    """An option that makes no sense is found when the code is read."""
    with pytest.raises(error, match=option):
        single_flight(**{option: value})


@pytest.mark.parametrize("decorator", [single_flight, drf.single_flight])
def test_a_keyword_that_there_is_not(decorator):
    """It is named, and so are those that there are, and where other clients' are told."""
    with pytest.raises(TypeError, match="single_flight has no keyword 'timeout', 'on_refuse'") as e:
        decorator("x", timeout=5, on_refuse=None)
    assert "it takes key, alias, ttl, wait, min_hold" in str(e.value)
    assert "how-to/migrate" in str(e.value)


def test_marks_of_other_decorators_survive():
    """`csrf_exempt` and a view's own attributes are on the decorated view, below and above it."""

    def view(request): ...

    below: Any = single_flight(csrf_exempt(view))
    above: Any = csrf_exempt(single_flight(view))
    of_class = on_dispatch(classed(View, view), csrf_exempt, single_flight)
    assert (below.csrf_exempt, above.csrf_exempt, of_class.csrf_exempt) == (True, True, True)
    assert (below.__name__, below.__module__) == ("view", __name__)


# -- responses that are not complete ---------------------------------------------------------------


def test_a_stream_keeps_the_lock_until_it_is_closed():
    """Neither the view's return nor the last chunk releases the name, closing does."""

    @single_flight("export")
    def view(request):
        return StreamingHttpResponse(iter([b"a", b"b"]))

    response = view(asked())
    assert not is_free("export")
    assert list(response) == [b"a", b"b"]
    assert not is_free("export")
    response.close()
    assert is_free("export")
    response.close()


def test_a_stream_that_is_dropped_is_renewed_no_more(memory):
    """Its name is free after the ttl, where nobody closes it, such as a middleware's."""

    @single_flight("export", ttl=30)
    def view(request):
        return StreamingHttpResponse(iter([b"a"]))

    request = asked()
    response = view(request)
    assert not request.lease.torn
    assert request.lease.renew_at < math.inf
    del response
    assert request.lease.torn
    assert request.lease.renew_at == math.inf
    for seconds, free in ((20, False), (40, True)):
        for node in memory.nodes:
            node.clock = lambda seconds=seconds: (time.time() + seconds) * 1000
        assert is_free("export") == free


def test_a_stream_that_the_collector_closes_ends_before_the_lock():
    """What its generator does at its end is under the lock, though the response is gone."""
    held = []

    def rows(me: Any) -> Iterator[bytes]:
        try:
            yield b"a"
        finally:
            with ThreadPoolExecutor() as pool:  # the collector itself may not take a lock
                held.append(pool.submit(is_free, "export").result())
            del me

    @single_flight("export")
    def view(request):
        cycle: list[Any] = []
        cycle.append(StreamingHttpResponse(rows(cycle)))
        next(iter(cycle[0]))
        return cycle[0]

    view(asked())
    gc.collect()
    assert held == [False]


class Page(SimpleTemplateResponse):
    """A template whose rendering does something."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__("page.html")
        self.action = action
        self.rendering_attrs = [*self.rendering_attrs, "action"]

    @property
    def rendered_content(self) -> str:
        """Do it."""
        self.action()
        return "page"


def test_a_template_keeps_the_lock_until_it_is_rendered():
    """What a template looks up while it is rendered is under the lock."""
    free = []

    @single_flight("page")
    def view(request):
        return Page(lambda: free.append(is_free("page")))

    response = view(asked())
    assert not is_free("page")
    assert post(view).status_code == 409
    response.render()
    assert free == [False]
    assert is_free("page")
    assert pickle.loads(pickle.dumps(response)).content == b"page"  # noqa: S301 - our own
    response.close()


def test_a_template_that_fails_releases():
    """When rendering raises, the name is free all the same."""
    view = single_flight("page")(lambda request: Page(lambda: 1 / 0))
    assert post(view, raises=False).status_code == 500
    assert is_free("page")


def test_a_template_may_be_rendered_by_a_coroutine():
    """A response whose `render` is asynchronous keeps the lock until it has run."""

    class Later(Page):
        async def render(self):  # type: ignore[override]
            assert not await asyncio.to_thread(is_free, "page")
            return await asyncio.to_thread(super().render)

    @single_flight("page")
    async def view(request):
        return Later(lambda: None)

    with urls(path("", view)):
        assert asyncio.run(AsyncClient().post("/")).content == b"page"
    assert is_free("page")


# -- transactions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "async" not in kind])
def test_the_commit_comes_before_the_release(kind, orders):
    """Under ATOMIC_REQUESTS the lock is held when the transaction has been committed."""
    facts = []

    def view(request: Any) -> HttpResponse:
        insert()
        transaction.on_commit(
            lambda: facts.append((in_transaction(), is_free("order"))), using="orders"
        )
        assert in_transaction() == {"orders": True}
        return HttpResponse("ran")

    assert post(KINDS[kind](view)).status_code == 200
    assert facts == [({"orders": False}, False)]
    assert is_free("order")
    assert count() == 1


def test_who_waited_sees_what_was_committed(orders):
    """With check-then-insert and `wait`, eight simultaneous requests make one row."""

    @single_flight("order", wait=30)
    def view(request):
        if count() == 0:
            insert()
            return HttpResponse("new")
        return HttpResponse("old")

    together = threading.Barrier(8)

    def click(_: int) -> bytes:
        together.wait(60)
        body: bytes = Client().post("/").content
        connections["orders"].close()
        return body

    with urls(path("", view)), ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(click, range(8))) == [b"new"] + [b"old"] * 7
    assert count() == 1


def answer(request: Any) -> HttpResponse:
    """A view that says in which transactions it runs."""
    return HttpResponse(json.dumps(in_transaction()), content_type="application/json")


def again(request: Any) -> HttpResponse:
    """The same, for a mark of its own."""
    return answer(request)


class Answer(View):
    """The same."""

    def post(self, request):
        return answer(request)


async def aran(request: Any) -> HttpResponse:
    """An async view."""
    return HttpResponse("ran")


class Ran(View):
    """The same."""

    async def post(self, request):
        return HttpResponse("ran")


def on_dispatch(base: type[View], *decorators: Any) -> Any:
    """The view of a class whose `dispatch` is decorated, by the first one first."""
    cls: Any = type("Order", (base,), {})
    for each in decorators:
        cls = method_decorator(each, name="dispatch")(cls)
    return cls.as_view()


def test_what_is_not_locked_keeps_its_transaction(orders, memory):
    """A GET, and a view that runs without its lock."""
    memory.down = {0, 1, 2}
    with urls(path("", single_flight(on_unavailable="run")(answer))):
        for call in (Client().get, Client().post):
            assert call("/").json() == {"orders": True}


def unmarked(alias: str) -> Any:
    """The decorator that spares a view the transaction of a database."""
    return transaction.non_atomic_requests(using=alias)


@pytest.mark.parametrize(
    ("make", "has_bills"),
    [
        (lambda: single_flight(answer), True),
        (lambda: single_flight(unmarked("bills")(again)), False),
        (lambda: unmarked("bills")(single_flight(answer)), False),
        (lambda: on_dispatch(Answer, single_flight), True),
        (lambda: on_dispatch(Answer, single_flight, unmarked("bills")), False),
        (lambda: single_flight(Answer.as_view()), True),
        (lambda: single_flight(on_dispatch(Answer, unmarked("bills"))), False),
    ],
    ids=["view", "below", "above", "class", "above class", "as_view", "below as_view"],
)
def test_each_database_has_its_transaction(orders, bills, monkeypatch, make, has_bills):
    """By its ATOMIC_REQUESTS, and by `non_atomic_requests` below or above the decorator."""
    view = make()
    assert post(view).json() == {"orders": True, "bills": has_bills}
    monkeypatch.setitem(connections.settings["bills"], "ATOMIC_REQUESTS", False)
    assert post(view).json() == {"orders": True, "bills": False}


def test_a_lock_inside_a_transaction_is_refused(orders):
    """Below `atomic`, or on a method instead of `dispatch`, is an error that says so."""

    @method_decorator(single_flight, name="post")
    class Wrong(Answer):
        pass

    for view in (transaction.atomic(using="orders")(single_flight(answer)), Wrong.as_view()):
        with pytest.raises(RuntimeError, match="inside a transaction"):
            post(view)


def test_what_is_no_request_is_refused():
    """A function that became a method after it was decorated, for one."""

    @single_flight("order")
    def view(request: Any) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(TypeError, match="single_flight needs the request, not View: on a method"):
        view(View())


def test_a_stream_is_committed_before_it_is_sent(orders):
    """The view's transaction ends with the view; the stream keeps only the lock."""

    @single_flight("export")
    def view(request):
        insert()
        return StreamingHttpResponse(str(in_transaction()) for _ in range(1))

    response = view(asked())
    assert count() == 1
    assert list(response) == [b"{'orders': False}"]
    response.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: single_flight(aran),
        lambda: on_dispatch(Ran, single_flight),
        lambda: single_flight(Ran.as_view()),
    ],
    ids=["def", "class", "as_view"],
)
def test_async_views_under_atomic_requests_are_refused(orders, make):
    """As Django does; our mark on `dispatch` does not hide an async class from it."""
    with pytest.raises(RuntimeError, match=r"write @transaction\.non_atomic_requests below"):
        post(make())


def test_async_views_that_are_marked_non_atomic_run(orders):
    """An async view marked by `non_atomic_requests`, anywhere, runs under the lock."""

    async def below(request):
        return await aran(request)

    marked = unmarked("orders")
    for view in (
        marked(single_flight(aran)),
        single_flight(marked(below)),
        on_dispatch(Ran, single_flight, marked),
        on_dispatch(Ran, [marked, single_flight]),
    ):
        assert post(view).status_code == 200


# -- leases that are lost --------------------------------------------------------------------------


def lose(request: Any, memory: Any) -> None:
    """Let the nodes forget the lock, and the holder find out."""
    for node in memory.nodes:
        node.keys.clear()
    with pytest.raises(LeaseLost):
        request.lease.extend()


def test_max_hold_ends_the_renewal():
    """A view that hangs keeps its lock for no longer than that and one ttl."""
    lost: list[Any] = []

    @single_flight("key", ttl=1, max_hold=0.1, on_lost=lost.append)
    def view(request: Any) -> HttpResponse:
        eventually(lambda: lost == [request.lease])
        assert request.lease.lost
        return HttpResponse("ran")

    assert view(asked()).status_code == 200


@pytest.mark.parametrize(
    ("options", "expected"), [({"on_lost": "raise"}, (500, 0)), ({}, (200, 1))], ids=str
)
def test_a_loss_rolls_back_where_it_is_asked_for(orders, memory, options, expected):
    """`on_lost="raise"` raises before the COMMIT of ATOMIC_REQUESTS; else the view is done."""

    @single_flight("key", **options)
    def view(request: Any) -> HttpResponse:
        insert()
        assert in_transaction() == {"orders": True}
        lose(request, memory)
        return HttpResponse("ran")

    assert (post(view, raises=False).status_code, count()) == expected


def test_a_loss_in_an_async_view(memory):
    """It is raised when the view has returned."""

    @single_flight("key", on_lost="raise")
    async def view(request: Any) -> HttpResponse:
        await asyncio.to_thread(lose, request, memory)
        return HttpResponse("ran")

    with pytest.raises(LeaseLost):
        call(view, asked())


# -- clients that go away --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_client_that_leaves_while_a_stream_is_sent(kind):
    """The stream is closed, and with it the lock."""

    async def rows():
        while True:
            yield b"a"
            await asyncio.sleep(0.001)

    def endless():
        while not left.is_set():
            yield b"a"

    @single_flight("export")
    async def view(request):
        return StreamingHttpResponse(rows() if kind == "async" else itertools.islice(endless(), 9))

    async def main() -> None:
        client = await visiting()
        assert (await client.receive_output(60))["type"] == "http.response.start"
        assert (await client.receive_output(60))["body"] == b"a"
        assert kind == "sync" or not await asyncio.to_thread(is_free, "export")
        left.set()
        await leaves(client)
        await asyncio.to_thread(eventually, lambda: is_free("export"))

    left = threading.Event()
    warns = pytest.warns(Warning, match="must consume synchronous iterators")
    with urls(path("", view)), warns if kind == "sync" else nullcontext():
        asyncio.run(main())


# -- the how-to ------------------------------------------------------------------------------------


def examples() -> dict[str, Any]:
    """What the examples of the page define."""
    page = (Path(__file__).parents[2] / "docs/how-to/views.md").read_text()
    names: dict[str, Any] = {"MIDDLEWARE": []}
    for example in re.findall(r"^ *```python\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE):
        exec(textwrap.dedent(example), names)  # noqa: S102 - our own page
    return names


def test_the_examples_of_the_how_to_run(memory):
    """Each example of the page runs, and locks what the page says."""
    names = examples()
    user: Any = {"user": User(pk=5)}

    def held_by(view: Any, request: Any, **arguments: Any) -> tuple[bytes, Any]:
        response = view(request, **arguments)
        body = response.getvalue()
        response.close()
        return body, request.lease.name

    assert held_by(names["checkout"], asked("/a/", **user)) == (
        b"Thank you.",
        "view:user:5:POST:/a/",
    )
    assert held_by(names["pay"], asked(), pk=7) == (b"Paid 7.", "invoice:7:pay")
    assert held_by(names["checkout_anywhere"], asked(**user)) == (b"Thank you.", "checkout:5")
    assert names["checkout_anywhere"](asked(**user)).status_code == 429
    assert held_by(names["payout"], asked(), pk=7) == (b"Sent.", "payout:7")
    assert held_by(names["transfer"], asked(**user)) == (b"Done.", "transfer:5")
    assert held_by(names["pay_cart"], asked(session={"cart": "c7"}))[1] == "cart:c7"
    assert held_by(names["order_once"], asked(**user))[1] == "order:user:5"
    assert held_by(names["pay_cart"], asked(session={}, **user))[1] == "user:5"
    assert names["MIDDLEWARE"][-1] == "django_redlock.views.RedlockMiddleware"
    assert asyncio.run(names["refund"](asked(**user), pk=7)).content == b"Refunded 7."
    seat = names["BookSeat"].as_view()
    assert held_by(seat, asked(), seat="7A") == (b"Seat 7A is yours.", "seat:7A")
    assert held_by(names["export"], asked(method="GET", **user)) == (b"0\n1\n2\n", "export:5")
