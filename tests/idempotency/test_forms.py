"""Forms of visitors who may have no login: whose key it is, and what a person and the log are told.

The form is that of docs/how-to/idempotency.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.template import Context, engines
from django.test import AsyncClient, Client
from django.urls import path

from django_redlock import redlock
from django_redlock.idempotency import idempotent
from tests.docs.pages import ROOT, blocks
from tests.views.asking import BROWSER, urls

from .shop import KEY, SESSIONS, anybody, identity, order, orders_made, records

pytestmark = pytest.mark.django_db
BACK = "http://testserver/buy/"  # the page with the form
CSRF = "django.middleware.csrf.CsrfViewMiddleware"
(FORM,) = (each.text for each in blocks(ROOT / "docs/how-to/idempotency.md") if "form" in each.text)
TEMPLATE = engines["django"].from_string(FORM)


def page(request: HttpRequest) -> HttpResponse:
    """The page with the form."""
    return HttpResponse(TEMPLATE.render({}, request))


async def apage(request: HttpRequest) -> HttpResponse:
    """The same, of an async view, which renders it in the event loop."""
    return page(request)


def forgetful(request: HttpRequest) -> HttpResponse:
    """The same, rendered without its request."""
    return HttpResponse(TEMPLATE.template.render(Context({})))  # type: ignore[attr-defined]


def without_tag(request: HttpRequest) -> HttpResponse:
    """The same, whose author has forgotten the tag."""
    text = FORM.replace("{% idempotency_key %}", "")
    return HttpResponse(engines["django"].from_string(text).render({}, request))


class Browser:
    """A browser at a site of a page with a form, and of the view that takes it."""

    def __init__(self, shown: Any, view: Any = None, *middleware: str) -> None:
        self.client = Client(enforce_csrf_checks=True, headers={"accept": BROWSER})
        both = path("buy/", shown), path("buy/do/", view or idempotent(order))
        self.site = urls(*both)
        self.site.options["MIDDLEWARE"] = list(middleware or (*SESSIONS, CSRF))

    def open(self, address: str = "/buy/") -> dict[str, str]:
        """Show the page; the fields that its form has."""
        with self.site:
            shown = self.client.get(address).content.decode()
        found = re.findall(r'<input[^>]* name="([^"]+)"(?: value="([^"]+)")?', shown)
        return {name: value or "2" for name, value in found}

    def send(self, fields: dict[str, str], **headers: str) -> Any:
        """Send the form."""
        headers.setdefault("referer", "http://testserver/buy/")
        with self.site:
            return self.client.post("/buy/do/", fields, headers=headers)


def links(answer: Any, text: str = "Open the form again") -> list[str]:
    """The addresses of a page's links with a text."""
    found = re.findall(rf'<a href="([^"]*)">{text}</a>', answer.content.decode())
    return [unescape(each) for each in found]


# -- whose key it is -------------------------------------------------------------------------------


def test_a_visitor_without_a_login_buys():
    """The tag starts the session whose key it is; two visitors with one key have two orders."""
    ann, bob = Browser(page), Browser(page)
    other, fields = ann.open(), ann.open()
    assert other["idempotency_key"] != fields["idempotency_key"]
    first = ann.send(fields)
    assert first.status_code == 201
    again = ann.send(fields)
    assert (again.status_code, again.content) == (201, first.content)
    assert again["Idempotency-Replayed"] == "true"
    other = bob.open() | {"idempotency_key": fields["idempotency_key"]}
    assert bob.send(other).content != first.content
    assert orders_made() == 2
    assert [each.scope[:8] for each in records()] == ["session:", "session:"]


def test_an_async_view_shows_the_form_as_well():
    """The event loop that renders it cannot ask a database, and need not."""
    browser = Browser(apage)

    async def cookies() -> list[str]:
        client = AsyncClient()
        first = await client.get("/buy/")
        second = await client.get("/buy/")  # its cookie has a session, which nobody looks up
        assert first.status_code == second.status_code == 200
        return [*first.cookies]

    with browser.site:
        assert "sessionid" in asyncio.run(cookies())


@pytest.mark.django_db(transaction=True)
def test_a_session_that_has_ended_is_started_anew():
    """Its cookie is still there."""
    browser = Browser(page)
    browser.open()
    Session.objects.all().delete()
    assert browser.send(browser.open()).status_code == 201


def test_a_session_that_has_something_is_left_alone():
    """That of a login, for one: the page writes nothing."""
    browser = Browser(page)
    browser.client.force_login(User.objects.create(username="ann"))
    fields = browser.open()
    assert "idempotency_key" not in browser.client.session
    assert browser.send(fields).status_code == 201
    assert records()[0].scope.startswith("user:")


# -- a mistake of the developer --------------------------------------------------------------------


