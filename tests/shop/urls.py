"""Two views that sell, with the decorator and without it.

So that two requests overlap for certain, however slow the machine is, a sale waits until its
twin has been refused, or is in the view as well. Then it takes its 50 ms, and inserts an order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_redlock.views import single_flight
from tests.shop.settings import HOME
from tests.waiting import eventually

TWINS = 2


def mark(kind: str, basket: str) -> None:
    """Leave a mark that the other processes see."""
    (HOME / f"{kind}-{basket}-{os.getpid()}").touch()


def mark_refusals(get_response: Callable[[HttpRequest], HttpResponse]) -> object:
    """Middleware: a refused request leaves a mark."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if response.status_code == 409:
            mark("met", request.headers["Basket"])
        return response

    return middleware


def sell(request: HttpRequest) -> HttpResponse:
    """Insert an order."""
    basket = request.headers["Basket"]
    mark("met", basket)
    eventually(
        lambda: len(list(HOME.glob(f"met-{basket}-*"))) == TWINS,
        within=20,
        every=0.002,
        what="the twin",
    )
    time.sleep(0.05)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (customer) VALUES (%s)", [request.session["customer"]])
    return HttpResponse(status=201)


def enter(request: HttpRequest, customer: int) -> HttpResponse:
    """Begin a session."""
    request.session["customer"] = customer
    return HttpResponse(status=204)


urlpatterns = [
    path("enter/<int:customer>", enter),
    path("locked/", single_flight(sell)),
    path("unlocked/", sell),
]
