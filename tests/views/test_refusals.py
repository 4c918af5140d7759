"""What is answered to requests that get no lock; what a site's log and its ADMINS get of them."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
from collections.abc import Iterator
from html import unescape
from logging.config import DictConfigurator
from pathlib import Path
from typing import Any

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from django import VERSION
from django.contrib.auth.models import User
from django.http import HttpResponse, JsonResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from django.urls import path, reverse_lazy
from django.utils import translation
from django.utils.log import AdminEmailHandler

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.views import IgnoreRefusals, RedlockMiddleware, Refusal, single_flight
from django_redlock.views import rest_framework as drf
from tests.docs.pages import blocks

from . import asking
from .asking import BROWSER, OURS, TAKEN, in_transaction, post, urls

AGAIN = "Please try again later."
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
SHOWN = "{{ request.path }} {{ refusal.status }} {{ refusal.retry_after }} {{ refusal.detail }}"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "context_processors": ["django.template.context_processors.request"],
            "loaders": [("django.template.loaders.locmem.Loader", {"refused.html": SHOWN})],
        },
    }
]


def client_of(accept: str = "*/*", kind: str = FORM) -> Any:
    """A POST of a client that accepts this and sends that."""
    factory = RequestFactory()
    return factory.generic("POST", "/pay/", b"{}", content_type=kind, headers={"accept": accept})


# -- the decision ----------------------------------------------------------------------------------


def refused(request: Any = None, **options: Any) -> Any:
    """The answer to a request while an equal one runs."""
    view = single_flight("key", **options)(lambda request: HttpResponse("ran"))
    with redlock("key"):
        return view(client_of() if request is None else request)


def arefused(**options: Any) -> Any:
    """The same of an async view."""

    @single_flight("key", **options)
    async def view(request: Any) -> HttpResponse:
        return HttpResponse("ran")

    with redlock("key"):
        return asyncio.run(view(AsyncRequestFactory().post("/pay/")))


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({}, "1"),  # not what the lock has left: most requests take less than its ttl
        ({"retry_after": 0.2}, "1"),
        ({"retry_after": 2.5}, "3"),
        ({"retry_after": lambda _: 7.1}, "8"),
        ({"retry_after": lambda error: error.retry_after}, "9"),
        ({"retry_after": lambda _: None}, "1"),
        ({"retry_after": lambda _: -3}, "1"),
    ],
)
def test_retry_after(options, header, memory):
    """`Retry-After` is a second, or what the site says: a number, or a function of the error."""
    view = single_flight("key", **options)(lambda request: HttpResponse())
    now = memory.nodes[0].clock()
    for node in memory.nodes:
        node.clock = lambda: now
    with redlock("key", ttl=9):
        assert view(client_of()).headers["Retry-After"] == header


def test_a_retry_after_that_is_no_number_is_an_error():
    """It is a fault of the site's function, whose name stands in the error."""
    for wrong in (float("nan"), float("inf"), "5"):
        with pytest.raises((TypeError, ValueError), match="retry_after must be"):
            refused(retry_after=lambda _, wrong=wrong: wrong)


# -- JSON or a page --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "sent", "is_json"),
    [
        ("application/json, text/plain, */*", FORM, True),
        (BROWSER, FORM, False),
        ("*/*", FORM, False),
        ("*/*", JSON, True),
        ("*/*", "Application/VND.api+JSON; charset=utf-8", True),
        ("", JSON, True),
        ("image/png", JSON, True),
        (BROWSER, JSON, False),
        ("text/html;q=0.1, application/problem+json", FORM, True),
        ("application/json; charset=utf-8", FORM, True),
        ("application/json; version=1.0, text/html; q=0.5", FORM, True),
        ("application/vnd.api+json", FORM, True),
        ("text/html; charset=utf-8, application/json; q=0.5", FORM, False),
    ],
)
def test_who_gets_json(accept, sent, is_json):
    """A client that prefers JSON; and one that asks for no page, and sends JSON."""
    response = refused(client_of(accept, sent))
    expected = "application/problem+json" if is_json else "text/html; charset=utf-8"
    assert response.headers["Content-Type"] == expected


@pytest.mark.parametrize("accept", [BROWSER, "*/*", "application/json"])
def test_only_a_request_that_was_not_begun_anywhere_is_invited_to_come_again(accept, memory):
    """A customer who clicked twice sees the second answer, and must not order once more for it."""
    view = single_flight("quick", min_hold=3)(lambda request: HttpResponse("ran"))
    assert view(client_of(accept)).content == b"ran"
    taken = [view(client_of(accept)).content.decode()]  # the first one is over
    for status in (423, 429):
        response = refused(client_of(accept), status=status)
        assert response.status_code == status
        taken.append(response.content.decode())
    memory.down = {0, 1, 2}
    away = view(client_of(accept)).content.decode()
    for body in taken:
        assert TAKEN in body
        assert "again" not in body
    assert "was not carried out" in away
    assert AGAIN in away


