"""The first page of the running demo, in a real browser; nothing is replaced.

Somebody orders by double clicks, kills the demo's nodes and brings them back, while the crowd
orders and nodes fail by the clock.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import eventually

from .running_demo import PATIENCE
from .test_seats_in_a_browser import strictly
from .test_trials_in_a_browser import press
from .visitors import Demo, Person, query

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage


Guest = Callable[..., Person]
TRIES = 8  # a second click may come when the next page is there
NUMBERS = itertools.count(1)
ALL_VOTE = " ".join(f"Node {number} votes" for number in range(1, 6))
WATCH = """() => {
    window.seen = [];
    const strip = document.getElementById("nodes");
    new MutationObserver(() => seen.push(strip.innerText)).observe(strip, { childList: true });
}"""


@pytest.fixture
def guest(come: Guest) -> Iterator[Guest]:
    """Somebody on the first page, whose browser must not complain."""
    mishaps: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        # That a click is refused is said as an error as well, and meant.
        if "the server responded with a status of" not in message.text:
            mishaps.append(f"{message.type}: {message.text}")

    def guest(*, strict: bool = False, **options: object) -> Person:
        person = come(**options)
        if strict:
            person.context.route("**/*", strictly)
        person.page.on("pageerror", lambda error: mishaps.append(str(error)))
        person.page.on("console", hear)
        person.page.goto("/")
        return person

    yield guest
    assert mishaps == []


def text(person: Person, name: str) -> str:
    """The text of an element with an id, in one line."""
    return " ".join(person.page.inner_text(f"#{name}").split())


def fill_in(person: Person, side: str) -> str:
    """Fill in the form of a side with a name that nobody else has."""
    name = f"Ann {next(NUMBERS)}"
    person.page.fill(f"#{side}_name", name)
    return name


def orders(demo: Demo, name: str) -> list[tuple[int, str]]:
    """Whether with the lock, and by which form, for all orders of a name in the database."""
    sql = "SELECT locked, click FROM box_office_order WHERE name = ? ORDER BY id"
    return query(demo, sql, name)


def refused(guest: Guest, **options: object) -> tuple[Person, str]:
    """Somebody whose second click was refused, and their name."""
    for _ in range(TRIES):
        person = guest(**options)
        name = fill_in(person, "with")
        person.double_click("Order with the lock")
        if person.page.locator(".message.error").count():
            return person, name
    pytest.fail("no second click has been refused")


def test_a_double_click_with_the_lock_is_one_order(demo, guest):
    """The page that is refused shows the order that the first click makes."""
    person, name = refused(guest)
    person.page.wait_for_selector(f"#mine-with >> text=2 seats for {name}")
    assert "It is not taken twice" in person.page.inner_text(".message")
    ((locked, _),) = orders(demo, name)
    assert locked == 1
    assert text(person, "mine-with").endswith("ordered once")
    assert text(person, "mine-without") == "You have ordered nothing here yet."
    assert "Yours among them: 1." in text(person, "all-with")
    assert len(orders(demo, name)) == 1
    assert [status for status, _ in person.refused] == [409]


def test_a_double_click_without_the_lock_is_two_orders_that_are_marked(demo, guest):
    """Both orders are of one form; words and a colour of its own say so."""
    from playwright.sync_api import TimeoutError as TooLate

    person = guest()
    for _ in range(TRIES):
        name = fill_in(person, "without")
        person.double_click("Order without the lock")
        try:
            person.page.wait_for_selector("#mine-without .odd >> text=ordered twice", timeout=4000)
        except TooLate:
            person.page.goto("/")
        else:
            break
    (first, second) = orders(demo, name)
    assert first == second
    assert first[0] == 0
    marked = person.page.locator("#mine-without .odd")
    assert f"2 seats for {name}" in marked.inner_text()
    ground = "element => getComputedStyle(element).backgroundColor"
    card = person.page.locator(".card", has=person.page.locator("#mine-without"))
    assert marked.evaluate(ground) not in {card.evaluate(ground), "rgba(0, 0, 0, 0)"}
    assert re.search(r"[1-9]\d* too many", text(person, "all-without"))
    assert " 0 too many" in text(person, "all-with")
    assert person.refused == []


def test_what_is_half_typed_outlives_what_changes(demo, guest):
    """The lists and the strip change by themselves; the form, its focus and its text do not."""
    person = guest(strict=True)
    page = person.page
    page.focus("#with_name")
    page.keyboard.type("An")
    page.evaluate("document.activeElement.form.isTheSame = true")
    for _ in range(2):
        before = text(person, "all-with")
        eventually(lambda before=before: text(person, "all-with") != before, within=PATIENCE)  # type: ignore[misc]
    assert page.evaluate(
        "(({id, value, selectionStart, form}) => [id, value, selectionStart, form.isTheSame])"
        "(document.activeElement)"
    ) == ["with_name", "An", 2, True]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    name = f"An{next(NUMBERS)}"
    page.keyboard.type(name[2:])
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.inner_text(".message") == f"Ordered for {name}: 2 seats."
    assert len(orders(demo, name)) == 1
    assert person.refused == []


def bring_all_back(person: Person) -> None:
    """Press the button until all nodes run, and wait until all vote."""
    for _ in range(6):
        if press(person, "Bring one back") == "All nodes run.":
            break
    eventually(lambda: text(person, "nodes") == ALL_VOTE, within=PATIENCE)


def test_a_node_is_killed_and_comes_back_through_the_guard(guest):
    """The strip shows it down, then waiting, then voting; the button keeps the focus."""
    person = guest()
    bring_all_back(person)
    person.page.evaluate(WATCH)
    for _ in range(TRIES):  # the wait of four seconds may be over before this page has looked
        (number,) = re.findall(r"Node (\d) was killed", press(person, "Kill a node"))
        eventually(lambda: f"Node {number} down" in text(person, "nodes"), within=PATIENCE)  # noqa: B023
        assert "a majority is 3. Orders with the lock go on." in text(person, "meaning")
        assert (
            press(person, "Bring one back")
            == f"Node {number} is back, empty: it waits before it votes."
        )
        eventually(lambda: f"Node {number} votes" in text(person, "nodes"), within=PATIENCE)  # noqa: B023
        seen = [" ".join(each.split()) for each in person.page.evaluate("seen")]
        if any(re.search(rf"Node {number} waits \d s", each) for each in seen):
            break
    else:
        pytest.fail(f"no node has been seen to wait: {seen}")
    assert person.refused == []


def test_without_a_majority_orders_are_refused_until_nodes_are_back(demo, guest):
    """Three nodes are killed: 503 in plain words, no order; without the lock it goes on."""
    person = guest()
    page = person.page
    bring_all_back(person)
    for _ in range(3):
        assert "was killed" in press(person, "Kill a node")
    eventually(lambda: "nobody gets a lock" in text(person, "meaning"), within=PATIENCE)
    assert text(person, "nodes").count("down") >= 3

    name = fill_in(person, "with")
    person.press("Order with the lock")
    told = page.inner_text(".message")
    assert "Nothing has happened." in told
    assert "Without a majority nobody can tell" in told
    assert orders(demo, name) == []

    unprotected = fill_in(person, "without")
    person.press("Order without the lock")
    assert page.inner_text(".message") == f"Ordered for {unprotected}: 2 seats."

    bring_all_back(person)
    fill_in(person, "with")
    page.fill("#with_name", name)
    person.press("Order with the lock")
    assert page.inner_text(".message") == f"Ordered for {name}: 2 seats."
    assert len(orders(demo, name)) == 1
    assert [status for status, _ in person.refused] == [503]
    page.goto("/")
    assert "Yours among them: 1." in text(person, "all-with")
