"""Numbered seats of the example: sold once, by the view and against what else writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_redlock import redlock
from django_redlock.nodes.memory import MemoryNodes
from example_project.box_office import outside, seats
from example_project.box_office.models import Order, Seat, Show
from tests.example.conftest import visitor

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nodes")]
MINUTE = 60_000  # in milliseconds, as the nodes count


@pytest.fixture
def seat(show: Show) -> Seat:
    """Seat B3 of a show of which nothing is sold."""
    show.add_seats()
    return show.seats.get(row="B", number=3)


def take(client: Client, seat: Seat, name: str, *, follow: bool = False) -> Any:
    """Press the button of a seat."""
    return client.post(f"/seats/{seat.pk}/", {"name": name}, follow=follow)


def as_told(seat: Seat) -> tuple[str, list[str], int]:
    """Who has the seat; the names of all orders; how many seats of the show are sold."""
    seat.refresh_from_db()
    seat.show.refresh_from_db()
    names = Order.objects.order_by("pk").values_list("name", flat=True)
    return seat.taken_by, list(names), seat.show.sold


def let_leases_expire(nodes: MemoryNodes) -> None:
    """Let a minute go by on the nodes."""
    for node in nodes.nodes:
        later = node.clock() + MINUTE
        node.clock = lambda later=later: later  # type: ignore[misc]


def while_it_sleeps(nodes: MemoryNodes, *then: Callable[[], object]) -> Callable[[], None]:
    """A bank that takes a minute, in which others come; their bank takes no time."""
    callers: list[bool] = []

    def bank() -> None:
        callers.append(True)
        if len(callers) == 1:
            let_leases_expire(nodes)
            for each in then:
                each()

    return bank


def test_a_seat_is_sold(seat):
    """Its customer has it, order and count follow; only that customer is told whose it is."""
    ada, grace = visitor(), visitor()
    page = take(ada, seat, "Ada", follow=True)
    assert page.redirect_chain == [(seat.show.get_absolute_url(), 302)]
    assert "Seat B3 is yours." in page.text
    assert 'aria-label="Row B, seat 3, yours"' in page.text
    assert as_told(seat) == ("Ada", ["Ada"], 1)
    assert seat.fence > 0
    others = grace.get(seat.show.get_absolute_url()).text
    assert 'aria-label="Row B, seat 3, taken"' in others
    assert "1 of 32 seats is taken" in others


def test_a_taken_seat(seat):
    """Another customer is told so, the first one's second click is not; nothing more is written."""
    ada, grace = visitor(), visitor()
    take(ada, seat, "Ada")
    page = take(grace, seat, "Grace")
    assert (page.status_code, "no-store" in page["Cache-Control"]) == (409, True)
    assert "Seat B3 is taken" in page.text
    assert "Ada" not in re.sub(r'<tbody id="orders".*?</tbody>', "", page.text, flags=re.DOTALL)
    assert take(ada, seat, "Ada").status_code == 302
    assert as_told(seat) == ("Ada", ["Ada"], 1)


STALE = "the seat refused it"


@pytest.mark.parametrize("broken", [False, True])
def test_a_customer_whose_bank_takes_too_long(seat, nodes, monkeypatch, broken):
    """A process that sleeps past its lease sells nothing; without the fence it sells again."""
    ada, grace, seen = visitor(), visitor(), []
    bank = while_it_sleeps(nodes, lambda: seen.append(take(grace, seat, "Grace")))
    monkeypatch.setattr(outside, "authorise_card", bank)
    if broken:
        monkeypatch.setattr(seats, "fenced", lambda lease, rows: rows)
    page = take(ada, seat, "Ada")
    assert [each.status_code for each in seen] == [302]
    if broken:
        assert as_told(seat) == ("Ada", ["Grace", "Ada"], 2)
    else:
        assert (page.status_code, STALE in page.text) == (409, True)
        assert as_told(seat) == ("Grace", ["Grace"], 1)


def test_a_late_payment_for_a_seat_that_nobody_wanted_meanwhile(seat, nodes, monkeypatch):
    """The row has still the fence of the late one: it may write."""
    monkeypatch.setattr(outside, "authorise_card", while_it_sleeps(nodes))
    assert take(visitor(), seat, "Ada").status_code == 302
    assert as_told(seat) == ("Ada", ["Ada"], 1)


def test_while_somebody_pays_for_the_seat(seat, monkeypatch):
    """A second customer waits, and is then told that another one is paying."""
    monkeypatch.setattr(seats, "WAIT", 0)
    with redlock.using(label="another")(seat.lock):
        page = take(visitor(), seat, "Ada")
    assert (page.status_code, "is paying for seat B3" in page.text) == (409, True)
    assert as_told(seat) == ("", [], 0)


def test_without_a_majority_no_seat_is_sold(seat, nodes):
    """Nobody can tell whether another one pays for the seat: 503, and nothing is written."""
    client = visitor()
    nodes.down = {0, 1, 2}
    page = take(client, seat, "Ada")
    assert (page.status_code, "Nothing has happened" in page.text) == (503, True)
    assert as_told(seat) == ("", [], 0)


def test_a_bank_that_refuses(seat, monkeypatch):
    """The seat stays free, and the next customer gets it."""

    def refuse() -> None:
        raise ConnectionError("no bank")

    client = visitor()
    with monkeypatch.context() as patched:
        patched.setattr(outside, "authorise_card", refuse)
        with pytest.raises(ConnectionError):
            take(client, seat, "Ada")
    assert take(visitor(), seat, "Grace").status_code == 302
    assert as_told(seat) == ("Grace", ["Grace"], 1)


# -- the plan, and the admin ----------------------------------------------------------------------


def test_staff_sees_the_fence_and_cannot_set_it_back(seat):
    """A show that is added gets seats; a form that was opened before a sale rewinds no fence."""
    staff = Client()
    staff.force_login(User.objects.create_superuser("staff"))
    staff.post("/admin/box_office/show/add/", {"title": "Three Sisters", "sold": 0})
    assert Show.objects.get(title="Three Sisters").seats.count() == 32
    path = f"/admin/box_office/seat/{seat.pk}/change/"
    take(visitor(), seat, "Ada")
    seat.refresh_from_db()
    page = staff.get(path).text
    assert f'<div class="readonly">{seat.fence}</div>' in page
    assert 'name="fence"' not in page
    assert str(seat.fence) in staff.get("/admin/box_office/seat/").text
    fields = {"show": seat.show_id, "row": "B", "number": 3, "price": "30", "fence": 0}
    assert staff.post(path, {**fields, "taken_by": "Ada L."}).status_code == 302
    found = Seat.objects.get(pk=seat.pk)
    assert (found.taken_by, int(found.price), found.fence) == ("Ada L.", 30, seat.fence)
