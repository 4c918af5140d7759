"""``LockedRequest``: what a type checker says of views that use ``request.lease``."""

from __future__ import annotations

from typing import cast

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings

from django_redlock.leases import Lease
from django_redlock.views import LockedRequest, single_flight


@pytest.mark.django_db
def test_it_is_any_request_when_the_program_runs():
    """Annotations cost nothing, and ``isinstance`` tells no lie."""
    seen: list[tuple[bool, Lease | None]] = []

    @single_flight("typed")
    def view(request: LockedRequest) -> HttpResponse:
        seen.append((isinstance(request, LockedRequest), request.lease))
        return HttpResponse()

    with override_settings(REDLOCK={"default": {"NODES": ["memory://typed"]}}):
        for request in (RequestFactory().post("/"), RequestFactory().get("/")):
            view(cast("LockedRequest", request))
    assert LockedRequest is HttpRequest
    assert [right for right, _ in seen] == [True, True]
    assert seen[0][1] is not None
    assert seen[1][1] is None
