"""Every button of the running demo, pressed in a real browser; nothing is replaced.

The site is what `make demo` starts: nodes, broker, Celery worker and gunicorn as processes, with
the crowd about and nodes dying. On a failure the web server's log is shown.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from .running_demo import SECONDS, await_line, demo_home, started, web_log
from .test_browser import CHROMIUM, DESK, QUIETLY, why_not
from .waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Response

pytestmark = pytest.mark.slow

PATIENCE = 4 * SECONDS
TITLE = "Three Sisters"  # a show that the crowd does not know
SURE = "Yes, I\N{RIGHT SINGLE QUOTATION MARK}m sure"
EVERYWHERE = ["Box office", "Locks"]


class Demo(NamedTuple):
    """A running demo, as it says itself where it is."""

    site: str
    user: str
    password: str
    home: Path


class Person:
    """Somebody in front of a browser of their own, and what the site refused them."""

    def __init__(self, browser: Browser, demo: Demo) -> None:
        self.demo = demo
        self.context = browser.new_context(
            base_url=demo.site, viewport={"width": DESK[0], "height": DESK[1]}
        )
        self.context.set_default_timeout(PATIENCE * 1000)
        self.page: Page = self.context.new_page()
        self.refused: list[tuple[int, str]] = []
        self.page.on("response", self._note)

    def _note(self, response: Response) -> None:
        if response.status >= 400:
            self.refused.append((response.status, response.url.removeprefix(self.demo.site)))

    def open(self, title: str) -> None:
        """Come to the page of a show from the start page."""
        self.page.goto("/")
        self.page.get_by_role("link", name=title, exact=True).click()
        self.page.wait_for_selector(f"h1:text-is('{title}')")

    def press(self, name: str) -> None:
        """Press a button and wait for the page that comes."""
        with self.page.expect_navigation():
            self.page.get_by_role("button", name=name, exact=True).click()

    def click_twice(self, name: str) -> None:
        """Click a button, and where it was again while the first request is under way."""
        box = self.page.get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None
        place = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        with self.page.expect_request(lambda request: request.method == "POST"):
            self.page.mouse.click(*place)
        self.page.mouse.click(*place)
        self.page.wait_for_selector(".message, h1:text-is('One moment, please')")
        self.open(TITLE)

    def offers(self) -> tuple[list[str], list[str]]:
        """The names of the buttons and of the links on the page."""
        buttons = self.page.get_by_role("button").all_inner_texts()
        return buttons, self.page.get_by_role("link").all_inner_texts()

    def orders(self, name: str) -> list[str]:
        """Whether with or without the lock, for each order of this name on the page."""
        self.page.reload()
        rows = self.page.locator("tbody tr").filter(has_text=name)
        return [row.split()[-1] for row in rows.all_inner_texts()]

    def log_in(self) -> None:
        """From any page of the site to the locks, by the login."""
        self.page.get_by_role("link", name="Locks", exact=True).click()
        self.page.fill("#id_username", self.demo.user)
        self.page.fill("#id_password", self.demo.password)
        self.press("Log in")
        self.page.wait_for_selector(".redlock-banner")

    def save(self, name: str = "Save") -> None:
        """Press a button of an admin form; it worked."""
        self.press(name)
        self.page.wait_for_selector(".messagelist .success")


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A running demo."""
    missing = why_not()
    if missing and os.environ.get("CI"):
        pytest.fail(f"the demo must be tried in a real browser: {missing}")
    if missing:
        pytest.skip(f"THE DEMO WAS NOT TRIED IN A REAL BROWSER: {missing}")
    with demo_home() as home, started(home) as process:
        site = await_line(process, "Site").split()[1]
        _, _, user, _, password = await_line(process, "Log in").split()
        yield Demo(site, user, password, home)
        assert process.poll() is None


@pytest.fixture
def come(demo: Demo) -> Iterator[Callable[[], Person]]:
    """Come to the site with a browser of your own. Whatever happens, the site must not fail."""
    from playwright.sync_api import sync_playwright

    people: list[Person] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIETLY)

        def come() -> Person:
            people.append(Person(browser, demo))
            return people[-1]

        yield come
        for person in people:
            person.context.close()
        browser.close()
    log = web_log(demo.home)
    print(f"The web server's log:\n{log}")  # pytest shows it if the test has failed
    for fault in ("Internal Server Error", "Not Found", "Traceback"):
        assert fault not in log


@pytest.fixture
def staff(come: Callable[[], Person]) -> Iterator[Person]:
    """Somebody of the staff, who has put a show of their own on stage."""
    person = come()
    person.page.goto("/")
    person.log_in()
    person.page.goto("/admin/box_office/show/add/")
    person.page.fill("#id_title", TITLE)
    person.save()
    yield person
    person.page.goto("/admin/box_office/show/")
    person.page.get_by_role("link", name=TITLE, exact=True).first.click()
    person.page.get_by_role("link", name="Delete", exact=True).click()
    person.save(SURE)


