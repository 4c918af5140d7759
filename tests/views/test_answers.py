"""What is answered to a request that does not get its lock, and how a site changes that."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse
from django.test import AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import path
from django.utils import translation

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, conf, redlock, transactions
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.views import (
    IgnoreRefusals,
    Refusal,
    refusal_of,
    single_flight,
)
from django_redlock.views.refusals import Responder
from tests.support.waiting import eventually

NUMBERS = itertools.count()
TAKEN = (
    "This request was not carried out, because the same or related work is being done, or was "
    "done a moment ago. If you sent it twice, the first request goes on: please look at its result."
)
AGAIN = "Please try again later."
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
FORM = "application/x-www-form-urlencoded"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "context_processors": ["django.template.context_processors.request"],
            "loaders": [
                (
                    "django.template.loaders.locmem.Loader",
                    {
                        "refused.html": "{{ request.path }} {{ refusal.status }} "
                        "{{ refusal.retry_after }} {{ refusal.detail }}"
                    },
                )
            ],
        },
    }
]


@pytest.fixture(autouse=True)
def memory() -> Iterator[Any]:
    """A node in memory of one's own."""
    with override_settings(REDLOCK={"default": {"NODES": [f"memory://answers-{next(NUMBERS)}"]}}):
        yield conf.backend("default").group


def asked(accept: str = "*/*", kind: str = FORM) -> Any:
    """A POST of a client that accepts this and sends that."""
    return RequestFactory().generic(
        "POST", "/pay/", b"{}", content_type=kind, headers={"accept": accept}
    )


def refused(request: Any = None, **options: Any) -> Any:
    """The answer to a request while an equal one runs."""
    view = single_flight("key", **options)(lambda request: HttpResponse("ran"))
    with redlock("key"):
        return view(asked() if request is None else request)


def arefused(**options: Any) -> Any:
    """The same of an async view."""

    @single_flight("key", **options)
    async def view(request: Any) -> HttpResponse:
        return HttpResponse("ran")

    with redlock("key"):
        return asyncio.run(view(AsyncRequestFactory().post("/pay/")))


# -- the decision ---------------------------------------------------------------------------------


def test_what_is_a_refusal():
    """A lock that is held is 409, nodes that cannot be asked are 503; the rest is no refusal."""
    taken, away = LockTaken("held", name="n", retry_after=20.0), NodesUnavailable("down", name="n")
    assert refusal_of(taken, asked()) == Refusal(409, 1, taken)
    assert refusal_of(taken, asked(), status=423, retry_after=2.1) == Refusal(423, 3, taken)
    assert refusal_of(away, asked(), retry_after=60) == Refusal(503, 5, away)
    for error in (LeaseLost("lost"), ValueError(), KeyboardInterrupt()):
        assert refusal_of(error, asked()) is None


@pytest.mark.parametrize("code", [ReasonCode.NOT_EXTENDED, ReasonCode.NOT_ASKED])
def test_a_lease_that_was_not_extended_is_no_refusal(code):
    """The work is under way: no answer says that it did not begin."""
    assert refusal_of(NodesUnavailable(because(code, votes=1, size=3)), asked()) is None


def test_another_framework_can_answer_with_it():
    """Body and headers of a refusal are those of the response, for an exception handler."""
    with redlock("key"), pytest.raises(LockTaken) as raised:
        redlock("key").acquire()
    refusal = refusal_of(raised.value, asked())
    assert refusal is not None
    response = refused(asked("application/json"))
    assert json.loads(response.content) == refusal.problem
    assert refusal.headers == {"Retry-After": "1", "Cache-Control": "no-store"}
    assert refusal.headers.items() <= dict(response.headers).items()


@pytest.mark.parametrize(
    ("retry_after", "header"),
    [
        (1, "1"),
        (0.2, "1"),
        (2.5, "3"),
        (600, "600"),
        (lambda _: 7.1, "8"),
        (lambda error: error.retry_after, "9"),
        (lambda _: None, "1"),
        (lambda _: -3, "1"),
    ],
)
def test_retry_after(retry_after, header, monkeypatch):
    """`Retry-After` is a second, or what the site says: a number, or a function of the error."""
    view = single_flight("key", retry_after=retry_after)(lambda request: HttpResponse())
    (node,) = conf.backend("default").group.nodes  # type: ignore[attr-defined]
    now = node.clock()
    node.clock = lambda: now
    with redlock("key", ttl=9):
        assert view(asked()).headers["Retry-After"] == header


def test_a_lease_that_lives_a_moment_does_not_send_clients_away():
    """The time that the lock has left is not told: its ttl is 30 s, and most requests take less."""
    assert refused().headers["Retry-After"] == "1"


