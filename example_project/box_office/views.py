"""The pages of the site, its orders, and the reports and exports of a show."""

import csv
import io
import uuid
from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.db.models import Count, Max, Q
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from django_redlock.views import Refusal as Refused
from django_redlock.views import single_flight

from . import nodes, outside
from .forms import NameForm, OrderForm
from .models import Order, Refusal, Show
from .tasks import build_report

LAST = 6  # orders and reports that are shown
IDS = {True: "with_%s", False: "without_%s"}  # of the form with the lock, and of the other one
UNKNOWN = (
    "Nothing has happened. Too few of the nodes that keep this site's locks answer. Without a "
    "majority nobody can tell whether the same is being done already (503)."
)
ORDER_REFUSED = {  # by the status
    409: "Your order is being taken, or was taken a moment ago. It is not taken twice (409).",
    503: UNKNOWN,
}
EXPORT_REFUSED = {
    409: "The orders are being exported, perhaps for somebody else. Nothing was sent (409).",
    503: UNKNOWN,
}


def visitor_of(request: HttpRequest) -> str:
    """Return by what the site knows a visitor again; the session begins with it."""
    return str(request.session.setdefault("visitor", uuid.uuid4().hex[:12]))


# -- orders ---------------------------------------------------------------------------------------


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return first_page(request)


@never_cache  # a form that a browser has kept is not a new one
def first_page(
    request: HttpRequest, wrong: OrderForm | None = None, *, locked: bool = True, status: int = 200
) -> HttpResponse:
    """Render an order form with the lock and one without, side by side, and the nodes.

    Args:
        wrong: a form that somebody has filled in wrongly.
        locked: which of the two that is.
        status: of the response.
    """
    name = {"name": request.POST.get("name") or request.session.get("name", "")}
    forms = {key: OrderForm(initial=name, auto_id=ids) for key, ids in IDS.items()}
    if wrong is not None:
        forms[locked] = wrong
    sides = [side(visitor_of(request), forms[key], locked=key) for key in (True, False)]
    context = {"sides": sides, "shows": Show.objects.all(), **nodes.strip()}
    return render(request, "box_office/index.html", context, status=status)


def side(visitor: str, form: OrderForm, *, locked: bool) -> dict[str, Any]:
    """Return the form with the lock, or that without, and what came of it, of whomever."""
    orders = Order.objects.filter(locked=locked, click__isnull=False)
    mine = orders.filter(visitor=visitor).values("click", "name", "seats", "show__title")
    count = orders.aggregate(forms=Count("click", distinct=True), orders=Count("pk"))
    refused = Refusal.objects.aggregate(
        equal=Count("pk", filter=Q(status=409)),
        unknown=Count("pk", filter=Q(status=503)),
        mine=Count("pk", filter=Q(visitor=visitor)),
    )
    return {
        "locked": locked,
        "form": form,
        "mine": mine.annotate(orders=Count("pk"), at=Max("at")).order_by("-at")[:LAST],
        "count": count,
        "too_many": count["orders"] - count["forms"],
        "refused": refused if locked else None,
    }


def refuse_order(request: HttpRequest, refusal: Refused | None = None) -> HttpResponse:
    """Count a click that is refused, and say why; the page shows the order of the first click."""
    status = refusal.status if refusal else 409
    Refusal.objects.create(status=status, visitor=visitor_of(request))
    messages.error(request, ORDER_REFUSED[status])
    return first_page(request, status=status)


@require_POST
@single_flight("order:{client}", wait=0.1, min_hold=2, on_refused=refuse_order)
def order(request: HttpRequest) -> HttpResponse:
    """Sell. Of a double click one request runs; the other one gets a 409.

    `min_hold` is for a second click that comes when the first has already finished, `wait` for
    two that come at the same moment, so that neither gets a majority at the first try.

    The lock keeps two equal requests apart. That a form is sent again later, as by a reload, is
    told by its token, which is looked up under the lock: between the look and the write nobody
    else looks.
    """
    return sell(request, locked=True)


@require_POST
def order_unlocked(request: HttpRequest) -> HttpResponse:
    """Sell. A double click runs this twice at once, and both runs sell."""
    return sell(request, locked=False)


def sell(request: HttpRequest, *, locked: bool) -> HttpResponse:
    form, visitor = OrderForm(request.POST, auto_id=IDS[locked]), visitor_of(request)
    if not form.is_valid():
        return first_page(request, form, locked=locked, status=422)
    click = form.cleaned_data["click"]
    if locked and Order.objects.filter(click=click, visitor=visitor).exists():
        return refuse_order(request)
    outside.authorise_card()
    with transaction.atomic():  # only now: nobody else can write meanwhile
        sold = Order.objects.create(**form.cleaned_data, locked=locked, visitor=visitor)
        Show.objects.sell(sold.show_id, sold.seats)
    request.session["name"] = sold.name
    messages.success(
        request, f"Ordered for {sold.name}: {sold.seats} seat{'s' * (sold.seats > 1)}."
    )
    return redirect("index")


# -- a show ---------------------------------------------------------------------------------------


@require_safe
def show(request: HttpRequest, show_id: int) -> HttpResponse:
    return show_page(request, get_object_or_404(Show, pk=show_id))


@never_cache
def show_page(
    request: HttpRequest, show: Show, form: NameForm | None = None, *, status: int = 200
) -> HttpResponse:
    """Render the page of a show; with a form that somebody has filled in wrongly."""
    reports = request.session.get("reports", [])
    context = {
        "show": show,
        "form": form or NameForm(initial={"name": request.session.get("name", "")}),
        "seats": show.seats.all(),
        "taken": show.seats.exclude(taken_by="").count(),
        "visitor": visitor_of(request),
        "orders": show.orders.all()[:LAST],
        "reports": [build_report.AsyncResult(task) for pk, task in reports if pk == show.pk],
    }
    return render(request, "box_office/show.html", context, status=status)


@require_POST
def report(request: HttpRequest, show_id: int) -> HttpResponse:
    """Ask for a report. While one is being built, the worker skips the second."""
    found = get_object_or_404(Show, pk=show_id)
    asked = [found.pk, build_report.delay(found.pk).id]
    request.session["reports"] = [asked, *request.session.get("reports", [])][:LAST]
    messages.success(request, "A report was asked for.")
    return redirect(found)


def refuse_export(request: HttpRequest, refusal: Refused) -> HttpResponse:
    messages.error(request, EXPORT_REFUSED[refusal.status])
    assert request.resolver_match is not None
    found = get_object_or_404(Show, pk=request.resolver_match.kwargs["show_id"])
    return show_page(request, found, status=refusal.status)


@require_safe
@single_flight("export:{show_id}", methods=["GET"], on_refused=refuse_export)
def export(_request: HttpRequest, show_id: int) -> StreamingHttpResponse:
    """Send all orders; hold the lock until the last line is sent, or the client has gone."""
    found = get_object_or_404(Show, pk=show_id)
    return StreamingHttpResponse(
        lines_of(found),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="orders-{show_id}.csv"'},
    )


def lines_of(show: Show) -> Iterator[str]:
    rows = [("order", "name", "seats", "at"), *show.orders.values_list("pk", "name", "seats", "at")]
    for row in rows:
        line = io.StringIO()
        csv.writer(line).writerow(row)
        yield line.getvalue()
        outside.transmit(1 / len(rows))
