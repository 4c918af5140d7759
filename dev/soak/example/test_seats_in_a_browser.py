"""The plan of seats of the running demo, in a real browser; nothing is replaced.

One process of the web server is frozen (SIGSTOP) while its customer pays: the database and both
customers' pages must agree on who has the seat.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.support.waiting import eventually

from . import visitors
from .running_demo import PATIENCE, processes
from .visitors import TITLE, Demo, Person

if TYPE_CHECKING:
    from playwright.sync_api import Route


Come = Callable[..., Person]
OURS = ("style-src", "img-src", "script-src", "connect-src", "form-action")
STRICT = "; ".join(["default-src 'none'", *(f"{each} 'self'" for each in OURS)])
MOMENT = 0.25  # seconds in which another process's write is over
query = partial(visitors.query, timeout=MOMENT)


def customer(come: Come, name: str, **options: object) -> Person:
    """Somebody who has typed a name beside the plan."""
    person = come(**options)
    person.open(TITLE)
    person.page.fill("#id_name", name)
    return person


def strictly(route: Route) -> None:
    """Send what the site answers, with a policy: nothing inline, nothing from elsewhere."""
    answer = route.fetch(max_redirects=0)
    headers = {**answer.headers, "content-security-policy": STRICT}
    route.fulfill(response=answer, headers=headers)


def plan(person: Person, seat: str) -> Any:
    """The button of a seat, as "C4"."""
    return person.page.get_by_role("button", name=f"Row {seat[0]}, seat {seat[1:]},")


def key(person: Person, seat: str) -> int:
    """The primary key of a seat that is free."""
    found = re.search(r"/seats/(\d+)/", plan(person, seat).get_attribute("formaction"))
    assert found
    return int(found[1])


def message(person: Person) -> str:
    """What the site says."""
    return person.page.inner_text(".message")


def test_a_seat_is_taken_by_keyboard_under_a_strict_policy(come, staff):
    """Tab and Enter buy a seat; nothing on the page needs a script or a style of its own."""
    ada, broken = come(), []

    ada.context.route("**/*", strictly)
    ada.page.on("console", lambda message: broken.append(message.text))
    ada.open(TITLE)
    ada.page.focus("#id_name")
    ada.page.keyboard.type("Ada")
    ada.page.keyboard.press("Enter")  # buys no seat
    for _ in range(3):
        ada.page.keyboard.press("Tab")
    label = ada.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label == "Row A, seat 3, 32 €"
    assert ada.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    with ada.page.expect_navigation():
        ada.page.keyboard.press("Enter")
    assert ada.page.inner_text(".message") == "Seat A3 is yours."
    assert plan(ada, "A3").get_attribute("aria-label") == "Row A, seat 3, yours"
    assert plan(ada, "A3").is_disabled()
    assert ada.page.inner_text(".plan caption") == "1 of 32 seats is taken"
    assert ada.orders("Ada") == ["with"]
    assert (ada.refused, broken) == ([], [])


def test_a_seat_is_refused_to_the_second_customer(come, staff):
    """Grace, whose page is older than Ada's purchase, reads that the seat is taken."""
    ada = customer(come, "Ada")
    grace = customer(come, "Grace", java_script_enabled=False)  # so her page does not refresh
    ada.press("Row B, seat 5, 28 €")
    assert message(ada) == "Seat B5 is yours."
    grace.press("Row B, seat 5, 28 €")
    assert message(grace).startswith("Seat B5 is taken.")
    assert plan(grace, "B5").get_attribute("aria-label") == "Row B, seat 5, taken"
    assert [status for status, _ in grace.refused] == [409]
    staff.page.goto("/admin/box_office/seat/?q=Ada")
    staff.page.get_by_role("link", name="B5", exact=True).click()
    fence = staff.page.locator(".field-fence .readonly").inner_text()
    assert int(fence) > 0
    assert staff.page.locator("[name=fence]").count() == 0


# -- a frozen process -----------------------------------------------------------------------------


@contextmanager
def nodes(demo: Demo) -> Iterator[list[redis.Redis]]:
    """A client of each server of the demo."""
    commands = " ".join(processes(demo.home).values())
    ports = sorted(set(re.findall(r"-server 127\.0\.0\.1:(\d+)", commands)))
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(redis.Redis(port=int(port), socket_timeout=MOMENT)))
            for port in ports
        ]


def holder(servers: list[redis.Redis], name: str) -> int | None:
    """The process that has a lock, by the label in its keys."""
    for server in servers:
        try:
            value = server.get(f"redlock:lock:{name}")
        except redis.RedisError:  # the demo has killed or hung this one
            continue
        if isinstance(value, bytes):
            return int(value.decode().split(":")[3])
    return None


LATE = -1  # in place of a process: the seat is sold already


def frozen_while_paying(person: Person, seat: str) -> int | None:
    """Let somebody press a seat, and freeze the process that serves it after the claim.

    None if it was too late, or if that process was just writing for others, who would wait for it.
    """
    number = key(person, seat)
    with nodes(person.demo) as servers:
        plan(person, seat).evaluate("button => { setTimeout(() => button.click()) }")

        def claimed() -> int | None:
            ((fence, taken_by),) = query(
                person.demo, "SELECT fence, taken_by FROM box_office_seat WHERE id = ?", number
            )
            if taken_by:
                return LATE
            return holder(servers, f"seat:{number}") if fence else None

        pid = eventually(claimed, within=PATIENCE)
    if pid is None or pid == LATE:
        return None
    os.kill(pid, signal.SIGSTOP)
    try:
        query(person.demo, "BEGIN IMMEDIATE")
        ((taken_by,),) = query(
            person.demo, "SELECT taken_by FROM box_office_seat WHERE id = ?", number
        )
    except sqlite3.OperationalError:
        taken_by = "unknown"
    if taken_by:
        os.kill(pid, signal.SIGCONT)
        return None
    return pid


def test_a_frozen_process_does_not_sell_the_seat_again(come, staff):
    """Ada's process sleeps past its lease while she pays; Grace gets the seat, and keeps it."""
    for seat in ("C1", "C2", "C3", "C4", "C5"):
        ada = customer(come, "Ada")
        pid = frozen_while_paying(ada, seat)
        if pid is not None:
            break
    else:
        pytest.fail("no process was frozen in time")
    try:
        number = key(grace := customer(come, "Grace"), seat)

        def bought() -> bool:
            """Grace tries again, as the page says, until Ada's lock has expired."""
            grace.open(TITLE)
            grace.page.fill("#id_name", "Grace")
            with grace.page.expect_navigation():
                plan(grace, seat).click()
            return message(grace) == f"Seat {seat} is yours."

        eventually(bought, within=PATIENCE)
    finally:
        os.kill(pid, signal.SIGCONT)
    ada.page.wait_for_selector(f".message >> text=Seat {seat} was not sold to you")
    assert "the seat refused it" in message(ada)
    assert query(
        ada.demo,
        "SELECT taken_by FROM box_office_seat WHERE id = ?",
        number,
    ) == [("Grace",)]
    grace.open(TITLE)
    assert plan(grace, seat).get_attribute("aria-label").endswith("yours")
    assert grace.orders("Grace") == ["with"]