# -- JSON or a page -------------------------------------------------------------------------------


class Api:
    """A stand-in for the base class of DRF's views, by the name of its module."""

    __module__ = "rest_framework.views"


class Orders(Api):
    """A view of the site."""


def resolved(func: Any) -> Any:
    """What Django's resolver leaves in a request."""
    return type("Match", (), {"func": func})()


def of_drf(request: Any) -> Any:
    """The request of a view of DRF's; `as_view` leaves the class in the function."""
    request.resolver_match = resolved(type("View", (), {"cls": Orders})())
    return request


def of_ninja(request: Any) -> Any:
    """The request of a view of django-ninja's."""
    request.resolver_match = resolved(type("View", (), {"__module__": "ninja.operation"})())
    return request


@pytest.mark.parametrize(
    ("request_", "is_json"),
    [
        (asked("application/json, text/plain, */*"), True),
        (asked(BROWSER), False),
        (asked("*/*"), False),
        (asked("*/*", "application/json"), True),
        (asked("*/*", "Application/VND.api+JSON; charset=utf-8"), True),
        (asked("", "application/json"), True),
        (asked("image/png", "application/json"), True),
        (asked(BROWSER, "application/json"), False),
        (asked("text/html;q=0.1, application/problem+json", FORM), True),
        (of_drf(asked()), True),
        (of_drf(asked(BROWSER)), False),
        (of_ninja(asked()), True),
    ],
)
def test_who_gets_json(request_, is_json):
    """Who prefers it; and who asks for no page, and sends JSON or talks to a framework for APIs."""
    response = refused(request_)
    expected = "application/problem+json" if is_json else "text/html; charset=utf-8"
    assert response.headers["Content-Type"] == expected


@pytest.mark.parametrize("status", [409, 423, 429, 503])
def test_a_problem_has_a_detail(status, memory):
    """`detail` is a sentence that a front end can show."""
    if status == 503:
        memory.down = {0}
        view = single_flight("key")(lambda request: HttpResponse())
        response: Any = view(asked("application/json"))
    else:
        response = refused(asked("application/json"), status=status)
    problem = json.loads(response.content)
    assert problem["status"] == response.status_code == status
    assert problem["detail"].endswith(AGAIN) if status == 503 else problem["detail"] == TAKEN
    assert set(problem) == {"type", "title", "status", "detail"}


@pytest.mark.parametrize("accept", [BROWSER, "*/*", "application/json"])
def test_only_a_request_that_was_not_begun_anywhere_is_invited_to_come_again(accept, memory):
    """A customer who clicked twice sees the second answer, and must not order once more for it."""
    view = single_flight("quick", min_hold=3)(lambda request: HttpResponse("ran"))
    assert view(asked(accept)).content == b"ran"
    taken = [view(asked(accept)).content.decode()]  # the first one is over
    taken += [refused(asked(accept), status=status).content.decode() for status in (423, 429)]
    memory.down = {0}
    away = view(asked(accept)).content.decode()
    for body in taken:
        assert TAKEN in body
        assert "again" not in body
    assert "was not carried out" in away
    assert AGAIN in away


def test_the_lock_of_a_view_may_be_held_by_other_work():
    """What a refusal says is true as well where a task has the lock that the view wants."""
    with redlock("stock:5"), pytest.raises(LockTaken) as raised:
        redlock("stock:5").acquire()
    refusal = refusal_of(raised.value, asked())
    assert refusal is not None
    assert "the same or related work is being done" in refusal.detail
    assert "If you sent it twice" in refusal.detail


def catalogue(where: Path, texts: dict[str, str]) -> None:
    """Write German translations, as `compilemessages` does."""
    texts = {"": "Content-Type: text/plain; charset=UTF-8\n"} | texts
    pairs = sorted((key.encode(), value.encode()) for key, value in texts.items())
    keys: list[int] = []
    values: list[int] = []
    count, body = len(pairs), b""
    offset = 28 + 16 * count
    for found, index in ((keys, 0), (values, 1)):
        for pair in pairs:
            found += [len(pair[index]), offset + len(body)]
            body += pair[index] + b"\0"
    numbers = [0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0, *keys, *values]
    (where / "de/LC_MESSAGES").mkdir(parents=True)
    (where / "de/LC_MESSAGES/django.mo").write_bytes(
        struct.pack(f"<{len(numbers)}I", *numbers) + body
    )


