"""Views that sell, with the decorator and without it, for threads and for asyncio.

So that two requests overlap for certain, however slow the machine is, a sale waits until its
twin has been refused, or is in the view as well. Then it takes its 50 ms, and inserts an order.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import sync_and_async_middleware
from rest_framework.authentication import TokenAuthentication
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView

from django_redlock import redlock
from django_redlock.views import rest_framework
from django_redlock.views.decorator import single_flight
from tests.support.waiting import eventually
from tests.views.shop.settings import HOME

TWINS = 2
MEET = 50  # seconds in which the worker of the twin may still begin, on a busy machine


def mark(kind: str, name: str) -> None:
    """Leave a mark that the other processes see."""
    (HOME / f"{kind}-{name}-{os.getpid()}-{time.monotonic_ns()}").touch()


def meet(basket: str) -> None:
    """Leave a mark in the folder of a basket; there are thousands."""
    folder = HOME / f"met-{basket}"
    folder.mkdir(exist_ok=True)
    (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()


@sync_and_async_middleware
def mark_refusals(get_response: Callable[[HttpRequest], Any]) -> object:
    """Middleware: a refused request leaves a mark."""

    def look(request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if response.status_code == 409:
            meet(request.headers["Basket"])
        return response

    def middleware(request: HttpRequest) -> HttpResponse:
        return look(request, get_response(request))

    async def amiddleware(request: HttpRequest) -> HttpResponse:
        return look(request, await get_response(request))

    return amiddleware if inspect.iscoroutinefunction(get_response) else middleware


def have_met(basket: str) -> bool:
    """Whether both requests for the basket have arrived and been refused, or are in the view."""
    return len(list((HOME / f"met-{basket}").iterdir())) == TWINS


def sell(request: HttpRequest) -> HttpResponse:
    """Sell to a visitor who comes alone."""
    basket = request.headers["Basket"]
    meet(basket)
    eventually(lambda: have_met(basket), within=MEET, every=0.002, what="the twin")
    time.sleep(0.05)
    insert(request)
    return HttpResponse(status=201)


def insert(request: HttpRequest) -> None:
    """Insert an order, with the name under which it was locked."""
    name = getattr(getattr(request, "lease", None), "name", "")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO orders (customer, name) VALUES (%s, %s)",
            [request.session["customer"], name],
        )


@single_flight("form:{client}")
def order_by_form(request: HttpRequest) -> HttpResponse:
    """Show a form, and sell to whoever sends it."""
    if request.method == "POST":
        sell(request)
        return HttpResponse("<title>Shop</title><h1>Thank you</h1>")
    return HttpResponse("<title>Shop</title><form method=post><button>Order</button></form>")


class Tokens(TokenAuthentication):
    """Tokens without a table: the token is the number of the user."""

    def authenticate_credentials(self, key: str) -> tuple[User, str]:
        return User(pk=int(key)), key


class SellToToken(APIView):
    """The same for a customer who has a token and no cookie."""

    authentication_classes = (Tokens,)
    permission_classes = (IsAuthenticated,)

    def post(self, request: Any) -> Response:
        sell(request)
        return Response(status=201)


@rest_framework.single_flight("token:{client}")
class SellToTokenOnce(SellToToken):
    """And one of two requests."""


async def asell(request: HttpRequest) -> HttpResponse:
    """The same in a task."""
    basket = request.headers["Basket"]
    meet(basket)
    async with asyncio.timeout(MEET):
        while not have_met(basket):  # noqa: ASYNC110 - other processes tell by files
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.05)
    await sync_to_async(insert)(request)
    return HttpResponse(status=201)


def sell_with(request: HttpRequest) -> HttpResponse:
    """Sell under a lock that the view takes itself."""
    with redlock(f"with:{request.session['customer']}"):
        return sell(request)


async def asell_with(request: HttpRequest) -> HttpResponse:
    """The same in a task."""
    customer = await sync_to_async(request.session.__getitem__)("customer")
    async with redlock(f"awith:{customer}"):
        return await asell(request)


def drip(request: HttpRequest, name: str) -> StreamingHttpResponse:
    """Send, or be read to the end before anything is sent, until a test lets go."""

    def parts() -> Iterator[bytes]:
        mark("entered", name)
        while not (HOME / f"leave-{name}").exists():
            yield bytes(1 << 10)
            time.sleep(0.01)

    return StreamingHttpResponse(parts())


async def adrip(request: HttpRequest, name: str) -> StreamingHttpResponse:
    """The same in a task."""

    async def parts() -> AsyncIterator[bytes]:
        mark("entered", name)
        while not (HOME / f"leave-{name}").exists():
            yield bytes(1 << 10)
            await asyncio.sleep(0.01)

    return StreamingHttpResponse(parts())


def queue(request: HttpRequest, name: str) -> HttpResponse:
    """Hold the lock until a test lets all of this name go."""
    mark("entered", name)
    eventually((HOME / f"leave-{name}").exists, within=60, what="the test")
    return HttpResponse(status=201)


async def aqueue(request: HttpRequest, name: str) -> HttpResponse:
    """The same in a task."""
    return await sync_to_async(queue, thread_sensitive=False)(request, name)


def hold(request: HttpRequest, name: str) -> HttpResponse:
    """Hold a lock until a test lets go; an error if the lease was lost meanwhile."""
    with redlock(f"hold:{name}") as lease:
        mark("entered", name)
        eventually((HOME / f"leave-{name}").exists, within=60, what="the test")
        lease.ensure()
    return HttpResponse(status=201)


async def ahold(request: HttpRequest, name: str) -> HttpResponse:
    """The same in a task."""
    async with redlock(f"hold:{name}") as lease:
        mark("entered", name)
        async with asyncio.timeout(60):
            while not (HOME / f"leave-{name}").exists():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)
        lease.ensure()
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
    path("form/", order_by_form),
    path("shared/", single_flight("checkout")(sell)),
    path("token/", SellToTokenOnce.as_view()),
    path("token-unlocked/", SellToToken.as_view()),
    path("with/", transaction.non_atomic_requests(sell_with)),
    path("awith/", transaction.non_atomic_requests(asell_with)),
    path("drip/<str:name>", single_flight("drip:{name}")(drip)),
    path(
        "adrip/<str:name>",
        transaction.non_atomic_requests(single_flight("adrip:{name}")(adrip)),
    ),
    path("alocked/", transaction.non_atomic_requests(single_flight(asell))),
    path("aunlocked/", transaction.non_atomic_requests(asell)),
    path(
        "queue/<str:name>",
        transaction.non_atomic_requests(single_flight("queue:{name}", wait=60)(queue)),
    ),
    path(
        "aqueue/<str:name>",
        transaction.non_atomic_requests(single_flight("aqueue:{name}", wait=60)(aqueue)),
    ),
    path("hold/<str:name>", transaction.non_atomic_requests(hold)),
    path("ahold/<str:name>", transaction.non_atomic_requests(ahold)),
    path(
        "linger/<str:name>",
        transaction.non_atomic_requests(single_flight("linger:{name}")(linger)),
    ),
]
