"""The example project: its orders, its export, its report and its tasks, on nodes in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client

from example_project.box_office import outside
from example_project.box_office.models import Order, Show
from tests.support.looked_at import stop_clocks
from tests.support.waiting import eventually

from .conftest import BROWSER, visitor

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nodes")]
LONG = 20.0  # seconds that nothing takes


def filled_in(show: Show, **fields: object) -> dict[str, Any]:
    """A form of the first page with a token of its own."""
    return {"name": "Ada", "seats": "2", "show": show.pk, "click": str(uuid4()), **fields}


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
    response = client.post("/order/", filled_in(show), follow=True)
    assert response.redirect_chain == [("/", 302)]
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
    client, seen, form = visitor(), [], filled_in(show)
    cookies = client.cookies

    def click() -> None:
        mine = Client(headers={"accept": BROWSER})
        mine.cookies = cookies
        seen.append(mine.post(f"/{path}/", form))

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
    """`min_hold`: it is refused as well, and the page that says so shows the order."""
    client = visitor()
    stop_clocks(nodes)
    form = filled_in(show)
    assert client.post("/order/", form).status_code == 302
    page = client.post("/order/", form | {"click": str(uuid4())})
    assert (page.status_code, "no-store" in page["Cache-Control"]) == (409, True)
    assert "not taken twice" in page.text
    assert "2 seats for Ada" in page.text
    assert as_told(show) == (1, 2)
