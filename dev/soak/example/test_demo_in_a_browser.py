"""Every button of the running demo, pressed in a real browser; nothing is replaced.

The site is what `make demo` starts: nodes, broker, Celery worker and gunicorn as processes, with
the crowd about and nodes dying. On a failure the web server's log is shown.
"""

from __future__ import annotations

import re
import socket

import pytest

from tests.support.waiting import eventually

from .running_demo import PATIENCE
from .visitors import SURE, TITLE, Person

EVERYWHERE = ["Box office", "Locks"]
TRIALS = "Send a task 20 times, kill its process, or take its lock away"
TWICE = "Send a form again, or start a job on two servers"


def test_a_customer_presses_every_button(come, staff):
    """A double click makes one order, or two without the lock; reports and exports are made."""
    ada, grace, edsger = come(), come(), come()
    ada.fill_in("with", "Ada")
    ada.press("Order with the lock")
    assert ada.page.inner_text(".message") == "Ordered for Ada: 2 seats."
    ada.open(TITLE)
    assert ada.orders("Ada") == ["with"]
    assert ada.offers() == (
        [*map(str, [*range(1, 9)] * 4), "Build the report"],
        [*EVERYWHERE, "All shows", "Export the orders", TRIALS, TWICE],
    )

    grace.fill_in("with", "Grace")
    grace.click_twice("Order with the lock")
    eventually(lambda: grace.orders("Grace") == ["with"], within=PATIENCE)

    for tries in range(1, 6):  # a second click may come when the next page is there
        edsger.fill_in("without", "Edsger")
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
    ada.page.wait_for_selector("h1:has-text('twice, fast')")
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
        return "perhaps for somebody else" in grace.page.content()

    eventually(sees_refusal, within=PATIENCE)
    assert "click" not in grace.page.inner_text(".message")
    assert label not in grace.page.content()


def test_staff_presses_every_button(staff):
    """The page of the locks looks again and searches; forms add, change and delete."""
    page = staff.page
    page.goto("/")
    page.get_by_role("link", name="Locks", exact=True).click()
    page.get_by_role("link", name="Look again").click()
    page.fill("#searchbar", "no such name")
    staff.press("Search")
    page.wait_for_selector("text=Nothing that is held has")

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