def test_the_texts_are_translated(tmp_path):
    """A site's translations are used, in the language of the request, escaped on the page."""
    texts = Catalog("de")
    for text, german in (("One moment, please", "Augenblick <&>"), (TAKEN, "Schon dabei.")):
        texts.add(text, german)
    (tmp_path / "de/LC_MESSAGES").mkdir(parents=True)
    with (tmp_path / "de/LC_MESSAGES/django.mo").open("wb") as file:
        write_mo(file, texts)
    with override_settings(LOCALE_PATHS=[tmp_path], USE_I18N=True), translation.override("de"):
        page = refused().content.decode()
        problem = json.loads(refused(client_of("application/json")).content)
    assert '<html lang="de" dir="ltr">' in page
    assert "<h1>Augenblick &lt;&amp;&gt;</h1>\n<p>Schon dabei.</p>" in page
    assert (problem["title"], problem["detail"]) == ("Konflikt", "Schon dabei.")
    with translation.override("ar"):
        assert '<html lang="ar" dir="rtl">' in refused().content.decode()


# -- links, and how the page looks -----------------------------------------------------------------


def link(response: Any) -> tuple[str, str]:
    """Where the link of a page leads, and its text; empty: it has none."""
    found = re.findall(r'<a href="([^"]*)">([^<]*)</a>', response.content.decode())
    assert len(found) <= 1
    return (unescape(found[0][0]), found[0][1]) if found else ("", "")


def from_a_form(referer: str) -> Any:
    """A POST of a browser that shows this page."""
    headers = {"accept": BROWSER, "referer": referer}
    return RequestFactory().post("/pay/", headers=headers)


CART = "http://testserver/cart/?a=1&b=2"
BEFORE = CART, "Back to the previous page"
RESULT = "Look at the result"


@pytest.mark.parametrize(
    ("result", "referer", "host", "leads_to"),
    [
        (None, CART, "*", BEFORE),
        ("/orders/?paid=1&new=1", CART, "*", ("/orders/?paid=1&new=1", RESULT)),
        ("orders", CART, "*", ("/orders/", RESULT)),
        (reverse_lazy("orders"), CART, "*", ("/orders/", RESULT)),
        (lambda request: f"{request.path}result/", CART, "*", ("/pay/result/", RESULT)),
        (lambda _: None, CART, "*", BEFORE),
        ("no-such-name", CART, "*", BEFORE),
        (None, "", "*", ("", "")),
        (None, "https://elsewhere.example/", "*", ("", "")),
        (None, "javascript:alert(1)", "*", ("", "")),
        (None, "//elsewhere.example", "*", ("", "")),
        (None, CART, "shop.example", ("", "")),  # the request's own host is not allowed
    ],
)
def test_a_page_leads_to_the_result_or_back(result, referer, host, leads_to):
    """To what the view names; else to the page of this site that has sent the request."""
    with urls(path("orders/", plain, name="orders")), override_settings(ALLOWED_HOSTS=[host]):
        response = refused(from_a_form(referer), result=result)
    assert (response.status_code, link(response)) == (409, leads_to)


def no_row(_: Any) -> Any:
    """Ask for what is not there yet."""
    raise User.DoesNotExist("the first request has not committed yet")


@pytest.mark.parametrize(
    "result",
    [
        no_row,
        lambda _: User(pk=1),  # has no address
        lambda _: "javascript:alert(document.cookie)",  # as of a field of the form
    ],
)
def test_a_page_without_a_result_is_no_error(result, caplog):
    """What names no address costs the link, not the page; the log has the reason."""
    assert link(refused(from_a_form(CART), result=result)) == BEFORE
    assert link(arefused(result=result)) == ("", "")
    logged = [(each.getMessage(), each.exc_info is not None) for each in caplog.records]
    assert len(logged) == 2
    for text, has_trace in logged:
        assert re.match(r"result= of the single_flight of \S+, line \d+ names no address: ", text)
        assert has_trace


def test_a_program_costs_no_look_for_the_result():
    """Which may be a query; a function that makes the response itself gets it all the same."""
    asked = []

    def look(request: Any) -> str:
        asked.append(request)
        return "/orders/"

    refused(client_of("application/json"), result=look, on_refused="refused.html")
    refused(client_of("application/json"), result=look)
    assert asked == []
    refused(client_of("application/json"), result=look, on_refused=lambda *_: None)
    assert len(asked) == 1