def test_the_texts_are_translated(tmp_path):
    """A site's translations are used, in the language of the request, escaped on the page."""
    catalogue(
        tmp_path,
        {
            "Conflict": "Konflikt",
            "One moment, please": "Augenblick <&>",
            TAKEN: "Schon dabei.",
        },
    )
    with override_settings(LOCALE_PATHS=[tmp_path], USE_I18N=True), translation.override("de"):
        page = refused().content.decode()
        problem = json.loads(refused(asked("application/json")).content)
    assert '<html lang="de" dir="ltr">' in page
    assert "<h1>Augenblick &lt;&amp;&gt;</h1>\n<p>Schon dabei.</p>" in page
    assert (problem["title"], problem["detail"]) == ("Konflikt", "Schon dabei.")
    with translation.override("ar"):
        assert '<html lang="ar" dir="rtl">' in refused().content.decode()


# -- the site's own answers -----------------------------------------------------------------------


def test_a_function_answers():
    """It gets the request and the refusal; what it leaves out is added, and the log is spared."""
    seen = []

    def answer(request: Any, refusal: Refusal) -> Any:
        seen.append((request.path, refusal.status, refusal.retry_after, type(refusal.error)))
        return JsonResponse({"busy": True}, status=425)

    request = asked()
    response = refused(request, on_refused=answer)
    assert seen == [("/pay/", 409, 1, LockTaken)]
    assert (response.status_code, response.content) == (425, b'{"busy": true}')
    assert response.headers["Retry-After"] == "1"
    assert response.headers["Cache-Control"] == "no-store"
    record = logging.makeLogRecord({"request": request, "status_code": 425})
    assert not IgnoreRefusals().filter(record)


def test_a_function_answers_503_too(memory):
    """It is asked for both kinds of refusal."""
    memory.down = {0}
    view = single_flight("key", on_refused=lambda _, refusal: HttpResponse(str(refusal.status)))
    assert view(lambda request: HttpResponse())(asked()).content == b"503"


def test_the_headers_of_a_function_stay():
    """A function that sets them itself is not overruled."""

    def answer(request: Any, refusal: Refusal) -> HttpResponse:
        headers = {"Retry-After": "99", "Cache-Control": "private"}
        return HttpResponse(status=409, headers=headers)

    response = refused(on_refused=answer)
    assert response.headers["Retry-After"] == "99"
    assert response.headers["Cache-Control"] == "private"


def test_a_function_may_leave_it_to_the_package():
    """None is the usual answer."""
    assert refused(on_refused=lambda *_: None).content == refused().content


def test_a_function_that_returns_something_else():
    """It is told what to return."""
    with pytest.raises(TypeError, match="on_refused must return a response, or None"):
        refused(on_refused=lambda *_: "busy")


@override_settings(TEMPLATES=TEMPLATES)
def test_a_template_answers():
    """Clients that want a page get the template, others the problem."""
    response = refused(on_refused="refused.html", retry_after=4)
    assert (response.status_code, response.content) == (409, f"/pay/ 409 4 {TAKEN}".encode())
    assert response.headers["Retry-After"] == "4"
    assert response.headers["Cache-Control"] == "no-store"
    problem = refused(asked("application/json"), on_refused="refused.html")
    assert problem.headers["Content-Type"] == "application/problem+json"


@pytest.mark.django_db(transaction=True)
@override_settings(TEMPLATES=TEMPLATES)
def test_answers_of_async_views(monkeypatch):
    """Functions of both kinds and templates answer; plain ones off the loop, where they query."""

    async def awaited(request: Any, refusal: Refusal) -> HttpResponse:
        await asyncio.sleep(0)
        return HttpResponse(b"awaited", status=refusal.status)

    def plain(request: Any, refusal: Refusal) -> HttpResponse:
        return HttpResponse(f"{User.objects.count()} users", status=refusal.status)

    assert arefused().status_code == 409
    assert arefused(on_refused=awaited).content == b"awaited"
    assert arefused(on_refused=plain).content == b"0 users"
    assert arefused(on_refused="refused.html").content.startswith(b"/pay/ 409 1 This")

    async def on_the_loop(self: Responder, request: Any, refusal: Refusal) -> Any:
        return self.respond(request, refusal)

    monkeypatch.setattr(Responder, "arespond", on_the_loop)
    with pytest.raises(SynchronousOnlyOperation):
        arefused(on_refused=plain)


def test_a_coroutine_function_and_a_plain_view():
    """It is found at decoration."""

    async def awaited(request: Any, refusal: Refusal) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(TypeError, match="on_refused is a coroutine function"):
        single_flight(on_refused=awaited)(lambda request: HttpResponse())
    with pytest.raises(TypeError, match="retry_after must be a number of seconds or a plain"):
        single_flight(retry_after=asyncio.sleep)  # type: ignore[arg-type]