def test_a_customer_presses_every_button(come, staff):
    """A double click makes one order, or two without the lock; reports and exports are made."""
    ada, grace, edsger = come(), come(), come()
    for person in (ada, grace, edsger):
        person.open(TITLE)
    assert ada.offers() == (
        ["Order", "Order without the lock", "Build the report"],
        [*EVERYWHERE, "All shows", "Export the orders"],
    )

    ada.page.fill("#id_name", "Ada")
    ada.press("Order")
    assert ada.page.inner_text(".message") == "Ordered for Ada: 2 seats."
    assert ada.orders("Ada") == ["with"]

    grace.page.fill("#id_name", "Grace")
    grace.click_twice("Order")
    eventually(lambda: grace.orders("Grace") == ["with"], within=PATIENCE)

    edsger.page.fill("#id_name", "Edsger")
    for tries in range(1, 6):  # a second click may come when the next page is there
        edsger.click_twice("Order without the lock")
        eventually(lambda tries=tries: len(edsger.orders("Edsger")) >= tries, within=PATIENCE)  # type: ignore[misc]
        if len(edsger.orders("Edsger")) > tries:
            break
    else:
        pytest.fail("no double click has made two orders without the lock")
    count = 2 + len(edsger.orders("Edsger"))

    ada.press("Build the report")
    assert ada.page.inner_text(".message") == "A report was asked for."
    eventually(lambda: reported(ada) == f"counted {count} orders", within=PATIENCE)

    with ada.page.expect_download() as download:
        ada.page.get_by_role("link", name="Export the orders").click()
    lines = download.value.path().read_text().splitlines()
    names = sorted(line.split(",")[1] for line in lines[1:])
    assert names == ["Ada", *["Edsger"] * (count - 2), "Grace"]

    ada.page.get_by_role("link", name="All shows").click()
    ada.page.wait_for_selector("h1:text-is('On stage')")
    ada.page.get_by_role("link", name="Box office").click()
    assert ada.refused == edsger.refused == []
    assert staff.refused == []


def reported(person: Person) -> str:
    """What the last report of the show on the page counted."""
    person.page.reload()
    found = re.search(r"counted \d+ orders?", person.page.inner_text(".running"))
    return found[0] if found else ""


def test_two_visitors_learn_nothing_of_each_other(come, staff):
    """Who is refused for somebody else's export is told so; customers see no host or process."""
    ada, grace = come(), come()
    label = f"{socket.gethostname()}:"
    for person in (ada, grace):
        person.open(TITLE)
    staff.open(TITLE)
    seen: dict[str, str] = {}

    def refused() -> bool:
        """Both press at once; the second is refused if it comes while the first is sent."""
        with ada.page.expect_download() as download:
            ada.page.get_by_role("link", name="Export the orders").click()
        staff.page.reload()
        seen["staff"] = staff.page.inner_text(".running")
        grace.page.goto(grace.page.url)
        seen["customer"] = grace.page.inner_text(".running")
        answer = grace.context.request.get(f"{grace.page.url}orders.csv")
        seen["refusal"] = answer.text()
        download.value.path()
        return answer.status == 409 and "exported" in seen["customer"] and label in seen["staff"]

    eventually(refused, within=PATIENCE)
    assert "The orders are being exported" in seen["customer"]
    assert label not in seen["customer"] + seen["refusal"]

    def sees_refusal() -> bool:
        with ada.page.expect_download() as download:
            ada.page.get_by_role("link", name="Export the orders").click()
        try:
            grace.page.goto(f"{ada.page.url}orders.csv")
        except Exception as error:  # noqa: BLE001 - of Playwright, which has no class for it
            assert "Download is starting" in str(error)  # noqa: PT017 - it came too late
        download.value.path()
        return "One moment, please" in grace.page.content()

    eventually(sees_refusal, within=PATIENCE)
    words = grace.page.inner_text("main")
    assert "perhaps for somebody else" in words
    assert "click" not in words
    assert label not in words
    grace.page.get_by_role("link", name="Back to the show").click()
    grace.page.wait_for_selector(f"h1:text-is('{TITLE}')")


def test_staff_presses_every_button(staff):
    """The page of the locks looks again and searches; forms add, change and delete."""
    page = staff.page
    page.goto("/")
    page.get_by_role("link", name="Locks", exact=True).click()
    page.get_by_text("Look again").click()
    page.get_by_text("every 5 s").click()
    page.get_by_text("stop").click()
    page.fill("#searchbar", "no such name")
    staff.press("Search")
    page.wait_for_selector("text=0 found")

    page.goto("/admin/box_office/order/add/")
    page.select_option("#id_show", label=TITLE)
    for number, button in enumerate(["Save and add another", "Save and continue editing", "Save"]):
        if number < 2:
            page.select_option("#id_show", label=TITLE)
        page.fill("#id_name", f"Ada {number}")
        staff.save(button)
    page.fill("#searchbar", "Ada")
    staff.press("Search")
    page.check("#action-toggle")
    page.select_option("select[name=action]", "delete_selected")
    staff.press("Run" if page.get_by_role("button", name="Run").count() else "Go")
    staff.save(SURE)

    page.get_by_role("button", name="Log out").click()
    page.wait_for_selector("text=Logged out")
    page.goto("/")
    staff.log_in()
    assert staff.refused == []
