"""``@idempotent`` for REST framework and django-ninja: the real packages, with their tokens."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.test.client import encode_multipart
from django.urls import include, path
from ninja import NinjaAPI, Schema
from ninja.errors import HttpError
from rest_framework import serializers
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redlock import redlock
from django_redlock.idempotency import NotReplayable, idempotent
from django_redlock.idempotency.rest_framework import idempotent as of_rest_framework
from django_redlock.views.ninja import non_atomic
from tests.views.asking import urls
from tests.views.tokens import Bearer, Tokens

from .shop import KEY, assert_same, orders_made, records

pytestmark = pytest.mark.django_db


class Never(BaseThrottle):
    """A throttle that refuses a request with the header X-Throttled."""

    def allow_request(self, request: Any, view: Any) -> bool:
        return "X-Throttled" not in request.headers


class Seats(serializers.Serializer):
    """A body."""

    seats = serializers.IntegerField(max_value=4)


class Page(BaseRenderer):
    """A page, which reads the database, as the browsable API does."""

    media_type = "text/html"
    format = "html"

    def render(self, data: Any, *_: Any) -> str:
        return f"{Group.objects.count() >= 0} {data}"


class Base(APIView):
    """What the views have in common."""

    authentication_classes = (Tokens,)
    permission_classes = (IsAuthenticated,)
    throttle_classes = (Never,)
    renderer_classes = (JSONRenderer, Page)


def make() -> str:
    """Make an order; return its token."""
    return Group.objects.create(name=uuid.uuid4().hex).name


@of_rest_framework()
class Pay(Base):
    """Makes an order for at most four."""

    def post(self, request: Any) -> Any:
        assert connection.in_atomic_block
        token = make()
        asked = Seats(data=request.data)
        asked.is_valid(raise_exception=True)
        if request.headers.get("X-Fails"):
            raise ZeroDivisionError
        if request.headers.get("X-Busy"):
            with redlock("busy", durable=False):
                pass
        return Response({"token": token, "key": request.idempotency_key}, status=201)

    def get(self, request: Any) -> Any:
        return Response({"key": request.idempotency_key})


def ask(
    address: str = "/",
    user: int | str = 5,
    key: str | None = KEY,
    *,
    raises: bool = False,
    **more: Any,
) -> Any:
    """The response to a POST with a token."""
    headers = {"Authorization": f"{more.pop('scheme', 'Token')} {user}"} | more.pop("headers", {})
    if key is not None:
        headers["Idempotency-Key"] = key
    client = Client(raise_request_exception=raises)
    data = more.pop("data", {"seats": 2})
    return client.post(address, data, more.pop("content_type", "application/json"), headers=headers)


@pytest.fixture
def shop():
    """A site of REST framework."""
    with urls(path("", Pay.as_view())):
        yield


def test_rest_framework_gives_the_first_answer_again(shop):
    """Behind authentication, permissions and throttles; the client chooses how it is rendered."""
    first = ask()
    assert (first.status_code, first.json()["key"]) == (201, KEY)
    assert_same(first, ask())
    assert_same(first, ask(data='{"seats":2}'))
    assert ask(data={"seats": 3}).status_code == 422
    assert ask(user="nobody").status_code == 401
    assert ask(headers={"X-Throttled": "1"}).status_code == 429
    other = ask(user=6)
    assert other.json()["token"] != first.json()["token"]
    assert [each.scope for each in records()] == ["user:5", "user:6"]
    assert ask(key=None)["Content-Type"] == "application/problem+json"
    assert ask(key=None).status_code == 400


def test_rest_framework_compares_numbers_by_all_their_digits(shop):
    """Though its parser makes floats of them."""
    one, other = (f'{{"seats": 2, "price": 0.1234567890123456789{each}}}' for each in (1, 2))
    assert_same(ask(data=one), ask(data=one))
    assert ask(data=other).status_code == 422


def test_rest_framework_has_read_the_content(shop, monkeypatch):
    """A throttle has parsed it before."""
    monkeypatch.setattr(Never, "allow_request", lambda _, request, __: bool(request.data))
    assert_same(ask(), ask(data='{"seats":2}'))
    assert ask(data={"seats": 3}).status_code == 422


def test_a_method_that_passes(shop):
    """It is answered by REST framework alone."""
    response = Client().get("/", headers={"Authorization": "Token 5"})
    assert response.json() == {"key": None}


@pytest.mark.parametrize("is_atomic", [False, True])
def test_what_rest_framework_answers_to_an_error_is_stored(shop, monkeypatch, is_atomic):
    """The work is rolled back first: a 400 is as good an answer as a 201.

    Under ATOMIC_REQUESTS REST framework marks the transaction, inside of which nothing is read.
    """
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", is_atomic)
    headers = {"Accept": "text/html"}
    first = ask(data={"seats": 9}, headers=headers)
    assert (first.status_code, orders_made()) == (400, 0)
    assert_same(first, ask(data={"seats": 9}, headers=headers))
    assert [each.status for each in records()] == [400]
    assert ask(key="other").status_code == 201


def test_what_its_handler_writes_stays(monkeypatch):
    """It answers when the work has been rolled back, so an audit of it is not."""

    def handle(error: Exception, context: Any) -> Response:
        Group.objects.create(name="an audit")
        return Response({"detail": "no"}, status=409)

    monkeypatch.setattr(Pay, "get_exception_handler", lambda _: handle)
    with urls(path("", Pay.as_view())):
        first = ask(data={"seats": 9})
        assert first.status_code == 409
        assert_same(first, ask(data={"seats": 9}))
    assert [each.name for each in Group.objects.all()] == ["an audit"]


@pytest.mark.parametrize("header", ["X-Fails", "X-Busy"])
def test_what_it_does_not_answer_leaves_nothing(shop, header):
    """A 500, and a lock that is taken: the repetition is a first request."""
    with redlock("busy"):
        assert ask(headers={header: "1"}).status_code == 500
    assert (orders_made(), records()) == (0, [])
    assert ask().status_code == 201


def test_an_error_is_handled_once(monkeypatch):
    """By the project's handler, also where it answers nothing."""
    asked = []

    def handle(error: Exception, context: Any) -> None:
        asked.append(error)

    monkeypatch.setattr(Pay, "get_exception_handler", lambda _: handle)
    with urls(path("", Pay.as_view())), pytest.raises(ZeroDivisionError):
        ask(headers={"X-Fails": "1"}, raises=True)
    assert len(asked) == 1