def test_a_redirect_is_an_answer():
    """A site may send the visitor to a page that shows how far the first request is."""
    response = refused(on_refused=lambda *_: HttpResponseRedirect("/orders/"))
    assert (response.status_code, response.headers["Location"]) == (302, "/orders/")


# -- leases ---------------------------------------------------------------------------------------


def lose(request: Any, memory: Any) -> None:
    """Let the nodes forget the lock, and the holder find out."""
    for node in memory.nodes:
        node.keys.clear()
    with pytest.raises(LeaseLost):
        request.lease.extend()


def test_max_hold_ends_the_renewal():
    """A view that hangs keeps its lock for no longer than that and one ttl."""
    lost: list[Any] = []

    @single_flight("key", ttl=0.2, max_hold=0.1, on_lost=lost.append)
    def view(request: Any) -> HttpResponse:
        eventually(lambda: lost == [request.lease])
        assert request.lease.lost
        return HttpResponse("ran")

    assert view(asked()).status_code == 200


@pytest.fixture
def orders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, django_db_blocker: Any
) -> Iterator[Any]:
    """A database under ATOMIC_REQUESTS; a function that counts its rows."""
    setting = connections.settings["default"] | {
        "NAME": tmp_path / "orders.sqlite3",
        "ATOMIC_REQUESTS": True,
    }
    monkeypatch.setitem(connections.settings, "orders", setting)

    def run(statement: str) -> list[Any]:
        with connections["orders"].cursor() as cursor:
            return list(cursor.execute(statement))

    with django_db_blocker.unblock():
        try:
            run("CREATE TABLE orders (cart TEXT)")
            yield run
        finally:
            connections["orders"].close()
            del connections["orders"]


def rows_after_a_loss(orders: Any, memory: Any, **options: Any) -> tuple[int, int]:
    """The status of a view that lost its lease after an insert, and how many rows are left."""

    @single_flight("key", **options)
    def view(request: Any) -> HttpResponse:
        orders("INSERT INTO orders VALUES ('a')")
        assert connections["orders"].in_atomic_block
        lose(request, memory)
        return HttpResponse("ran")

    patterns: Any = (path("", view),)
    with override_settings(ROOT_URLCONF=patterns, ALLOWED_HOSTS=["*"], MIDDLEWARE=[]):
        status = Client(raise_request_exception=False).post("/").status_code
    return status, orders("SELECT count(*) FROM orders")[0][0]


def test_a_loss_rolls_back_where_it_is_asked_for(orders, memory):
    """`on_lost="raise"` raises before the COMMIT of ATOMIC_REQUESTS; else the view is done."""
    assert rows_after_a_loss(orders, memory, on_lost="raise") == (500, 0)
    assert rows_after_a_loss(orders, memory) == (200, 1)


def test_a_loss_that_is_told_after_the_commit_is_noticed(orders, memory, monkeypatch):
    """Where the view looks at its lease outside of the transaction, the row stays."""
    atomic = transactions.atomic

    def raising_late(view: Any, aliases: Any) -> Any:
        losses: list[LeaseLost] = []

        def inside(*args: Any, **kwargs: Any) -> Any:
            try:
                return view(*args, **kwargs)
            except LeaseLost as lost:
                losses.append(lost)

        def outside(*args: Any, **kwargs: Any) -> Any:
            atomic(inside, aliases)(*args, **kwargs)
            raise losses[0]

        return outside

    monkeypatch.setattr(transactions, "atomic", raising_late)
    assert rows_after_a_loss(orders, memory, on_lost="raise") == (500, 1)


def test_a_loss_in_an_async_view(memory):
    """It is raised when the view has returned."""

    @single_flight("key", on_lost="raise")
    async def view(request: Any) -> HttpResponse:
        await asyncio.to_thread(lose, request, memory)
        return HttpResponse("ran")

    with pytest.raises(LeaseLost):
        asyncio.run(view(AsyncRequestFactory().post("/")))


def test_a_refusal_opens_no_transaction(orders):
    """What answers a refused request runs outside of the transactions of ATOMIC_REQUESTS."""
    found = []

    def answer(*_: Any) -> None:
        found.append(connections["orders"].in_atomic_block)

    view = single_flight("key", on_refused=answer)(lambda request: HttpResponse())
    patterns: Any = (path("", view),)
    with (
        override_settings(ROOT_URLCONF=patterns, ALLOWED_HOSTS=["*"], MIDDLEWARE=[]),
        redlock("key"),
    ):
        assert Client().post("/").status_code == 409
    assert found == [False]
