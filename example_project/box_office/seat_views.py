"""Sell a numbered seat: to one customer, also when the process of another sleeps past its lease.

The view runs in no transaction: between claim and write a bank is asked, and a claim in a
transaction would keep the row locked for all that time (SQLite: every row).
"""

from http import HTTPStatus

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from django_redlock import LeaseLost, LockTaken, RedlockError, redlock
from django_redlock.fencing import StaleFence, fenced

from . import outside
from .forms import NameForm
from .models import Order, Seat, Show
from .views import show_page
from .visitors import visitor_of

WAIT = 2.0  # seconds for somebody else's bank


@transaction.non_atomic_requests
@require_http_methods(["GET", "HEAD", "POST"])
def take(request: HttpRequest, seat_id: int) -> HttpResponse:
    """Sell one seat, or say in a page why it was not sold. A GET tells who has it now."""
    seat = get_object_or_404(Seat.objects.select_related("show"), pk=seat_id)
    if request.method != "POST":
        return _page(request, seat)
    form = NameForm(request.POST, auto_id="seat_%s", label_suffix="")
    if not form.is_valid():
        page = show_page(request, seat.show, seat=form)
        page.status_code = 422
        return page
    visitor = visitor_of(request)
    try:
        bought_by = sell(seat, form.cleaned_data["name"], visitor)
    except Seat.DoesNotExist:
        raise Http404 from None
    except RedlockError as error:
        return _page(request, seat, *_why(error))
    if bought_by != visitor:
        return _page(request, seat, "taken", HTTPStatus.CONFLICT)
    request.session["name"] = form.cleaned_data["name"]
    messages.success(request, f"Seat {seat} is yours.")
    return redirect(seat.show)


def sell(seat: Seat, name: str, visitor: str) -> str:
    """Sell the seat unless it is sold; return which visitor has it now.

    Raises:
        LockTaken: for `WAIT` seconds others have been paying for it.
        NodesUnavailable: no majority of the nodes can tell.
        StaleFence: this process slept past its lease, and a later holder has claimed the seat.
        LeaseLost: it slept so before it had claimed the seat.
        DoesNotExist: of `Seat`: the seat was deleted meanwhile.
    """
    with redlock(seat.lock, wait=WAIT) as lease:
        row = fenced(lease, Seat.objects.filter(pk=seat.pk))  # before the read
        found = row.get()
        if found.taken_by:
            return found.visitor
        outside.authorise_card()
        with transaction.atomic():
            row.update(
                taken_by=name, visitor=visitor
            )  # first: if it is refused, nothing is written
            Order.objects.create(show_id=seat.show_id, name=name, locked=True)
            Show.objects.sell(seat.show_id, 1)
    return visitor


def _why(error: RedlockError) -> tuple[str, int]:
    """Return the template's name of an error, and a status."""
    match error:
        case LockTaken():
            return "busy", HTTPStatus.CONFLICT
        case StaleFence():
            return "late", HTTPStatus.CONFLICT
        case LeaseLost():
            return "unclaimed", HTTPStatus.SERVICE_UNAVAILABLE
    return "unknown", HTTPStatus.SERVICE_UNAVAILABLE


def _page(request: HttpRequest, seat: Seat, why: str = "", status: int = 200) -> HttpResponse:
    """Tell why a purchase was refused, if one was, and whose the seat is now."""
    now = get_object_or_404(Seat.objects.select_related("show"), pk=seat.pk)
    context = {"seat": now, "why": why, "visitor": request.session.get("visitor")}
    page = render(request, "box_office/seat.html", context, status=status)
    page["Cache-Control"] = "no-store"
    return page