def test_a_file_is_compared_by_what_is_in_it(shop):
    """REST framework parses a form of any method; boundaries do not count."""

    def form(boundary: str, seats: str = "2") -> dict[str, Any]:
        body = encode_multipart(boundary, {"seats": seats})
        return {"data": body, "content_type": f"multipart/form-data; boundary={boundary}"}

    assert_same(ask(**form("a")), ask(**form("b")))
    hidden = encode_multipart("c", {"seats": "2", "idempotency_key": "hidden"})
    kind = "multipart/form-data; boundary=c"
    assert ask(key=None, data=hidden, content_type=kind).json()["key"] == "hidden"
    assert ask(**form("a", "3")).status_code == 422
    assert ask(data="{", key="other").status_code == 400


def test_functions_and_viewsets():
    """Above ``@api_view``, and on a viewset for some actions."""

    @of_rest_framework(scope="all")
    @api_view(["POST"])
    @authentication_classes([])
    def pay(request: Any) -> Response:
        return Response(make())

    @of_rest_framework(scope="all", actions=["create"])
    class Orders(ViewSet):
        authentication_classes = ()

        def create(self, request: Any) -> Response:
            return Response(make())

        def list(self, request: Any) -> Response:
            return Response(make())

    router = SimpleRouter()
    router.register("orders", Orders, basename="orders")
    with urls(path("pay/", pay), path("", include(router.urls))):
        assert_same(ask("/pay/"), ask("/pay/"))
        assert_same(ask("/orders/", key="b"), ask("/orders/", key="b"))
        assert Client().get("/orders/").content != Client().get("/orders/").content


