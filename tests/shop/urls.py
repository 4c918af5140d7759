"""Views that sell, with the decorator and without it, for threads and for asyncio.

So that two requests overlap for certain, however slow the machine is, a sale waits until its
twin has been refused, or is in the view as well. Then it takes its 50 ms, and inserts an order.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import sync_and_async_middleware

from django_redlock.views.decorator import single_flight
from tests.shop.settings import HOME
from tests.waiting import eventually

TWINS = 2


def mark(kind: str, basket: str) -> None:
    """Leave a mark that the other processes see."""
    (HOME / f"{kind}-{basket}-{os.getpid()}-{time.monotonic_ns()}").touch()


@sync_and_async_middleware
def mark_refusals(get_response: Callable[[HttpRequest], Any]) -> object:
    """Middleware: a refused request leaves a mark."""

    def look(request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if response.status_code == 409:
            mark("met", request.headers["Basket"])
        return response

    def middleware(request: HttpRequest) -> HttpResponse:
        return look(request, get_response(request))

    async def amiddleware(request: HttpRequest) -> HttpResponse:
        return look(request, await get_response(request))

    return amiddleware if inspect.iscoroutinefunction(get_response) else middleware


def have_met(basket: str) -> bool:
    """Whether both requests for the basket have arrived and been refused, or are in the view."""
    return len(list(HOME.glob(f"met-{basket}-*"))) == TWINS


def sell(request: HttpRequest) -> HttpResponse:
    """Sell to whoever comes alone."""
    basket = request.headers["Basket"]
    mark("met", basket)
    eventually(lambda: have_met(basket), within=20, every=0.002, what="the twin")
    time.sleep(0.05)
    insert(request)
    return HttpResponse(status=201)


def insert(request: HttpRequest) -> None:
    """Insert an order."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (customer) VALUES (%s)", [request.session["customer"]])


async def asell(request: HttpRequest) -> HttpResponse:
    """The same in a task."""
    basket = request.headers["Basket"]
    mark("met", basket)
    async with asyncio.timeout(20):
        while not have_met(basket):  # noqa: ASYNC110 - other processes tell by files
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)
    await sync_to_async(insert)(request)
    return HttpResponse(status=201)


async def linger(request: HttpRequest, name: str) -> HttpResponse:
    """Hold the lock for longer than any client stays."""
    mark("entered", name)
    await asyncio.sleep(60)
    return HttpResponse(status=201)


def enter(request: HttpRequest, customer: int) -> HttpResponse:
    """Begin a session."""
    request.session["customer"] = customer
    return HttpResponse(status=204)


urlpatterns = [
    path("enter/<int:customer>", enter),
    path("locked/", single_flight(sell)),
    path("unlocked/", sell),
    path("alocked/", transaction.non_atomic_requests(single_flight(asell))),
    path("aunlocked/", transaction.non_atomic_requests(asell)),
    path(
        "linger/<str:name>",
        transaction.non_atomic_requests(single_flight("linger:{name}")(linger)),
    ),
]
