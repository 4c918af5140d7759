"""A lock that is taken away with ``--now``: two believe in it, and only one of them can write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations

import pytest
from django.db import transaction

from django_redlock import redlock
from django_redlock.fencing import StaleFence, fenced
from django_redlock.leases.lease import Lease

from .models import Seat

pytestmark = pytest.mark.django_db
OLD, NEXT = "old", "next"


def orders() -> Iterator[list[str]]:
    """Every order of the old holder's two steps and the next one's three."""
    for places in combinations(range(5), 2):
        yield [OLD if place in places else NEXT for place in range(5)]


def lost_updates(order: list[str], write: Callable[[Lease, Seat, int], None]) -> int:
    """Play it; how many of the writes that succeeded are not in the row.

    Both read the row and write its number, plus one. The next holder first takes the lock.
    """
    seat = Seat.objects.create(price=0)
    written, read = 0, {}
    leases = {OLD: redlock("seat", renew=False).acquire()}
    fenced(leases[OLD], Seat.objects.filter(pk=seat.pk))
    assert redlock.revoke("seat", now=True).done
    for who in order:
        if who not in leases:
            leases[who] = redlock("seat", renew=False).acquire()
            fenced(leases[who], Seat.objects.filter(pk=seat.pk))
        elif who not in read:
            read[who] = Seat.objects.get(pk=seat.pk).price
        else:
            with suppress(StaleFence), transaction.atomic():
                write(leases[who], seat, read[who] + 1)
                written += 1
    for lease in leases.values():
        lease.release()
    return written - Seat.objects.get(pk=seat.pk).price


@pytest.mark.parametrize("order", list(orders()), ids="-".join)
def test_no_update_of_a_fenced_row_is_lost(order: list[str]) -> None:
    """The old holder writes until the next one has claimed the row, and then no more."""

    def write(lease: Lease, seat: Seat, price: int) -> None:
        fenced(lease, Seat.objects.filter(pk=seat.pk)).update(price=price)

    assert lost_updates(order, write) == 0


def test_an_update_without_a_fence_is_lost() -> None:
    """Broken: rows are written without it. The check above can fail."""

    def write(_: Lease, seat: Seat, price: int) -> None:
        Seat.objects.filter(pk=seat.pk).update(price=price)

    assert max(lost_updates(order, write) for order in orders()) == 1
