"""The admin page keeps itself up to date, in a real browser, with real nodes and leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from django.core.exceptions import PermissionDenied
from django.test import override_settings

from django_redlock import admin as page_of_locks
from django_redlock.admin import LockKeyAdmin
from tests.support.waiting import eventually

from .test_admin import PAGE
from .test_browser import DESK, PHONE, Visitor, elsewhere, nodes_of_the_page, visit  # noqa: F401

if TYPE_CHECKING:
    from playwright.sync_api import Request

pytestmark = pytest.mark.slow

EVERY = 0.25  # seconds from an answer to the next request
LEFT = ".redlock-left [data-redlock-left]"
LONG = "b" * 512  # a name that scrolls in its cell


@pytest.fixture(autouse=True)
def often(monkeypatch) -> None:
    """The page asks again soon, so that a test need not wait."""
    monkeypatch.setattr(page_of_locks, "REFRESH", EVERY)


class Asked:
    """Counts the pages that a visitor's script has asked for."""

    def __init__(self, visitor: Visitor) -> None:
        self.count = 0
        self.page = visitor.page
        self.page.on("request", self._note)

    def _note(self, request: Request) -> None:
        self.count += request.resource_type == "fetch" and PAGE in request.url

    def again(self, times: int = 1) -> None:
        """Wait until it has asked so often, and was answered."""
        for _ in range(times):
            with self.page.expect_response(lambda answer: PAGE in answer.url):
                pass


def told(visitor: Visitor) -> str:
    """What the page says of itself."""
    return visitor.page.inner_text("[data-redlock-told]")


def says(visitor: Visitor, text: str) -> None:
    """Wait until the page says so of itself."""
    visitor.page.wait_for_selector(f"[data-redlock-told]:has-text('{text}')")


def forgive(visitor: Visitor, text: str = "Failed to load resource") -> None:
    """The browser tells of answers that are none; they were meant."""
    assert all(text in each for each in visitor.mishaps)
    visitor.mishaps.clear()


@contextmanager
def failing() -> Iterator[None]:
    """While the block runs, the server has an error of its own."""

    def fail(*_: object) -> None:
        raise RuntimeError

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(page_of_locks, "look", fail)
        yield


@pytest.mark.nightly
def test_a_renewed_lease_begins_anew(visit):  # noqa: F811
    """Seconds that have run down go up when the holder has renewed; nothing is loaded anew."""
    with elsewhere("report:7", ttl=6, renew=True):
        visitor = visit()
        visitor.page.evaluate("window.notReloaded = true")
        visitor.page.wait_for_function(
            """left => {
                const now = Number(document.querySelector(left).textContent);
                window.lowest = Math.min(window.lowest ?? now, now);
                return now > window.lowest + 0.8;
            }""",
            arg=LEFT,
        )
        assert visitor.page.evaluate("window.notReloaded")
        assert visitor.names() == ["report:7"]


def test_locks_come_and_go_and_the_time_of_the_page_goes_on(visit):  # noqa: F811
    """A lock that is taken gets a row, one that is released loses it; the page says as of when."""
    visitor = visit()
    visitor.page.wait_for_selector("text=No lock is held.")
    before = visitor.page.inner_text(".redlock-again time")
    with elsewhere("a", ttl=60) as release:
        visitor.page.wait_for_selector(".redlock-locks th >> text=a")
        release()
    visitor.page.wait_for_selector("text=No lock is held.")
    eventually(lambda: visitor.page.inner_text(".redlock-again time") != before)
    assert told(visitor) == f"every {EVERY} s"


@pytest.mark.nightly
@pytest.mark.parametrize("size", [DESK, PHONE])
def test_focus_selection_and_scrolling_outlive_a_refresh(visit, size):  # noqa: F811
    """A row above is added and goes; the reader stays where the reader is."""
    with elsewhere(LONG, ttl=60):
        visitor = visit(size)
        page = visitor.page
        scroller = page.locator(".redlock-long[tabindex]", has_text=LONG)  # the script has begun
        scroller.focus()
        scroller.evaluate(
            """element => {
                element.scrollTop = 20;
                element.isTheSame = true;
                getSelection().selectAllChildren(document.querySelector(".redlock-nodes caption"));
                document.getElementById("searchbar").value = "half-ty";
                scrollTo(0, 40);
            }"""
        )
        state = """() => [
            document.activeElement.isTheSame, document.activeElement.scrollTop,
            String(getSelection()), document.getElementById("searchbar").value, scrollY,
        ]"""
        before = page.evaluate(state)
        assert before[:4] == [True, 20, "NODES", "half-ty"]
        with elsewhere("a", ttl=60):
            page.wait_for_selector(".redlock-locks th >> text='a'")
            assert page.evaluate(state)[:4] == before[:4]
        page.wait_for_function(
            "() => document.querySelectorAll('.redlock-locks tbody tr').length === 1"
        )
        assert page.evaluate(state) == before


