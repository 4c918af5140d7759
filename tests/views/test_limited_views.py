"""``@single_flight(limit=…)``: so many requests of one key run at a time."""

from __future__ import annotations

import asyncio
import json

import pytest
from django.http import HttpResponse

from django_redlock.testing import assert_free, taken
from django_redlock.views import single_flight

from .asking import asked


def export(request):
    """Tell the slot."""
    lease = request.lease
    return HttpResponse(f"{lease.name} {lease.limit} {lease.slot in (0, 1)}")


async def aexport(request):
    """The same."""
    return export(request)


CLIENT = "export:address:127.0.0.1"


@pytest.mark.parametrize("view", [export, aexport], ids=["def", "async def"])
def test_so_many_requests_run_and_the_next_is_refused(view):
    """By a 409 with a ``Retry-After``, as of a lock without a limit."""
    decorated = single_flight("export:{client}", limit=2)(view)

    def ask():
        answer = decorated(asked(user=None, headers={"accept": "application/json"}))
        return answer if view is export else asyncio.run(answer)

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


def test_the_time_that_a_site_computes_is_of_the_slot_that_is_free_first():
    """``retry_after`` gets a LockTaken that knows it."""
    view = single_flight("key", limit=2, retry_after=lambda error: error.retry_after)(export)
    with taken("key", limit=2):
        assert 10 < int(view(asked())["Retry-After"]) <= 60


def test_a_limit_takes_one_name():
    """Where names are written, at the definition; of a function, in its first call: no 400."""
    with pytest.raises(ValueError, match="limit takes one name, not 2"):
        single_flight(["a", "b"], limit=2)
    view = single_flight(key=lambda request: ["a", "b"], limit=2)(export)
    with pytest.raises(TypeError, match="limit takes one name, and key= returned 2"):
        view(asked())
