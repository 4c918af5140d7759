"""The package's own refusals, pages of a title and a sentence, can be read by everybody."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from django.utils import translation
from django.utils.decorators import decorator_from_middleware

from django_redlock import conf, redlock
from django_redlock.views import RedlockMiddleware, single_flight

pytestmark = pytest.mark.slow
NUMBERS = itertools.count()


@single_flight("stock", methods=["GET"])
def decorated(request: HttpRequest) -> HttpResponse:
    """A view with a lock."""
    return HttpResponse("ran")


def plain(request: HttpRequest) -> HttpResponse:
    """A view that takes its lock itself."""
    with redlock("stock"):
        return HttpResponse("ran")


def hebrew(request: HttpRequest) -> Any:
    """The first one, for visitors who read from right to left."""
    with translation.override("he"):
        return decorated(request)


def begun(request: HttpRequest) -> HttpResponse:
    """A view that has worked under one lock when it is refused another."""
    with redlock("mine"):
        pass
    return plain(request)


urlpatterns = [
    path("begun/", decorator_from_middleware(RedlockMiddleware)(begun)),
    path("decorated/", decorated),
    path("plain/", decorator_from_middleware(RedlockMiddleware)(plain)),
    path("hebrew/", hebrew),
]


@pytest.fixture
def memory() -> Iterator[Any]:
    """A node in memory of one's own, and the views of this module."""
    nodes = {"NODES": [f"memory://readable-{next(NUMBERS)}"]}
    with override_settings(ROOT_URLCONF=__name__, REDLOCK={"default": nodes}):
        yield conf.backend("default").group


@pytest.mark.parametrize("view", ["decorated", "plain", "begun", "hebrew"])
def test_everybody_can_read_a_refusal(auditor, live_server, memory, view):
    """While the lock is held, and while nobody can tell whether it is."""
    address = f"{live_server.url}/{view}/"
    with redlock("stock"):
        assert auditor.audit(address, status=409) == []
    memory.down = {0}
    assert auditor.audit(address, status=503) == []
