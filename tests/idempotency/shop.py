"""A shop whose orders are rows, and clients that send a request again."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path

from django_redlock.idempotency import idempotent
from django_redlock.idempotency.models import Record
from django_redlock.idempotency.records import Work
from tests.views.asking import urls

KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"
SESSIONS = (
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
)


def anybody(view: Any = None, **options: Any) -> Any:
    """``idempotent`` whose keys are everybody's."""
    decorator = idempotent(scope="anybody", **options)
    return decorator if view is None else decorator(view)


def identity() -> str:
    """That of the key that everybody sends."""
    return Work("anybody", KEY, "", timedelta(1), "default").identity


def assert_same(first: Any, second: Any) -> None:
    """The second is the first one, said again."""
    assert second.status_code == first.status_code
    assert second.content == first.content
    assert second["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first
    plain = {name: value for name, value in second.items() if name != "Idempotency-Replayed"}
    assert plain == dict(first.items())


def order(request: HttpRequest, **_: Any) -> HttpResponse:
    """Make an order, and answer with a token that no second one has."""
    Group.objects.create(name=uuid.uuid4().hex)
    return JsonResponse({"token": uuid.uuid4().hex}, status=201, headers={"Location": "/orders/1"})


def orders_made() -> int:
    """How many there are: an order is a group of users, a table that is there."""
    return Group.objects.count()


def records() -> list[Record]:
    """What is stored."""
    return list(Record.objects.order_by("begun"))


class Shop:
    """A client, and a site with one view; it sends no cookie unless it is logged in."""

    def __init__(
        self, view: Any, *, raises: bool = False, middleware: tuple[str, ...] = ()
    ) -> None:
        self.client = Client(raise_request_exception=raises)
        self.site = urls(path("pay/<int:pk>/", view), path("pay/", view))
        self.site.options["MIDDLEWARE"] = list(middleware)

    def send(
        self,
        key: str | None = KEY,
        address: str = "/pay/",
        method: str = "post",
        data: Any = None,
        content_type: str = "application/json",
        **headers: str,
    ) -> Any:
        """Send a request, and return the response."""
        if key is not None:
            headers["Idempotency-Key"] = key
        call: Callable[..., Any] = getattr(self.client, method)
        with self.site:
            return call(address, data, content_type=content_type, headers=headers)


def close() -> None:
    """Close the connections of this thread; Django keeps those to a database in memory open."""
    for each in connections.all(initialized_only=True):
        if each.connection is not None:
            each.connection.close()
            each.connection = None
