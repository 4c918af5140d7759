"""Each page of the example can be read by everybody, the refusals above all.

In light and dark, on a desk and a phone, and zoomed; axe-core finds nothing, nothing is cut off,
and the browser has nothing to complain about.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User

from django_redlock import redlock
from example_project.box_office.models import Order, Report, Run, Seat, Show
from example_project.box_office.tasks import rehearse
from tests.django.test_readable_pages import cookies_of
from tests.support.hostile import HOSTILE
from tests.support.pages.faults import Fault

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nodes", "queue", "results"),
]
Look = Callable[..., list[Fault]]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LONG = "The " + "Unpronounceable" * 6  # a title, 94 characters


@pytest.fixture
def look(auditor, live_server) -> Look:
    """Look at the page of a path for all that is wrong with it."""
    return lambda path, **options: auditor.audit(f"{live_server.url}{path}", **options)


@pytest.fixture
def seat(show: Show) -> Seat:
    """Seat B3 of a show with orders, reports, seats that are taken, and a long title."""
    Show.objects.filter(pk=show.pk).update(title=LONG, sold=7)
    show.add_seats()
    show.seats.filter(row="A").update(taken_by="Grace")
    for name in HOSTILE[:4]:
        Order.objects.create(show=show, name=name, seats=3, locked=True)
    Order.objects.create(show=show, name="Ada" * 30, seats=8)
    Report.objects.create(show=show, fence=1, began=NOON, ended=NOON, orders=5, seats=7)
    return show.seats.get(row="B", number=3)


def stand_still(page: Page) -> None:
    """Let the page look again no more.

    All threads of the live server have one connection to a database in memory: what the page looks
    at in a transaction would be in the transaction of a request beside it, or it in that.
    """
    as_it_is = page.content()

    def look(route: Route) -> None:
        if "x-look" in route.request.headers:
            route.fulfill(body=as_it_is, content_type="text/html")
        else:
            route.fallback()

    page.unroute("**/*")
    with page.expect_response(lambda response: "x-look" in response.request.headers):
        page.route("**/*", look)


def press(page: Page, name: str, *, field: str = "#id_name") -> None:
    """Fill in a name, and press a button."""
    stand_still(page)
    page.fill(field, "Ada")
    with page.expect_navigation():
        page.get_by_role("button", name=name).first.click()


pick = partial(press, name="Row B, seat 3,")
order = partial(press, name="Order with the lock", field="#with_name")


def held(show: Show) -> AbstractContextManager[Any]:
    """Hold the locks of the show's report and export, by somebody with a long name."""
    return redlock.using(label="worker-1.example.org:4711")([show.report_lock, show.export_lock])


# -- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["no shows", "free", "busy", "nobody can tell"])
def test_the_first_page(look, nodes, request, state):
    """Whatever is on, and whatever the nodes are up to."""
    if state == "no shows":
        assert look("/") == []
        return
    show = request.getfixturevalue("seat").show
    Show.objects.create(title=HOSTILE[0])
    refused = state == "nobody can tell"
    nodes.down = {0, 1, 2} if refused else set()
    with held(show) if state == "busy" else nullcontext():
        assert look("/", act=order, status=503 if refused else 200) == []


@pytest.mark.parametrize("state", ["free", "busy", "nobody can tell"])
def test_the_page_of_a_show(look, nodes, seat, state):
    """With free seats, taken ones and one's own; staff sees who is at work."""
    cookies = cookies_of(User.objects.create_superuser("staff"))
    path = seat.show.get_absolute_url()
    nodes.down = {0, 1, 2} if state == "nobody can tell" else set()
    with held(seat.show) if state == "busy" else nullcontext():
        act = {"act": pick} if state == "free" else {}
        assert look(path, cookies=cookies, **act) == []


@pytest.mark.parametrize("state", ["free", "bought"])
def test_the_page_with_what_is_asked_for_twice(look, seat, state):
    """As it comes, and the answer of its form; the title is long."""
    act = {"act": partial(press, name="Buy a ticket")} if state == "bought" else {}
    assert look(f"{seat.show.get_absolute_url()}again/", **act) == []


@pytest.mark.parametrize("state", ["begun", "over"])
def test_the_page_with_tasks(look, seat, state):
    """With a process that was killed, and another one that took over."""
    path, at = f"{seat.show.get_absolute_url()}tasks/", NOON
    common = {"show": seat.show, "task": rehearse.name, "task_id": "one", "fence": 7}
    Run.objects.create(pid=11, began=at, killed=at, **common)
    if state == "over":
        Run.objects.create(pid=12, began=at + timedelta(seconds=3), ended=at, **common)
    assert look(path) == []
