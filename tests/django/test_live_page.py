"""The admin page keeps itself up to date, in a real browser, with real nodes and leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_redlock import admin as page_of_locks
from tests.support.waiting import eventually

from .test_browser import DESK, PHONE, Visitor, elsewhere, nodes_of_the_page, visit  # noqa: F401

pytestmark = pytest.mark.slow

EVERY = 0.25  # seconds from an answer to the next request
LEFT = ".redlock-left [data-redlock-left]"


@pytest.fixture(autouse=True)
def often(monkeypatch) -> None:
    """The page asks again soon, so that a test need not wait."""
    monkeypatch.setattr(page_of_locks, "REFRESH", EVERY)


def stale(visitor: Visitor) -> None:
    """Wait until the page says that it is not up to date."""
    visitor.page.wait_for_selector("#redlock-stale", state="visible")


def current(visitor: Visitor) -> None:
    """Wait until the page is up to date again."""
    visitor.page.wait_for_selector("#redlock-stale", state="hidden")


def forgive(visitor: Visitor) -> None:
    """The browser tells of answers that are none; they were meant."""
    assert all("Failed to load resource" in each for each in visitor.mishaps)
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
    before = visitor.page.inner_text(".redlock-as-of time")
    with elsewhere("a", ttl=60) as release:
        visitor.page.wait_for_selector(".redlock-locks th >> text=a")
        release()
    visitor.page.wait_for_selector("text=No lock is held.")
    eventually(lambda: visitor.page.inner_text(".redlock-as-of time") != before)
    current(visitor)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [DESK, PHONE])
def test_who_reads_or_types_is_not_disturbed(visit, size):  # noqa: F811
    """A text that is typed stays; a selection, or a link that has the focus, stops the reloads."""
    with elsewhere("b", ttl=60):
        visitor = visit(size)
        page = visitor.page
        page.evaluate(
            """() => {
                document.getElementById("searchbar").value = "half-ty";
                getSelection().selectAllChildren(document.querySelector(".redlock-nodes caption"));
            }"""
        )
        state = """() => [
            String(getSelection()), document.getElementById("searchbar").value,
            document.querySelectorAll(".redlock-locks tbody tr").length,
        ]"""
        with elsewhere("a", ttl=60):
            other = visit(size)
            other.page.wait_for_selector(".redlock-locks th >> text='a'")
            assert page.evaluate(state) == ["NODES", "half-ty", 1]
            page.evaluate("() => getSelection().removeAllRanges()")
            page.wait_for_selector(".redlock-locks th >> text='a'")
            link = page.locator(".redlock-locks th a").first
            page.keyboard.press("Tab")  # so that the next focus is one by keyboard
            link.focus()
            link.evaluate("element => { element.isTheSame = true; }")
        other.page.wait_for_function(
            "() => document.querySelectorAll('.redlock-locks tbody tr').length === 1"
        )
        assert page.evaluate("document.activeElement.isTheSame")
        page.locator("#searchbar").focus()
        page.wait_for_function(
            "() => document.querySelectorAll('.redlock-locks tbody tr').length === 1"
        )
        assert page.evaluate(state)[1] == "half-ty"


@pytest.mark.nightly
def test_a_page_that_is_not_up_to_date_says_so_and_goes_on(visit):  # noqa: F811
    """Without a network or a session, with an error of the server; then it is asked again."""
    with elsewhere("a", ttl=60):
        visitor = visit()
        cookies = visitor.context.cookies()
        visitor.context.clear_cookies()
        stale(visitor)
        assert visitor.names() == ["a"]
        visitor.context.add_cookies(cookies)  # as a login in another tab does
        current(visitor)
        visitor.context.set_offline(True)
        stale(visitor)
        visitor.context.set_offline(False)
        current(visitor)
        with failing():
            stale(visitor)
        current(visitor)
        visitor.context.clear_cookies()
        stale(visitor)
        visitor.page.click("text=Look again")
        visitor.page.wait_for_selector("#id_username")
    forgive(visitor)


@pytest.mark.nightly
def test_a_tab_that_nobody_sees_asks_for_nothing(visit):  # noqa: F811
    """It asks again when somebody looks at it."""
    visitor = visit()
    visitor.page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true})"
    )
    with elsewhere("a", ttl=60):
        other = visit()
        other.page.wait_for_selector(".redlock-locks th >> text='a'")
        assert visitor.names() == []
        visitor.page.evaluate("delete document.hidden")
        visitor.page.wait_for_selector(".redlock-locks th >> text='a'")


def test_the_page_of_one_lock_is_alive_and_leaves_its_form_alone(visit):  # noqa: F811
    """Seconds run down and begin anew, a release is seen, and what somebody types stays."""
    with elsewhere("report:7", ttl=6, renew=True) as release:
        visitor = visit()
        page = visitor.page
        visitor.follow("text=report:7")
        assert page.inner_text("h1.redlock-name") == "report:7"
        assert page.title().startswith("report:7 | ")
        assert not page.is_visible("#id_now")
        page.fill("#id_reason", "hangs since noon")
        page.evaluate("window.notReloaded = true")
        for expression in ("now < 5", "now > 5.2"):  # it was renewed, a third of its ttl later
            page.wait_for_function(
                f"left => {{ const now = Number(document.querySelector(left).textContent);"
                f" return {expression}; }}",
                arg=LEFT,
            )
        page.click("summary")
        assert page.is_visible("#id_now")
        release()
        page.wait_for_selector("text=nobody holds 'report:7'")
        assert page.input_value("#id_reason") == "hangs since noon"
        assert page.is_visible("#id_now")
        assert page.evaluate("window.notReloaded")


@pytest.mark.nightly
def test_what_is_wrong_with_a_form_stays(visit):  # noqa: F811
    """The page brings its lock up to date, and not the answer to who sent the form."""
    with elsewhere("report:7", ttl=60):
        visitor = visit()
        page = visitor.page
        visitor.follow("text=report:7")
        page.evaluate("document.querySelector('[name=seen]').value = 'forged'")
        visitor.follow("text=Take it away")
        before = page.inner_text(LEFT)
        page.wait_for_function(
            "([left, before]) => document.querySelector(left).textContent !== before",
            arg=[LEFT, before],
        )
        page.wait_for_timeout(3 * EVERY * 1000)
        assert "Look again: this has changed" in page.inner_text("[role=alert]")