def test_mistakes():
    """Each is told where it is written."""
    with pytest.raises(TypeError, match=r"idempotent of REST framework has parentheses"):
        of_rest_framework(Pay)
    with pytest.raises(TypeError, match="its options by name"):
        of_rest_framework("order:{pk}")
    with pytest.raises(TypeError, match="Pay has a idempotent for every action already"):
        of_rest_framework()(Pay)
    with pytest.raises(TypeError, match=r"django_redlock.idempotency.rest_framework"):
        idempotent(scope="all")(api_view(["POST"])(lambda request: None))
    with pytest.raises(TypeError, match=r"other views: django_redlock.idempotency.idempotent"):
        of_rest_framework()(lambda request: None)


# -- django-ninja ----------------------------------------------------------------------------------


class Basket(Schema):
    """A body."""

    seats: int = 1


class Receipt(Schema):
    """An answer, which leaves out what is nobody's business."""

    token: str


def api() -> NinjaAPI:
    """An API with a few operations."""
    made = NinjaAPI(auth=Bearer(), urls_namespace=f"idempotent{uuid.uuid4().hex}")

    @made.post("/pay", response=Receipt)
    @idempotent
    def pay(request: Any, basket: Basket, response: HttpResponse) -> Any:
        assert connection.in_atomic_block
        token = make()
        if basket.seats > 4:
            raise HttpError(400, "too many")
        response["Location"] = f"/orders/{token}"
        return {"token": token, "secret": 7}

    @made.post("/apay", response=Receipt)
    @idempotent
    async def apay(request: Any, basket: Basket) -> Any:
        made = await Group.objects.acreate(name=uuid.uuid4().hex)
        return {"token": made.name, "secret": 7}

    @made.post("/odd")
    @idempotent
    def odd(request: Any) -> Any:
        make()
        response = HttpResponse()
        response.set_cookie("a", "b")
        return response

    return made


@pytest.fixture(params=["non_atomic", "plain"])
def ninja(request):
    """The API."""
    made = api().urls
    with urls(path("api/", non_atomic(made) if request.param == "non_atomic" else made)):
        yield


def test_ninja_gives_the_first_answer_again(ninja):
    """django-ninja itself makes the response of the data, before the COMMIT."""
    first = ask("/api/pay", scheme="Bearer")
    assert first.status_code == 200
    assert set(first.json()) == {"token"}
    assert first["Location"].startswith("/orders/")
    assert_same(first, ask("/api/pay", scheme="Bearer"))
    assert ask("/api/pay", scheme="Bearer", data={"seats": 3}).status_code == 422
    assert ask("/api/pay", scheme="Bearer", user="nobody").status_code == 401
    assert ask("/api/pay", scheme="Bearer", key=None).status_code == 400
    assert orders_made() == 1


@pytest.mark.django_db(transaction=True)
def test_async_operations(ninja):
    """The same, in a transaction of the thread that waits for them."""
    first = ask("/api/apay", scheme="Bearer")
    assert set(first.json()) == {"token"}
    assert_same(first, ask("/api/apay", scheme="Bearer"))
    assert orders_made() == 1


def test_what_ninja_answers_to_an_error_is_not_stored(ninja):
    """It is answered outside; the work is rolled back, and a repetition is a first request."""
    assert ask("/api/pay", scheme="Bearer", data={"seats": 9}).status_code == 400
    assert (orders_made(), records()) == (0, [])


def test_what_cannot_be_replayed(ninja):
    """As in a view of Django."""
    with pytest.raises(NotReplayable, match="it sets the cookie a"):
        ask("/api/odd", scheme="Bearer", raises=True)
    assert orders_made() == 0


def test_an_operation_inside_a_transaction_is_refused(ninja):
    """Of ATOMIC_REQUESTS, without ``non_atomic``."""
    with transaction.atomic(), pytest.raises(RuntimeError, match="non_atomic of django_redlock"):
        ask("/api/pay", scheme="Bearer", raises=True)