@pytest.mark.nightly
def test_the_page_can_be_paused(visit):  # noqa: F811
    """By keyboard; its seconds stay those of the time that it names, also when loaded anew."""
    with elsewhere("a", ttl=60) as release:
        visitor, other = visit(), visit()
        button = visitor.page.get_by_role("button", name="Pause")
        button.focus()
        visitor.page.keyboard.press("Enter")
        says(visitor, "paused")
        Asked(other).again(2)
        asked, seconds = Asked(visitor), visitor.seconds()
        release()
        other.page.wait_for_selector("text=No lock is held.")
        Asked(other).again(2)
        assert asked.count == 0
        assert visitor.seconds() == seconds
        assert visitor.names() == ["a"]
        visitor.page.click("text=Look again")
        visitor.page.wait_for_selector("text=No lock is held.")
        assert told(visitor) == "paused"
        visitor.page.get_by_role("button", name="Go on").press("Enter")
        says(visitor, "every")
        Asked(visitor).again(2)
        assert visitor.page.evaluate("document.activeElement.textContent") == "Pause"


@pytest.mark.nightly
def test_a_session_that_has_ended_is_told_and_a_new_one_goes_on(visit):  # noqa: F811
    """The page says why it does not change, and goes on by itself after a login."""
    with elsewhere("a", ttl=60):
        visitor = visit()
        cookies = visitor.context.cookies()
        visitor.context.clear_cookies()
        says(visitor, "Your session has ended")
        before = visitor.seconds()
        visitor.page.wait_for_timeout(1500)  # longer than the seconds are counted apart
        assert visitor.seconds() == before
        assert visitor.names() == ["a"]
        visitor.context.add_cookies(cookies)  # as a login in another tab does
        says(visitor, "every")
        visitor.context.clear_cookies()
        says(visitor, "Your session has ended")
        visitor.page.click("text=Look again")
        visitor.page.wait_for_selector("#id_username")
    forgive(visitor)


@pytest.mark.nightly
def test_a_server_that_does_not_answer_is_told_and_asked_again(visit, monkeypatch):  # noqa: F811
    """A browser without a network, an error of the server, and a right that was taken away."""
    visitor = visit()
    visitor.context.set_offline(True)
    says(visitor, "The server does not answer.")
    visitor.context.set_offline(False)
    says(visitor, "every")

    with failing():
        says(visitor, "The server has answered 500.")
    says(visitor, "every")

    def refuse(*_: object) -> None:
        raise PermissionDenied

    with monkeypatch.context() as refusing:
        refusing.setattr(LockKeyAdmin, "changelist_view", refuse)
        refusing.setattr("django_redlock.admin.look", refuse)
        says(visitor, "You may not see the locks any more.")
    says(visitor, "every")
    forgive(visitor)


@pytest.mark.nightly
def test_the_script_speaks_the_language_of_the_page(visit):  # noqa: F811
    """All that it says stands in the page; figures are as it can read them."""
    visitor = visit()
    with override_settings(LANGUAGE_CODE="de"):
        visitor.page.reload()
        says(visitor, f"alle {EVERY} s")
        Asked(visitor).again(2)
        visitor.page.get_by_role("button", name="Anhalten").press("Enter")
        says(visitor, "angehalten")
        visitor.page.get_by_role("button", name="Weiter").press("Enter")
        says(visitor, "alle")
        visitor.context.set_offline(True)
        says(visitor, "Der Server antwortet nicht.")
        visitor.context.set_offline(False)
        says(visitor, "alle")

        with failing():
            says(visitor, "Der Server hat mit 500 geantwortet.")
        visitor.context.clear_cookies()
        says(visitor, "Ihre Sitzung ist beendet.")
    forgive(visitor)