def refused(browser: Browser, caplog: pytest.LogCaptureFixture, *back: str) -> tuple[str, str]:
    """What a person reads who is answered 400, with these links, and what the developer does."""
    caplog.clear()
    answer = browser.send(browser.open())
    assert answer.status_code == 400
    assert orders_made() == 0
    assert links(answer) == list(back)
    assert links(answer, "Back to the previous page") == ([] if back else [BACK])
    said = [each for each in caplog.records if each.name == "django_redlock"]
    assert [each.levelno for each in said] == [logging.WARNING]
    assert f"the idempotent of {__name__}, line" in said[0].getMessage()
    shown = answer.content.decode()
    assert "<h1>We could not process this form</h1>" in shown
    return shown, said[0].getMessage()


def test_nobodys_key_is_told_to_the_developer(caplog):
    """The log says what to write; a customer reads no word of keys."""
    shown, logged = refused(Browser(forgetful, None, *SESSIONS), caplog, BACK)
    assert "Idempotency" not in shown
    assert "key" not in shown
    assert "{% idempotency_key %} starts a session" in logged
    assert "write scope=" in logged
    sessionless = Browser(page, None, "django.middleware.common.CommonMiddleware")
    _, logged = refused(sessionless, caplog, BACK)
    assert "by the SessionMiddleware" in logged


def test_a_form_without_the_tag_is_told_to_the_developer(caplog):
    """A page that was open while the site got a new version has no key either, and then has one.

    Nobody else can mend the form, so it asks who sees this twice to say so. A program is told
    itself, unlogged.
    """
    browser = Browser(without_tag)
    shown, logged = refused(browser, caplog, BACK)
    assert "key" not in shown
    assert "If you see this page again, please tell the people who run this site." in shown
    assert "{% load idempotency %}{% idempotency_key %} into the form, or key=" in logged
    caplog.clear()
    other = Browser(page, anybody(order), *SESSIONS)
    answer = other.send({"seats": "2"}, accept="application/json")
    assert "has no Idempotency-Key" in json.loads(answer.content)["detail"]
    assert [each for each in caplog.records if each.name == "django_redlock"] == []


def test_who_has_a_user_needs_no_session():
    """A user that a middleware knows by a token is whose key it is: the tag starts no session."""
    request = HttpRequest()
    request.user, request.session = User(pk=7), SessionStore()
    TEMPLATE.render({}, request)
    assert not request.session.modified


# -- while the first one runs, or has died --------------------------------------------------------


def test_a_form_that_was_sent_twice_is_not_opened_anew():
    """Nobody can say that the first one goes on: it may be dead. Loaded again, it is done once.

    A link back would lead to a form with a new key, so the page has none; it may lead to what the
    first one has made.
    """
    for options, result in (({}, []), ({"result": "/orders/"}, ["/orders/"])):
        browser = Browser(page, anybody(order, wait=0, **options), *SESSIONS)
        fields = {"seats": "2", "idempotency_key": KEY}
        with redlock(f"idempotency:{identity()}"):
            answer = browser.send(fields)
            program = browser.send(fields, accept="application/json")
        shown = answer.content.decode()
        assert answer.status_code == 409
        assert "is still being processed or was interrupted" in shown
        assert "load this page again" in shown
        assert "goes on" not in shown
        assert links(answer, "Back to the previous page") == []
        assert links(answer, "Look at the result") == result
        assert "with the same key" in json.loads(program.content)["detail"]
    assert browser.send(fields).status_code == 201
    assert orders_made() == 1


# -- Back, change, send ----------------------------------------------------------------------------


def test_a_form_that_was_changed_leads_back_to_a_fresh_one():
    """After *Back* the form has its old key: the 422 has a link to the page, whose key is new."""
    browser = Browser(page)
    fields = browser.open()
    assert browser.send(fields).status_code == 201
    answer = browser.send(fields | {"seats": "3"})
    assert answer.status_code == 422
    shown = answer.content.decode()
    assert "key" not in shown
    assert "sent before with another content" in shown
    (address,) = links(answer)
    assert browser.send(browser.open(address) | {"seats": "3"}).status_code == 201
    assert orders_made() == 2


@pytest.mark.parametrize("referer", ["", "https://elsewhere.example/buy/"])
def test_the_link_stays_on_the_site(referer):
    """Where the request names no page of it, the link is its own address."""
    browser = Browser(page, None, *SESSIONS)
    fields = browser.open()
    browser.send(fields)
    answer = browser.send(fields | {"seats": "<3>"}, referer=referer)
    assert answer.status_code == 422
    assert links(answer) == ["/buy/do/"]


def test_a_key_of_ones_own_that_names_too_little(caplog):
    """Opened again, the form would be refused for ever: nobody is asked to, the log says why."""
    browser = Browser(page, idempotent(key="buy", scope="anybody")(order), *SESSIONS)
    browser.send(browser.open())
    answer = browser.send(browser.open() | {"seats": "3"})
    assert (answer.status_code, links(answer)) == (422, [])
    assert "let key= name all that tells requests apart" in caplog.text
