"""``@single_flight`` for operations of django-ninja: the real package, with its tokens."""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import transaction
from django.test import Client
from django.urls import path
from ninja import NinjaAPI, Router, Schema
from ninja.errors import HttpError

from django_redlock import redlock
from django_redlock.views import single_flight
from django_redlock.views.ninja import non_atomic, operations_of

from .asking import count, in_transaction, insert, is_free, urls
from .tokens import Bearer

pytestmark = pytest.mark.django_db(databases=["default"])


class Basket(Schema):
    """A body, whose parameter stays one behind the decorator."""

    seats: int = 1


def ask(address: str, user: int | str = 5, **body: Any) -> Any:
    """The response to a POST with a token."""
    headers = {"Authorization": f"Bearer {user}"}
    return Client().post(address, body, content_type="application/json", headers=headers)


def api() -> NinjaAPI:
    """An API with a few operations."""
    made, router = NinjaAPI(auth=Bearer(), urls_namespace=f"api{id(object())}"), Router()

    @router.post("/{pk}/pay")
    @single_flight("pay:{client}:{pk}")
    def pay(request: Any, pk: int, basket: Basket) -> dict[str, Any]:
        insert()
        name = f"pay:{request.user.pk}:{pk}"
        transaction.on_commit(lambda: SEEN.append((name, in_transaction())), using="orders")
        if basket.seats > 4:
            raise HttpError(400, "too many")
        return {"lease": request.lease.name, "in": in_transaction(), "seats": basket.seats}

    @router.post("/{pk}/ship")
    def ship(request: Any, pk: int) -> dict[str, Any]:
        return {"in": in_transaction()}

    @router.post("/{pk}/apay")
    @single_flight("pay:{client}:{pk}")
    async def apay(request: Any, pk: int) -> dict[str, Any]:
        return {"lease": request.lease.name}

    made.add_router("/orders", router)
    return made


SEEN: list[Any] = []


@pytest.fixture
def site(orders):
    """The API, whose operations open their transactions themselves."""
    SEEN.clear()
    with urls(path("api/", non_atomic(api().urls))):
        yield


def test_the_lock_is_around_the_transaction_and_behind_the_token(site):
    """Each user has a lock of its own; the body is read as without a lock."""
    done = ask("/api/orders/7/pay", seats=3)
    expected = {"lease": "pay:user:5:7", "in": {"orders": True}, "seats": 3}
    assert (done.status_code, done.json()) == (200, expected)
    assert SEEN == [("pay:5:7", {"orders": False})]
    with redlock("pay:user:5:7"):
        refused = ask("/api/orders/7/pay")
        assert (refused.status_code, refused.headers["Retry-After"]) == (409, "1")
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert ask("/api/orders/7/pay", user=6).status_code == 200
        assert ask("/api/orders/7/pay", user="nobody").status_code == 401
        assert ask("/api/orders/7/apay").status_code == 409
        of_a_form = Client().post("/api/orders/7/apay", headers={"Authorization": "Bearer 5"})
        assert of_a_form.headers["Content-Type"] == "application/problem+json"
    assert ask("/api/orders/7/apay").json() == {"lease": "pay:user:5:7"}
    assert ask("/api/orders/7/ship").json() == {"in": {"orders": False}}


def test_an_answer_of_the_api_rolls_back(site):
    """django-ninja answers the exception; what was written is gone, and so is the lock."""
    assert ask("/api/orders/7/pay", seats=9).status_code == 400
    assert count() == 0
    assert is_free("pay:user:5:7")


@pytest.mark.parametrize("other", [None, [], ([], ""), api, "api.urls"])
def test_what_has_no_urls_is_refused(other):
    """With what to write."""
    with pytest.raises(TypeError, match=r"path\('api/', non_atomic\(api.urls\)\)"):
        non_atomic(other)


def test_a_view_of_others_has_no_operations():
    """Whatever stands in its cells: one that is empty, or an object that has any attribute."""
    mock = Mock()

    def view(request: Any) -> Any:
        return mock, later

    assert operations_of(view) == []
    later = None
    assert operations_of(view) == []
    assert not mock.mock_calls
    assert operations_of(None) == operations_of(functools.partial(print)) == []