def test_where_nobody_has_begun_there_is_no_result(memory):
    """Without a majority nothing was done: the page leads back, to try again later."""
    view = single_flight("key", result="/orders/")(lambda request: HttpResponse())
    memory.down = {0, 1, 2}
    assert link(view(from_a_form(CART))) == BEFORE


def test_the_style_is_a_file_of_the_site(settings):
    """A policy without inline styles lets it through; where nobody serves files, there is none."""
    sheet = '<link rel="stylesheet" href="/static/django_redlock/refused.css">'
    assert sheet in refused().content.decode()
    settings.STORAGES = {
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}
    }
    settings.DEBUG = False
    assert "stylesheet" not in refused().content.decode()  # the manifest is not there
    without = [each for each in settings.INSTALLED_APPS if "staticfiles" not in each]
    with override_settings(INSTALLED_APPS=without):
        assert "stylesheet" not in refused().content.decode()


# -- the site's own answers ------------------------------------------------------------------------


def test_a_function_answers():
    """It gets the request and the refusal; what it leaves out is added, and the log is spared."""
    seen = []

    def answer(request: Any, refusal: Refusal) -> Any:
        seen.append((request.path, refusal.status, refusal.retry_after, type(refusal.error)))
        return JsonResponse({"busy": True}, status=425)

    request = client_of()
    response = refused(request, on_refused=answer)
    assert seen == [("/pay/", 409, 1, LockTaken)]
    assert (response.status_code, response.content) == (425, b'{"busy": true}')
    assert response.headers["Retry-After"] == "1"
    assert response.headers["Cache-Control"] == "no-store"
    record = logging.makeLogRecord({"request": request, "status_code": 425})
    assert not IgnoreRefusals().filter(record)


@pytest.mark.django_db(transaction=True)
@override_settings(TEMPLATES=TEMPLATES)
def test_answers_of_async_views():
    """Functions of both kinds and templates answer; plain ones off the loop, where they query."""
    seen = []

    async def awaited(request: Any, refusal: Refusal) -> HttpResponse:
        return HttpResponse(b"awaited", status=refusal.status)

    def plain(request: Any, refusal: Refusal) -> HttpResponse:
        seen.append((refusal.result, refusal.back))
        return HttpResponse(newest(request), status=refusal.status)

    def newest(_: Any) -> str:
        return f"/orders/{User.objects.count()}/"

    assert arefused().status_code == 409
    assert arefused(on_refused=awaited).content == b"awaited"
    assert arefused(on_refused="refused.html").content.startswith(b"/pay/ 409 1 This")
    assert arefused(on_refused=plain, result=newest).content == b"/orders/0/"
    assert seen == [("/orders/0/", "")]
    assert link(arefused(result=newest)) == ("/orders/0/", RESULT)


async def awaited(*_: Any) -> Any:
    """An option that nobody can await."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: single_flight(on_refused=awaited)(plain),
        lambda: single_flight(key=awaited)(plain),
        lambda: drf.single_flight(on_refused=awaited),
        lambda: drf.single_flight(key=awaited),
        lambda: type("Awaited", (RedlockMiddleware,), {"on_refused": awaited})(plain),
    ],
    ids=["on_refused", "key", "on_refused of REST", "key of REST", "middleware"],
)
def test_what_would_be_awaited_is_refused(make):
    """Where it is written, or when the site starts."""
    with pytest.raises(TypeError, match="is a coroutine function, and the view is none"):
        make()


def test_a_refusal_opens_no_transaction(orders):
    """What answers a refused request runs outside of the transactions of ATOMIC_REQUESTS."""
    found = []

    def answer(*_: Any) -> None:
        found.append(in_transaction())

    view = single_flight("key", on_refused=answer)(lambda request: HttpResponse())
    with redlock("key"):
        assert post(view).status_code == 409
    assert found == [{"orders": False}]


# -- the log, and mail -----------------------------------------------------------------------------


VIEWS = Path(__file__).parents[2] / "docs/how-to/views.md"
ADMIN: Any = "admin@example.com" if VERSION >= (6, 0) else ("admin", "admin@example.com")


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the ADMINS get by Django's default LOGGING."""
    sent: list[str] = []
    monkeypatch.setattr(
        AdminEmailHandler, "send_mail", lambda _, what, *__, **___: sent.append(what)
    )
    with override_settings(ADMINS=[ADMIN]):
        yield sent


