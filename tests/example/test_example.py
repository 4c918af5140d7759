"""The example project: its pages, its orders, its export and its report, on nodes in memory."""

from __future__ import annotations

import math
import re
import socket
import threading
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client

from django_redlock import conf, redlock
from example_project.box_office import outside, tasks
from example_project.box_office.models import Order, Report, Show
from tests.support.looked_at import stop_clocks
from tests.support.waiting import eventually

from .visitors import BROWSER, visitor

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nodes")]
FORM = {"name": "Ada", "seats": "2"}
LONG = 20.0  # seconds that nothing takes
# Three tests judge each change; all that else tests the example, and no line of the package, is
# nightly.


class Gate:
    """Where those who come stay until they are let through, one by one.

    One by one, for a database in memory does not wait when two write at once.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._open = threading.Semaphore(0)

    @property
    def inside(self) -> int:
        """How many have come."""
        return len(self._came)

    def __call__(self) -> None:
        self._came.append(threading.get_ident())  # one step, unlike counting
        assert self._open.acquire(timeout=LONG)

    def let_one_through(self) -> None:
        """Let one of them go on."""
        self._open.release()


def in_threads(*calls: Callable[[], object]) -> list[threading.Thread]:
    """Start calls, each with a database connection of its own."""

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        finally:
            BaseDatabaseWrapper.close(connections["default"])  # its own spares one in memory

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def as_told(show: Show) -> tuple[int, int]:
    """How many orders there are, and how many seats are sold."""
    show.refresh_from_db()
    return Order.objects.count(), show.sold


# -- orders ---------------------------------------------------------------------------------------


def test_an_order(show):
    """An order is written down, counted, and told of; the name is kept for the next one."""
    client = visitor()
    response = client.post(f"/shows/{show.pk}/order/", FORM, follow=True)
    assert response.redirect_chain == [(show.get_absolute_url(), 302)]
    assert "Ordered for Ada: 2 seats." in response.text
    assert 'value="Ada"' in response.text
    assert as_told(show) == (1, 2)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("path", "statuses", "orders"),
    [("order", [302, 409], 1), ("order-unlocked", [302, 302], 2)],
)
def test_a_double_click(show, monkeypatch, path, statuses, orders):
    """Of two clicks at once one orders and one is told so; without the lock both order."""
    gate = Gate()
    monkeypatch.setattr(outside, "authorise_card", gate)
    client, seen = visitor(), []
    cookies = client.cookies

    def click() -> None:
        mine = Client(headers={"accept": BROWSER})
        mine.cookies = cookies
        seen.append(mine.post(f"/shows/{show.pk}/{path}/", FORM))

    threads = in_threads(click, click)
    eventually(lambda: gate.inside + len(seen) == 2, within=LONG)
    while len(seen) < 2:
        before = len(seen)
        gate.let_one_through()
        eventually(lambda before=before: len(seen) > before, within=LONG)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert sorted(response.status_code for response in seen) == statuses
    assert as_told(show) == (orders, 2 * orders)


def test_a_second_click_just_after_the_first(show, nodes):
    """`min_hold`: it is refused as well, in words for people and in JSON for programs."""
    client = visitor()
    path = f"/shows/{show.pk}/order/"
    stop_clocks(nodes)
    assert client.post(path, FORM).status_code == 302
    (left,) = {due - node.clock() for node in nodes.nodes for _, due in node.keys.values() if due}
    assert 0 < left <= 2000
    page = client.post(path, FORM)
    assert (page.status_code, page["Retry-After"]) == (409, str(math.ceil(left / 1000)))
    assert page["Cache-Control"] == "no-store"
    assert "not taken twice" in page.text
    problem = client.post(path, FORM, headers={"accept": "application/json"})
    assert (problem.status_code, problem["Content-Type"]) == (409, "application/problem+json")
    assert as_told(show) == (1, 2)


@pytest.mark.nightly
def test_other_visitors_are_not_held_up(show):
    """The lock is a visitor's own: somebody else orders at the same time."""
    visitors = [visitor(), visitor()]
    path = f"/shows/{show.pk}/order/"
    assert [each.post(path, FORM).status_code for each in visitors] == [302, 302]


@pytest.mark.nightly
def test_the_refusal_of_an_order_speaks_of_this_visitor_only(show):
    """Who clicks twice is told of an order of their own; another visitor meanwhile orders."""
    ada, grace = visitor(), visitor()
    path = f"/shows/{show.pk}/order/"
    assert ada.post(path, FORM).status_code == 302
    assert grace.post(path, FORM | {"name": "Grace"}, follow=True).status_code == 200
    assert "Your order is already being taken" in ada.post(path, FORM).text
    for client, mine, other in [(ada, "Ada", "Grace"), (grace, "Grace", "Ada")]:
        page = client.get(show.get_absolute_url()).text
        assert f'value="{mine}"' in page
        assert f'value="{other}"' not in page
        assert f"Ordered for {other}" not in page


