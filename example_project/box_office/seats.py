"""Sell a numbered seat: to one customer, also when the process of another sleeps past its lease."""

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
from django_redlock.fencing import StaleFence, fenced

from . import outside
from .forms import NameForm
from .models import Order, Seat, Show
from .views import UNKNOWN, show_page, visitor_of

WAIT = 2.0  # seconds for somebody else's bank
BUSY = "Another customer is paying for seat {seat} at this moment. Nothing was written for you."
LATE = (
    "Seat {seat} was not sold to you: your payment took so long that the next customer was let in, "
    "and the seat refused it by its fence. Nothing was written for you, and you pay nothing."
)
SLOW = "This site was too slow for seat {seat}: nothing has happened."
TAKEN = "Seat {seat} is taken. Nothing was written for you, and you pay nothing."


@require_POST
def take(request: HttpRequest, seat_id: int) -> HttpResponse:
    """Sell one seat, or say on the page of its show why it was not sold."""
    seat = get_object_or_404(Seat.objects.select_related("show"), pk=seat_id)
    form, visitor = NameForm(request.POST), visitor_of(request)
    if not form.is_valid():
        return show_page(request, seat.show, form, status=422)
    name = request.session["name"] = form.cleaned_data["name"]
    try:
        why, status = (TAKEN, 409) if sell(seat, name, visitor) != visitor else ("", 302)
    except LockTaken:
        why, status = BUSY, 409
    except StaleFence:
        why, status = LATE, 409
    except LeaseLost:
        why, status = SLOW, 503
    except NodesUnavailable:
        why, status = UNKNOWN, 503
    if why:
        messages.error(request, why.format(seat=seat))
        return show_page(request, seat.show, status=status)
    messages.success(request, f"Seat {seat} is yours.")
    return redirect(seat.show)


def sell(seat: Seat, name: str, visitor: str) -> str:
    """Sell the seat unless it is sold; return which visitor has it now.

    Raises:
        LockTaken: for `WAIT` seconds others have been paying for it.
        NodesUnavailable: no majority of the nodes can tell.
        StaleFence: this process slept past its lease, and a later holder has claimed the seat.
        LeaseLost: it slept so before it had claimed the seat.
    """
    with redlock(seat.lock, wait=WAIT) as lease:
        row = fenced(lease, Seat.objects.filter(pk=seat.pk))  # before the read
        found = row.get()
        if found.taken_by:
            return found.visitor
        outside.authorise_card()
        with transaction.atomic():
            # First, so that nothing is written if the row refuses it.
            row.update(taken_by=name, visitor=visitor)
            Order.objects.create(show_id=seat.show_id, name=name, locked=True)
            Show.objects.sell(seat.show_id, 1)
    return visitor
