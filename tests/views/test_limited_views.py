"""``@single_flight(limit=…)``: so many requests of one key run at a time."""

from __future__ import annotations

import asyncio
import json

import pytest
from django.http import HttpResponse
from rest_framework.views import APIView

from django_redlock.testing import assert_free, taken
from django_redlock.views import rest_framework as drf
from django_redlock.views import single_flight

from .asking import asked


@single_flight("export:{client}", limit=2)
def export(request):
    """Tell the slot."""
    lease = request.lease
    return HttpResponse(f"{lease.name} {lease.limit} {lease.slot in (0, 1)}")


@single_flight("export:{client}", limit=2)
async def aexport(request):
    """The same."""
    return HttpResponse(f"{request.lease.name} {request.lease.limit} True")


CLIENT = "export:address:127.0.0.1"


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_so_many_requests_run_and_the_next_is_refused(kind):
    """By a 409 with a ``Retry-After``, as of a lock without a limit."""

    def ask():
        request = asked(user=None, headers={"accept": "application/json"})
        return export(request) if kind == "def" else asyncio.run(aexport(request))

    with taken(CLIENT, limit=1):
        assert ask().content == f"{CLIENT} 2 True".encode()
    with taken(CLIENT, limit=2):
        response = ask()
    assert response.status_code == 409
    assert response["Retry-After"] == "1"
    assert json.loads(response.content)["status"] == 409
    assert b"export" not in response.content
    assert ask().status_code == 200
    assert_free(CLIENT, limit=2)


def test_without_a_majority_a_limited_view_is_unavailable(memory):
    """503, as of others."""
    memory.down = {0, 1, 2}
    response = export(asked(user=None))
    assert (response.status_code, response["Retry-After"]) == (503, "5")


def test_the_time_that_a_site_computes_is_of_the_slot_that_is_free_first():
    """``retry_after`` gets a LockTaken that knows it."""
    view = single_flight("key", limit=2, retry_after=lambda error: error.retry_after)(export_none)
    with taken("key", limit=2):
        assert 10 < int(view(asked())["Retry-After"]) <= 60


def export_none(request):
    """A view."""
    return HttpResponse("ran")


def test_views_of_rest_framework_have_limits():
    """Both take the options of one decorator."""

    @drf.single_flight("key", limit=2)
    class Export(APIView):
        """A view."""

        def post(self, request):
            """Run."""
            return HttpResponse("ran")

    view = Export.as_view()
    with taken("key", limit=1):
        assert view(asked()).status_code == 200
    with taken("key", limit=2):
        assert view(asked()).status_code == 409


def test_a_limit_takes_one_name():
    """Where names are written, at the definition; of a function, in its first call: no 400."""
    with pytest.raises(ValueError, match="limit takes one name, not 2"):
        single_flight(["a", "b"], limit=2)
    view = single_flight(key=lambda request: ["a", "b"], limit=2)(export_none)
    with pytest.raises(TypeError, match="limit takes one name, and key= returned 2"):
        view(asked())