@pytest.fixture
def filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters that the LOGGING of the page adds."""
    (block,) = [each for each in blocks(VIEWS) if "IgnoreRefusals" in each.text]
    scope: dict[str, Any] = {}
    exec(block.text, scope)  # noqa: S102 - our own page
    page = DictConfigurator(scope["LOGGING"]).config
    for name, logger in page["loggers"].items():
        filters = [
            DictConfigurator(page).configure_filter(page["filters"][each])
            for each in logger["filters"]
        ]
        monkeypatch.setattr(logging.getLogger(name), "filters", filters)


@single_flight("pay")
def pay(request: Any) -> HttpResponse:
    """A view with a lock; it may fail."""
    return HttpResponse(int(request.headers.get("fail", "0")))


def test_django_mails_a_refusal_unless_the_filter_drops_it(memory, mails):
    """By its default LOGGING a 503 goes to the ADMINS."""
    memory.down = {0, 1, 2}
    assert post(pay).status_code == 503
    assert len(mails) == 1


@pytest.mark.usefixtures("filtered")
def test_a_refusal_mails_nobody(memory, mails, caplog):
    """With the page's LOGGING it writes a line, once a minute; so does a 400 of a missing field."""
    paid = single_flight("pay")(lambda request: HttpResponse())
    keyed = single_flight("key:{request.headers[X-Order]}")(lambda request: HttpResponse())
    memory.down = {0, 1, 2}
    assert [post(paid).status_code for _ in range(3)] == [503] * 3
    memory.down = set()
    with redlock("pay"):
        assert post(paid).status_code == 409
    assert [post(keyed).status_code for _ in range(2)] == [400] * 2
    assert mails == []
    told = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert [(each.name, each.levelname) for each in told] == [
        ("django_redlock", "ERROR"),
        ("django_redlock", "WARNING"),
        *[("django.request", "WARNING")] * 2,  # each 400
    ]
    assert told[0].message.startswith("a request gets a 503: ")
    assert ": down" in told[0].message
    assert "{request.headers[X-Order]} names an item that is not there" in told[1].message


@pytest.mark.usefixtures("filtered")
def test_the_faults_of_a_site_are_mailed_as_ever(mails):
    """With the page's LOGGING a real 500, and a 503 of the site's own, are mailed."""
    assert post(pay, raises=False, fail="x").status_code == 500
    assert post(lambda request: HttpResponse(status=503)).status_code == 503
    assert len(mails) == 2


def test_the_line_comes_once_a_minute(memory, caplog, monkeypatch):
    """For each view by itself."""
    now = [1000.0]
    monkeypatch.setattr("django_redlock.views.lock.monotonic", lambda: now[0])
    views = [single_flight(name)(lambda request: HttpResponse()) for name in ("one", "two")]
    memory.down = {0, 1, 2}
    for view in views:
        for _ in range(3):
            assert view(client_of()).status_code == 503
    assert len(caplog.records) == 2
    now[0] += 60
    views[0](client_of())
    line = caplog.records[2]
    assert (line.redlock_alias, line.redlock_name) == ("default", "one")
    assert line.redlock_code == "no_majority"


# -- locks that a view takes itself: RedlockMiddleware ---------------------------------------------


def plain(request: Any) -> HttpResponse:
    """A view that takes a lock."""
    with redlock("stock"):
        return HttpResponse("ran")


class Mine(RedlockMiddleware):
    """Answers of a site's own."""

    def on_refused(self, request: Any, refusal: Any) -> HttpResponse | None:
        return HttpResponse("mine", status=423) if refusal.status == 409 else None


urlpatterns: list[Any] = [path("plain/", plain)]
ask = functools.partial(asking.ask, __name__)
USES = pytest.mark.parametrize("use", ["sync", "async"])


@USES
def test_answers_of_a_sites_own(use, memory):
    """A subclass changes them by a method; None is the usual answer."""
    mine = f"{__name__}.Mine"
    assert ask("/plain/", mine, use=use).content == b"ran"
    with redlock("stock"):
        assert ask("/plain/", use=use).status_code == 500
        response = ask("/plain/", mine, use=use)
    assert (response.status_code, response.content) == (423, b"mine")
    memory.down = {0, 1, 2}
    assert ask("/plain/", mine, use=use).status_code == 503


LOST = LeaseLost("lost", name="stock")
NOT_EXTENDED = NodesUnavailable(because(ReasonCode.NOT_EXTENDED, votes=1, size=3), name="stock")


@pytest.mark.parametrize("error", [LOST, NOT_EXTENDED, ValueError("the site's own")], ids=type)
def test_what_happened_under_the_lock_is_a_fault(error):
    """A lease that was lost or not extended had begun its work: no answer invites to repeat it."""

    def view(request: Any) -> HttpResponse:
        raise error

    assert asking.ask((path("", view),), "/", OURS).status_code == 500
