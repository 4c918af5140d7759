"""``@idempotent`` for REST framework and django-ninja: the real packages, with their tokens."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.http import HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.test.client import encode_multipart
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from ninja import NinjaAPI, Schema
from ninja.errors import HttpError
from rest_framework import serializers
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redlock import redlock
from django_redlock.idempotency import NotReplayable, idempotent
from django_redlock.idempotency.rest_framework import idempotent as of_rest_framework
from django_redlock.views.ninja import non_atomic
from tests.views.asking import urls
from tests.views.tokens import Bearer, Tokens

from .shop import KEY, assert_same, close, orders_made, records

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


# -- each kind of view -----------------------------------------------------------------------------


def work(request: Any) -> HttpResponse:
    """What each of them does."""
    assert connection.in_atomic_block
    token = make()
    if request.headers.get("X-Fails"):
        raise ZeroDivisionError
    return JsonResponse({"token": token}, status=201)


async def awork(request: Any) -> HttpResponse:
    """The same, in an event loop."""
    await Group.objects.acreate(name=uuid.uuid4().hex)
    return await sync_to_async(work)(request)


class Plain(View):
    """A class of Django's."""

    def post(self, request: Any) -> HttpResponse:
        return work(request)


class Async(View):
    """An async one."""

    async def post(self, request: Any) -> HttpResponse:
        return await awork(request)


class Open(ViewSet):
    """A viewset, of which one action is meant."""

    authentication_classes = ()

    def create(self, request: Any) -> HttpResponse:
        return work(request)

    def list(self, request: Any) -> Response:
        return Response(make())


def operation(view: Any) -> Any:
    """The URLs of an API of django-ninja."""
    api = NinjaAPI(urls_namespace=f"one{uuid.uuid4().hex}")
    api.post("/")(view)
    return api.urls


once = idempotent(scope="all")
on_dispatch: Any = method_decorator(once, "dispatch")
of_class: Any = of_rest_framework(scope="all")
of_creation: Any = of_rest_framework(scope="all", actions=["create"])
KINDS: dict[str, Callable[[], Any]] = {
    "def": lambda: once(work),
    "async def": lambda: once(awork),
    "class": lambda: on_dispatch(type("Once", (Plain,), {})).as_view(),
    "async class": lambda: on_dispatch(type("Once", (Async,), {})).as_view(),
    "api_view": lambda: of_class(api_view(["POST"])(authentication_classes([])(work))),
    "viewset": lambda: of_creation(type("Once", (Open,), {})).as_view(
        {"post": "create", "get": "list"}
    ),
    "ninja": lambda: operation(once(work)),
    "async ninja": lambda: operation(once(awork)),
}


FAILS: Any = {"X-Fails": "1"}
IN_THREADS = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("kind", "server"),
    [
        *((kind, "wsgi") for kind in KINDS if "async" not in kind),
        *(
            pytest.param(kind, server, marks=IN_THREADS)
            for kind in KINDS
            if "async" in kind
            for server in ("wsgi", "asgi")
        ),
    ],
)
def test_each_kind_of_view_does_its_work_once(kind, server):
    """In a transaction: what fails is rolled back, what succeeds is replayed."""

    def send(key: str | None = KEY, *, method: str = "post", seats: int = 2, **headers: Any) -> Any:
        headers |= {} if key is None else {"Idempotency-Key": key}
        sent: Any = {} if method == "get" else {"data": {"seats": seats}}
        sent |= {"headers": headers, "content_type": "application/json"}
        if server == "wsgi":
            return getattr(Client(raise_request_exception=False), method)("/", **sent)

        async def ask() -> Any:
            asked = AsyncClient(raise_request_exception=False)
            answer = await getattr(asked, method)("/", **sent)
            await sync_to_async(close)()  # of the thread in which it was answered
            return answer

        return asyncio.run(ask())

    with urls(path("", KINDS[kind]())):
        assert send(**FAILS).status_code == 500
        assert (orders_made(), records()) == (0, [])
        first = send()
        assert first.status_code == 201
        assert_same(first, send())
        assert [each.status for each in records()] == [201]
        assert send(seats=3).status_code == 422
        assert send(None).status_code == 400
        if kind == "viewset":
            assert send(method="get").content != send(method="get").content


# -- Django REST framework -------------------------------------------------------------------------


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


def form(boundary: str, **fields: str) -> Any:
    """A form of several parts."""
    body = encode_multipart(boundary, fields)
    return {"data": body, "content_type": f"multipart/form-data; boundary={boundary}"}


PRICES: Any = [{"data": f'{{"seats": 2, "price": 0.1234567890123456789{each}}}'} for each in (1, 2)]


@pytest.mark.parametrize("is_parsed", [False, True])
@pytest.mark.parametrize(
    "requests",
    [
        ({}, {"data": '{"seats":2}'}, {"data": {"seats": 3}}),
        (form("a", seats="2"), form("b", seats="2"), form("a", seats="3")),  # of any boundary
    ],
    ids=["JSON", "form"],
)
def test_rest_framework_compares_content_by_its_values(shop, monkeypatch, is_parsed, requests):
    """Also where a throttle has parsed it before."""
    if is_parsed:
        monkeypatch.setattr(Never, "allow_request", lambda _, request, __: bool(request.data))
    one, equal, other = requests
    assert_same(ask(**one), ask(**equal))
    assert ask(**other).status_code == 422


def test_rest_framework_compares_numbers_by_all_their_digits(shop):
    """Though its parser makes floats of them."""
    assert_same(ask(**PRICES[0]), ask(**PRICES[0]))
    assert ask(**PRICES[1]).status_code == 422


def test_rest_framework_finds_the_key_in_a_form(shop):
    """It parses one of any method; what is no JSON is its own 400."""
    assert ask(key=None, **form("c", seats="2", idempotency_key="me")).json()["key"] == "me"
    assert ask(data="{", key="other").status_code == 400


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
