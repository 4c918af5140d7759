"""The box office. Every view runs in a transaction (ATOMIC_REQUESTS).

What stands above what matters: `single_flight` looks at the request before the view does, and
takes its lock around the transaction, so that the next one sees what this one has committed.
"""

import csv
import io
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import TypeAlias

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from django_redlock.views.decorator import single_flight

from . import outside
from .forms import OrderForm
from .models import Order, Show
from .tasks import build_report

View: TypeAlias = Callable[..., HttpResponseBase]
REFUSALS = {409, 503}  # somebody else runs it; nobody can say
LAST = 6  # orders that are shown


def with_a_page(*, taken: str, more: str) -> Callable[[View], View]:
    """Give people a page of this site where `single_flight` refuses; programs keep the JSON.

    Args:
        taken: why it is refused while the lock is held. The holder is whoever the key says: this
            visitor, or anybody.
        more: what a visitor may want later.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def friendly(request: HttpRequest, show_id: int) -> HttpResponseBase:
            refusal = view(request, show_id)
            if refusal.status_code not in REFUSALS or "json" in refusal["Content-Type"]:
                return refusal
            status, retry = refusal.status_code, refusal["Retry-After"]
            context = {"status": status, "retry": retry, "show_id": show_id}
            context |= {"taken": taken, "more": more}
            page = render(request, "box_office/refused.html", context, status=status)
            for each in ("Retry-After", "Cache-Control"):
                page[each] = refusal[each]
            return page

        return friendly

    return decorate


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return render(request, "box_office/index.html", {"shows": Show.objects.order_by("pk")})


@require_safe
def show(request: HttpRequest, show_id: int) -> HttpResponse:
    # Visitors are told apart by their sessions: without one it would be by their addresses.
    request.session.setdefault("since", timezone.now().isoformat())
    initial = {"name": request.session.get("name", "")}
    return _show_page(
        request, get_object_or_404(Show, pk=show_id), OrderForm(initial=initial, label_suffix="")
    )


def order_unlocked(request: HttpRequest, show_id: int) -> HttpResponse:
    """Sell. A double click runs this twice at once, and both runs sell."""
    return _sell(request, show_id, locked=False)


@require_POST
@with_a_page(
    taken="Your order is already being taken, or was taken a moment ago. It is not taken twice.",
    more="to order more",
)
@single_flight(wait=0.1, min_hold=2)
def order(request: HttpRequest, show_id: int) -> HttpResponse:
    """Sell. Of a double click one runs; the other one is told so (409).

    `min_hold` is for a second click that comes when the first has already finished, `wait` for
    two that come in the same moment, so that neither of them gets a majority at the first try.
    """
    return _sell(request, show_id, locked=True)


def _sell(request: HttpRequest, show_id: int, *, locked: bool) -> HttpResponse:
    form = OrderForm(request.POST, label_suffix="")
    if not form.is_valid():
        page = _show_page(request, get_object_or_404(Show, pk=show_id), form)
        page.status_code = 422
        return page
    # Before the first query: SQLite lets one transaction write, and others should not have to
    # wait for a bank.
    outside.authorise_card()
    name, seats = form.cleaned_data["name"], form.cleaned_data["seats"]
    if not Show.objects.sell(show_id, seats):
        raise Http404
    Order.objects.create(show_id=show_id, name=name, seats=seats, locked=locked)
    request.session["name"] = name
    messages.success(request, f"Ordered for {name}: {seats} seat{'s' * (seats > 1)}.")
    return redirect("show", show_id)


@require_POST
def report(request: HttpRequest, show_id: int) -> HttpResponse:
    """Ask for a report. Where one is being built, the worker skips the second."""
    found = get_object_or_404(Show, pk=show_id)
    transaction.on_commit(partial(build_report.delay, found.pk))
    messages.success(request, "A report was asked for.")
    return redirect(found)


@require_safe
@with_a_page(
    taken="The orders are being exported already, perhaps for somebody else. Nothing was sent.",
    more="them",
)
@single_flight("export:{show_id}", methods=["GET"])
def export(_request: HttpRequest, show_id: int) -> StreamingHttpResponse:
    """Send all orders. The lock is held until the last line is sent, or the client has gone."""
    found = get_object_or_404(Show, pk=show_id)
    return StreamingHttpResponse(
        _lines(found),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="orders-{show_id}.csv"'},
    )


def _lines(show: Show) -> Iterator[str]:
    lines = [
        _line("order", "name", "seats", "at"),
        *(
            _line(each.pk, each.name, each.seats, each.at.isoformat(timespec="seconds"))
            for each in show.orders.order_by("pk")
        ),
    ]
    for line in lines:
        yield line
        outside.transmit(1 / len(lines))


def _line(*values: object) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()


def _show_page(request: HttpRequest, show: Show, form: OrderForm) -> HttpResponse:
    context = {"show": show, "form": form, "orders": show.orders.all()[:LAST]}
    return render(request, "box_office/show.html", context)
