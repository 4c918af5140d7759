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

from django_redlock import LeaseLost, redlock
from example_project.box_office import outside, seat_views, trials
from example_project.box_office.models import Order, Report, Run, Seat, Sending, Show
from tests.django.test_readable_pages import cookies_of
from tests.support.hostile import HOSTILE
from tests.support.looked_at import stop_clocks
from tests.support.pages.faults import Fault

from .test_seats import take, while_it_sleeps
from .visitors import visitor

if TYPE_CHECKING:
    from playwright.sync_api import Page

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
    """Let the page of a show refresh no more.

    All threads of the live server have one connection to a database in memory: what the page looks
    at in a transaction would be in the transaction of a request beside it, or it in that.
    """
    as_it_is = page.content()
    page.unroute("**/now/")
    with page.expect_response("**/now/"):
        page.route("**/now/", lambda route: route.fulfill(body=as_it_is, content_type="text/html"))


def press(page: Page, name: str, *, field: str = "#id_name", text: str = "Ada") -> None:
    """Fill in a name, and press a button."""
    stand_still(page)
    page.fill(field, text)
    with page.expect_navigation():
        page.get_by_role("button", name=name).first.click()


order = partial(press, name="Order")
pick = partial(press, name="Row B, seat 3,", field="#seat_name")


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
    nodes.down = {0, 1, 2} if state == "nobody can tell" else set()
    with held(show) if state == "busy" else nullcontext():
        assert look("/") == []


@pytest.mark.parametrize("state", ["free", "busy", "nobody can tell"])
def test_the_page_of_a_show(look, nodes, seat, state):
    """With free seats, taken ones and one's own; staff sees who is at work."""
    cookies = cookies_of(User.objects.create_superuser("staff"))
    path = seat.show.get_absolute_url()
    nodes.down = {0, 1, 2} if state == "nobody can tell" else set()
    with held(seat.show) if state == "busy" else nullcontext():
        act = {"act": pick} if state == "free" else {}
        assert look(path, cookies=cookies, **act) == []


@pytest.mark.parametrize("act", [order, pick])
def test_a_form_that_is_filled_in_wrongly(look, seat, act):
    """What is wrong is told beside the field."""
    wrongly = partial(act, text=" ")
    assert look(seat.show.get_absolute_url(), act=wrongly, status=422) == []


def rehearse(show: Show) -> None:
    """Both trials under way: the process of a rehearsal was killed, and relieved."""
    trials.send_copies(show)
    trials.start_rehearsal(show)
    sending = Sending.objects.filter(sent=1).last()
    assert sending is not None
    sending.at = NOON
    sending.save()
    common = {"show": show, "task_id": sending.task_ids[0], "worker": "celery@host"}
    at = [NOON + timedelta(seconds=each) for each in (0.1, 1.5, 4.0, 12.0)]
    Run.objects.create(pid=11, fence=3, began=at[0], killed=at[1], **common)
    Run.objects.create(pid=12, fence=4, began=at[2], ended=at[3], **common)


@pytest.mark.parametrize("state", ["idle", "busy", "nobody can tell"])
def test_the_page_with_tasks(look, nodes, seat, state):
    """Before, while and after tasks run, and while nobody can tell."""
    if state != "idle":
        rehearse(seat.show)
    nodes.down = {0, 1, 2} if state == "nobody can tell" else set()
    assert look(f"{seat.show.get_absolute_url()}tasks/") == []


def open_the_code(page: Page) -> None:
    """Show the code behind each button."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.locator("pre").first.is_visible()


@pytest.mark.parametrize("path", ["/", "/shows/{}/", "/shows/{}/tasks/"])
def test_the_code_behind_the_buttons(look, show, path):
    """When all of it is shown."""
    assert look(path.format(show.pk), act=open_the_code) == []


@pytest.mark.parametrize("state", ["free", "busy", "nobody can tell"])
def test_the_page_of_a_seat(look, nodes, seat, state):
    """Whose it is, if anybody's."""
    nodes.down = {0, 1, 2} if state == "nobody can tell" else set()
    with redlock(seat.lock) if state == "busy" else nullcontext():
        assert look(f"/seats/{seat.pk}/") == []


def test_the_reports_that_a_visitor_has_asked_for(look, seat, queue, results):
    """One that is not built yet, one that was skipped, and one that failed."""

    def ask(page: Page) -> None:
        for _ in range(3):
            with page.expect_navigation():
                page.get_by_role("button", name="Build the report").click()
        for result, state in [({"skipped": True}, "SUCCESS"), (ValueError("no"), "FAILURE")]:
            results.store_result(queue.get(timeout=20).headers["id"], result, state)
        page.wait_for_selector("#reports .odd >> text=failed")
        assert "skipped" in page.inner_text("#reports li:nth-child(3)")

    assert look(seat.show.get_absolute_url(), act=ask) == []


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/shows/0/", "/nothing/here/"])
def test_what_is_not_there(look, path):
    """The page says so."""
    assert look(path, status=404) == []


def test_an_order_that_is_refused(look, nodes, seat):
    """The second click, and a click while nobody can tell."""
    stop_clocks(nodes)
    path = seat.show.get_absolute_url()

    def twice(page: Page) -> None:
        order(page)
        order(page)

    assert look(path, act=twice, status=409) == []
    nodes.down = {0, 1, 2}
    assert look(path, act=order, status=503) == []


def test_an_export_that_is_refused(look, seat):
    """While the orders are exported for somebody else."""
    with redlock(seat.show.export_lock):
        assert look(f"{seat.show.get_absolute_url()}orders.csv", status=409) == []


def after_grace(page: Page) -> None:
    """Press the button of a seat that Grace has bought since the page was last refreshed."""
    stand_still(page)
    browser = page.context.browser
    assert browser is not None
    other = browser.new_context()
    grace = other.new_page()
    grace.goto(page.url)
    pick(grace, text="Grace")
    other.close()
    pick(page)


def lose(*_: object) -> None:
    """The lease is over before the row is claimed."""
    raise LeaseLost("the lease is over")


REFUSALS = {
    "Seat B3 is taken": 409,
    "Seat B3 was not sold to you": 409,
    "is paying": 409,
    "too slow": 503,
    "Nobody can tell": 503,
}


@pytest.mark.parametrize("words", REFUSALS)
def test_a_seat_that_is_refused(look, nodes, seat, monkeypatch, words):
    """For each reason that there is."""
    grace = visitor()
    held: AbstractContextManager[Any] = nullcontext()
    if words == "Seat B3 was not sold to you":
        bank = while_it_sleeps(nodes, lambda: take(grace, seat, "Grace"))
        monkeypatch.setattr(outside, "authorise_card", bank)
    elif words == "is paying":
        monkeypatch.setattr(seat_views, "WAIT", 0)
        held = redlock.using(label="another")(seat.lock)
    elif words == "too slow":
        monkeypatch.setattr(seat_views, "fenced", lose)
    elif words == "Nobody can tell":
        nodes.down = {0, 1, 2}

    def act(page: Page) -> None:
        (after_grace if words == "Seat B3 is taken" else pick)(page)
        assert words in page.inner_text("main")

    with held:
        assert look(seat.show.get_absolute_url(), act=act, status=REFUSALS[words]) == []
