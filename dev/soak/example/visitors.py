"""People with browsers on the site of a running demo."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.django.test_browser import DESK

from .running_demo import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Response

TITLE = "Three Sisters"  # a show that the crowd does not know
SURE = "Yes, I\N{RIGHT SINGLE QUOTATION MARK}m sure"


class Demo(NamedTuple):
    """A running demo, as it says itself where it is."""

    site: str
    user: str
    password: str
    home: Path


def query(demo: Demo, sql: str, *values: object, timeout: float = 5.0) -> list[Any]:
    """What the database of a demo says; it waits ``timeout`` seconds for another writer."""
    (database,) = demo.home.glob("redlock-demo-*/box_office.sqlite3")
    with closing(sqlite3.connect(database, timeout=timeout)) as connection:
        return connection.execute(sql, values).fetchall()


class Person:
    """Somebody in front of a browser of their own, and what the site refused them."""

    def __init__(self, browser: Browser, demo: Demo, **options: Any) -> None:
        self.demo = demo
        self.context = browser.new_context(
            base_url=demo.site, viewport={"width": DESK[0], "height": DESK[1]}, **options
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

    def fill_in(self, side: str, name: str) -> None:
        """Fill in the form of a side of the first page, for the show of the test."""
        self.page.goto("/")
        self.page.fill(f"#{side}_name", name)
        self.page.select_option(f"#{side}_show", label=TITLE)

    def click_twice(self, name: str) -> None:
        """Click a button of the first page twice, and come to the page of the show."""
        self.double_click(name)
        self.open(TITLE)

    def double_click(self, name: str) -> None:
        """Click a button, and where it was again while the first request is under way."""
        box = self.page.get_by_role("button", name=name, exact=True).bounding_box()
        assert box is not None
        point = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        with self.page.expect_request(lambda request: request.method == "POST"):
            self.page.mouse.click(*point)
        self.page.mouse.click(*point)
        self.page.wait_for_selector(".message")

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
        self.page.wait_for_selector("#redlock-live .redlock-banner")

    def save(self, name: str = "Save") -> None:
        """Press a button of an admin form; it worked."""
        self.press(name)
        self.page.wait_for_selector(".messagelist .success")
