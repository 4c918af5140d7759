"""The first page: an order with the lock and one without, side by side, and the nodes."""

import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_redlock import conf
from django_redlock.inspection.survey import survey

from . import node_switch, story
from .forms import OrderForm, order_form
from .models import Show
from .visitors import visitor_of

NAME = "index"  # of its URL, and what the hidden field `back` of its forms has
IDS = {True: "with_%s", False: "without_%s"}  # of the form with the lock, and of the other one


@never_cache  # a form that a browser has kept is not a new one
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return first_page(request)


def first_page(
    request: HttpRequest, wrong: OrderForm | None = None, *, locked: bool = True
) -> HttpResponse:
    """Render the page; with a form that somebody has filled in wrongly."""
    name = request.session.get("name", "")
    forms = {key: order_form(name, auto_id=ids, back=NAME) for key, ids in IDS.items()}
    if wrong is not None:
        forms[locked] = wrong
    context = _now(request) | {"form_with": forms[True], "form_without": forms[False]}
    context["buttons"] = node_switch.is_there()
    return render(request, "box_office/index.html", context)


@never_cache
@require_safe
def now(request: HttpRequest) -> HttpResponse:
    """Return the parts of the page that change by themselves."""
    return render(request, "box_office/_now.html", _now(request))


@never_cache
@require_safe
def your_order(request: HttpRequest, click: uuid.UUID) -> HttpResponse:
    """Tell visitors which order a form of theirs has made, and nobody else."""
    wish = story.wish(request.session.get("visitor", ""), click)
    return render(request, "box_office/your_order.html", {"click": click, "wish": wish})


def _now(request: HttpRequest) -> dict[str, Any]:
    visitor = visitor_of(request)  # the lock of an order has it in its name
    found = survey(conf.backend("default"), limit=1, patience=0)
    return {
        "shows": list(Show.objects.order_by("pk")),
        "side_with": story.side(visitor, locked=True),
        "side_without": story.side(visitor, locked=False),
        "nodes": story.node_lines(found),
        "meaning": story.meaning(found),
        "outlook": node_switch.outlook(),
    }
