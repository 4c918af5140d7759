"""Requests to views, and what several tests look at afterwards."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path

from django_redlock import LockTaken, NodesUnavailable, redlock
from django_redlock.views import refusal_of

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
OURS = "django_redlock.views.RedlockMiddleware"
TAKEN = (
    "This request was not carried out, because the same or related work is being done, or was "
    "begun a moment ago. If you sent it twice, please look at the result of the first request."
)
BEGUN = (
    "This request was not completed, and part of it may have been processed. "
    "Please look at the result before you repeat it."
)


def asked(address: str = "/checkout/", method: str = "POST", **more: Any) -> Any:
    """A request; ``headers`` and what is in capitals belong to it, the rest are attributes."""
    given = {name: more.pop(name) for name in list(more) if name.isupper() or name == "headers"}
    request = RequestFactory().generic(method, address, **given)
    for name, value in more.items():
        setattr(request, name, value)
    return request


def call(view: Any, request: Any, **arguments: Any) -> Any:
    """The response of a view, plain or async."""
    answer = view(request, **arguments)
    return asyncio.run(answer) if inspect.iscoroutine(answer) else answer


def urls(*patterns: Any) -> override_settings:
    """A site of these paths."""
    return override_settings(ROOT_URLCONF=patterns, ALLOWED_HOSTS=["*"], MIDDLEWARE=[])


def post(
    view: Any, address: str = "/", route: str | None = None, *, raises: bool = True, **headers: str
) -> Any:
    """The response to a POST of a site that has this view alone."""
    with urls(path(address.removeprefix("/") if route is None else route, view)):
        return Client(raise_request_exception=raises).post(address, headers=headers)


async def visiting(
    address: str = "/", method: str = "POST", body: bytes = b"", **headers: str
) -> ApplicationCommunicator:
    """A client of Django under ASGI that has sent a request, and can leave."""
    given = {"host": "testserver"} | {name.replace("_", "-"): headers[name] for name in headers}
    scope = {"type": "http", "method": method, "path": address, "query_string": b""}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in given.items()]
    client = ApplicationCommunicator(ASGIHandler(), scope)
    await client.send_input({"type": "http.request", "body": body})
    return client


async def leaves(client: ApplicationCommunicator) -> None:
    """Close the connection, and wait until the site has ended the request."""
    await client.send_input({"type": "http.disconnect"})
    await client.wait(60)


def ask(
    urlconf: Any,
    address: str,
    *middleware: str,
    use: str = "sync",
    method: str = "post",
    **headers: str,
) -> Any:
    """The response of a site, under WSGI or ASGI."""
    site = {"ROOT_URLCONF": urlconf, "MIDDLEWARE": middleware, "ALLOWED_HOSTS": ["*"]}
    with override_settings(**site):
        if use == "sync":
            call = getattr(Client(raise_request_exception=False), method)
            return call(address, headers=headers)
        acall = getattr(AsyncClient(raise_request_exception=False), method)
        return asyncio.run(acall(address, headers=headers))


def is_free(name: str) -> bool:
    """Whether nobody holds the name."""
    lease = redlock(name).try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


def insert(alias: str = "orders") -> None:
    """Write a row."""
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES ('a')")


def count(alias: str = "orders") -> int:
    """How many rows there are."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        return int(cursor.fetchone()[0])


def in_transaction() -> dict[str, bool]:
    """Which of the databases is in a transaction."""
    return {
        alias: connections[alias].in_atomic_block
        for alias in ("orders", "bills")
        if alias in connections.settings
    }


def answer_refusals(api: Any) -> None:
    """Give an API of django-ninja the exception handler of the page."""

    @api.exception_handler(NodesUnavailable)
    @api.exception_handler(LockTaken)
    def refused(request: Any, error: Any) -> Any:
        refusal = refusal_of(error)
        assert refusal is not None
        answer = api.create_response(request, refusal.problem, status=refusal.status)
        for name, value in refusal.headers.items():
            answer[name] = value
        return answer
