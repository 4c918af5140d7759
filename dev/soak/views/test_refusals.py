"""The pages of refusals, in a browser."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from django.utils import translation
from django.utils.decorators import decorator_from_middleware

from django_redlock import redlock
from django_redlock.views import RedlockMiddleware, single_flight
from tests.views.test_refusals import plain


@single_flight("stock", methods=["GET"])
def decorated(request: Any) -> HttpResponse:
    """A view with a lock."""
    return HttpResponse("ran")


def hebrew(request: Any) -> Any:
    """The same, for visitors who read from right to left."""
    with translation.override("he"):
        return decorated(request)


ours = decorator_from_middleware(RedlockMiddleware)  # a live server has loaded its middleware
urlpatterns = [
    path("read/plain/", ours(plain)),
    path("read/decorated/", decorated),
    path("read/hebrew/", hebrew),
]


@pytest.mark.parametrize("view", ["decorated", "plain", "hebrew"])
def test_everybody_can_read_a_refusal(auditor, live_server, memory, view):
    """A page of a title and a sentence, while the lock is held, and while nobody can tell."""
    with override_settings(ROOT_URLCONF=__name__):
        address = f"{live_server.url}/read/{view}/"
        with redlock("stock"):
            assert auditor.audit(address, status=409) == []
        memory.down = {0, 1, 2}
        assert auditor.audit(address, status=503) == []
