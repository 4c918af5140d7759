"""The views of a show. But for `order`, each runs in a transaction (ATOMIC_REQUESTS).

The order of decorators matters: `single_flight` sees the request before the view does, and takes
its lock around the transaction, so that the next request sees what this one has committed.
"""

import csv
import io
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from django_redlock.views.decorator import single_flight

from . import first_page, outside, reports
from .forms import NameForm, OrderForm, TokenField, name_form, order_form
from .models import Order, Show
from .refusals import with_a_page
from .tasks import build_report
from .visitors import visitor_of

LAST = 6  # orders that are shown


@never_cache  # a form that a browser has kept is not a new one
@require_safe
def show(request: HttpRequest, show_id: int) -> HttpResponse:
    visitor_of(request)  # the lock of an order has it in its name
    return show_page(request, get_object_or_404(Show, pk=show_id))


@never_cache
@require_safe
def now(request: HttpRequest, show_id: int) -> HttpResponse:
    """Return the parts of the page of a show that change by themselves."""
    show = get_object_or_404(Show, pk=show_id)
    return render(request, "box_office/_show_now.html", _now(request, show))


@require_POST
def order_unlocked(request: HttpRequest, show_id: int) -> HttpResponse:
    """Sell. A double click runs this twice at once, and both runs sell."""
    return sell(request, show_id, locked=False)


def of_the_visitor(request: HttpRequest, show_id: int) -> str:
    """Return the name of the lock of an order: a visitor without a session is a new one."""
    return f"order:{show_id}:{request.session.get('visitor', 'new')}"


@require_POST
@with_a_page(
    taken="Your order is already being taken, or was taken a moment ago. It is not taken twice.",
    more="to order more",
)
@single_flight(
    key=of_the_visitor,
    wait=0.1,
    min_hold=2,
    retry_after=lambda taken: taken.retry_after,
)
@transaction.non_atomic_requests
def order(request: HttpRequest, show_id: int) -> HttpResponse:
    """Sell. Of a double click one request runs; the other one gets a 409.

    `min_hold` is for a second click that comes when the first has already finished, `wait` for
    two that come at the same moment, so that neither gets a majority at the first try. The refusal
    says how long the door is shut.

    The lock keeps two equal requests apart. That a form is sent again later, as by a reload, is
    told by its token, which is looked up under the lock: between the look and the write nobody
    else looks. Between them a bank is asked, so this view runs in no transaction, and writes in
    one of its own.
    """
    if is_ordered(request):
        return HttpResponse(status=HTTPStatus.CONFLICT)
    return sell(request, show_id, locked=True)


def is_ordered(request: HttpRequest) -> bool:
    click = TokenField(required=False).clean(request.POST.get("click"))
    mine = Order.objects.filter(click=click, visitor=visitor_of(request))
    return click is not None and mine.exists()


def sell(request: HttpRequest, show_id: int, *, locked: bool) -> HttpResponse:
    on_first_page = request.POST.get("back") == first_page.NAME
    ids = first_page.IDS[locked] if on_first_page else "id_%s"
    form = OrderForm(request.POST, auto_id=ids, label_suffix="")
    if not form.is_valid():
        found = get_object_or_404(Show, pk=show_id)
        if on_first_page:
            page = first_page.first_page(request, form, locked=locked)
        else:
            page = show_page(request, found, order=form)
        page.status_code = HTTPStatus.UNPROCESSABLE_ENTITY
        return page
    # Before the first write: SQLite lets one transaction write at a time, and the others should
    # not wait for a bank.
    outside.authorise_card()
    name, seats = form.cleaned_data["name"], form.cleaned_data["seats"]
    with transaction.atomic():
        if not Show.objects.sell(show_id, seats):
            raise Http404
        Order.objects.create(
            show_id=show_id,
            name=name,
            seats=seats,
            locked=locked,
            click=form.cleaned_data["click"],
            visitor=visitor_of(request),
        )
    request.session["name"] = name
    messages.success(request, f"Ordered for {name}: {seats} seat{'s' * (seats > 1)}.")
    return redirect("index") if on_first_page else redirect("show", show_id)


@require_POST
def report(request: HttpRequest, show_id: int) -> HttpResponse:
    """Ask for a report. While one is being built, the worker skips the second."""
    found = get_object_or_404(Show, pk=show_id)
    asked = reports.note(request, found)
    transaction.on_commit(partial(build_report.apply_async, (found.pk,), task_id=asked))
    messages.success(request, "A report was asked for.")
    return redirect(found)


@require_safe
@with_a_page(
    taken="The orders are being exported already, perhaps for somebody else. Nothing was sent.",
    more="them",
)
@single_flight("export:{show_id}", methods=["GET"])
def export(_request: HttpRequest, show_id: int) -> StreamingHttpResponse:
    """Send all orders; hold the lock until the last line is sent, or the client has gone."""
    found = get_object_or_404(Show, pk=show_id)
    return StreamingHttpResponse(
        lines_of(found),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="orders-{show_id}.csv"'},
    )


def lines_of(show: Show) -> Iterator[str]:
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


def show_page(
    request: HttpRequest,
    show: Show,
    *,
    order: OrderForm | None = None,
    seat: NameForm | None = None,
) -> HttpResponse:
    """Render the page of a show; with a form that somebody has filled in wrongly."""
    name = request.session.get("name", "")
    forms = {"form": order or order_form(name), "seat_form": seat or name_form(name)}
    return render(request, "box_office/show.html", _now(request, show) | forms)


def _now(request: HttpRequest, show: Show) -> dict[str, Any]:
    return {
        "show": show,
        "seats": show.seats.all(),
        "taken": show.seats.exclude(taken_by="").count(),
        "visitor": request.session.get("visitor"),
        "orders": show.orders.all()[:LAST],
        "reports": reports.asked_for(request, show),
    }