@pytest.mark.nightly
def test_without_a_majority_nothing_is_sold(show, nodes):
    """Nobody can tell whether the same order is being taken: 503, and no order."""
    client = visitor()
    nodes.down = {0, 1, 2}
    page = client.post(f"/shows/{show.pk}/order/", FORM)
    assert page.status_code == 503
    assert "Nothing has happened" in page.text
    assert as_told(show) == (0, 0)


@pytest.mark.nightly
def test_an_order_needs_the_form_of_the_site(show):
    """A POST without the CSRF token is refused, and so is a GET."""
    strict = Client(enforce_csrf_checks=True)
    assert strict.post(f"/shows/{show.pk}/order/", FORM).status_code == 403
    assert strict.get(f"/shows/{show.pk}/order/").status_code == 405
    assert as_told(show) == (0, 0)


# -- export ---------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_export_runs_once_at_a_time(show):
    """As long as one is being sent, a second is refused, and pages say so."""
    client, path = visitor(), f"/shows/{show.pk}/orders.csv"
    sending = client.get(path)
    assert visitor().get(path).status_code == 409
    assert "The orders are being exported" in client.get("/").text
    sending.close()
    assert "Nobody exports the orders" in client.get("/").text
    again = visitor().get(path)
    assert again.status_code == 200
    again.close()


# -- report ---------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_report_counts_what_was_sold(show):
    """The task writes down how many orders and seats there are; the page shows the last report."""
    Order.objects.create(show=show, name="Ada", seats=3)
    Order.objects.create(show=Show.objects.create(title="Another"), name="Ada", seats=4)
    tasks.build_report(show.pk)
    report = Report.objects.get()
    assert (report.orders, report.seats) == (1, 3)
    assert "counted 1 order" in visitor().get(show.get_absolute_url()).text


@pytest.mark.nightly
def test_a_report_that_is_being_built(show):
    """The page says so; a second run is skipped."""
    with redlock(show.report_lock):
        page = visitor().get(show.get_absolute_url()).text
        skipped = tasks.build_report(show.pk)
    assert "The report is being built" in page
    assert skipped["skipped"] is True
    assert not Report.objects.exists()


@pytest.mark.nightly
def test_who_holds_a_lock_is_for_staff(show):
    """A holder's label names hosts and processes: staff sees it, no customer does."""
    customer, member, staff = visitor(), visitor(), visitor()
    member.force_login(User.objects.create_user("member"))
    staff.force_login(User.objects.create_user("staff", is_staff=True))
    label = conf.backend("default").label()
    with redlock(show.report_lock), redlock(show.export_lock):
        for path in ("/", show.get_absolute_url()):
            for client, times in [(customer, 0), (member, 0), (staff, 2)]:
                page = client.get(path).text
                assert "The report is being built" in page
                assert "The orders are being exported" in page
                assert page.count(label) == times
        refused = customer.get(f"/shows/{show.pk}/orders.csv")
        assert refused.status_code == 409
        assert socket.gethostname() not in refused.text


@pytest.mark.nightly
def test_who_asked_for_a_report_is_told_what_became_of_it(show, queue, results):
    """Also that it was skipped, and by the part of the page that changes; nobody else is."""
    ada, path = visitor(), show.get_absolute_url()
    ids = []
    for _ in range(4):
        ada.post(f"{path}report/")
        ids.append(ada.session["reports"][-1][1])
    assert as_asked(ada, path) == 3 * ["not built yet"]
    report = Report.objects.create(show=show, fence=1, orders=1, seats=2)
    with redlock(show.report_lock):
        skipped = tasks.build_report(show.pk)
    for task_id, result, state in zip(
        ids[1:],
        (report.pk, skipped, ValueError("no")),
        ("SUCCESS", "SUCCESS", "FAILURE"),
        strict=True,
    ):
        results.store_result(task_id, result, state)
    told = ["failed", "skipped: another one was being built", "built: it counts 1 order"]
    assert as_asked(ada, path) == as_asked(ada, f"{path}now/") == told
    other = Show.objects.create(title="Another").get_absolute_url()
    assert as_asked(visitor(), path) == as_asked(ada, other) == []


def as_asked(client: Client, path: str) -> list[str]:
    """What the page says of the reports that this visitor has asked for, the newest first."""
    page = client.get(path).text
    return re.findall(r"Your report of <time>[^<]*</time></span> <strong>(.*?)</strong>", page)


# -- pages ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_names_are_text(show):
    """What somebody calls himself is no markup."""
    Order.objects.create(show=show, name="<b>Ada</b>")
    assert "&lt;b&gt;Ada&lt;/b&gt;" in visitor().get(show.get_absolute_url()).text
