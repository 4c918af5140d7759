"""What is wrong with how a view is locked: its first request says it, or check W032."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views.generic import View
from ninja import NinjaAPI
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redlock.apps import check_views
from django_redlock.views import RedlockMiddleware, checks, lock, single_flight
from django_redlock.views import rest_framework as drf
from django_redlock.views.ninja import non_atomic
from tests.support.addresses import explained

from .asking import urls

pytestmark = pytest.mark.django_db(databases=["default"])


class Busy(RedlockMiddleware):
    on_refused = "shop/none.html"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No view of another test."""
    view_locks: Any = WeakSet()
    for module in (checks, lock):
        monkeypatch.setattr(module, "view_locks", view_locks)


def told() -> list[tuple[str, str]]:
    """What is reported; each hint has an address."""
    found = check_views(app_configs=None)
    assert all(explained(each.hint) for each in found)
    return [(str(each.id).rpartition(".")[2], each.msg) for each in found]


def plain(request: Any, **_: Any) -> HttpResponse:
    """Any view."""
    return HttpResponse("done")


def unwrapped(view: Any) -> Any:
    """A decorator as it is often written, without ``functools.wraps``."""

    def called(request: Any, **found: Any) -> Any:
        return view(request, **found)

    return called


def wrapped(view: Any) -> Any:
    """The same with it."""
    return functools.wraps(view)(unwrapped(view))


def of_class(base: type, name: str, *decorators: Any, key: Any = "x") -> Any:
    """A class of views with ``post``, decorated at a method."""

    def post(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        return Response() if issubclass(base, APIView) else HttpResponse("done")

    made: Any = type("Pay", (base,), {"post": post, "permission_classes": ()})
    for each in (*decorators, single_flight(key=key)):
        made = method_decorator(each, name=name)(made)
    return made.as_view()


def of_api(*, marked: bool) -> Any:
    """The URLs of an API of django-ninja with one operation."""
    api = NinjaAPI(urls_namespace=f"api-{marked}-{id(object())}")
    api.post("/")(single_flight("x")(plain_operation))
    return non_atomic(api.urls) if marked else api.urls


def plain_operation(request: Any) -> str:
    """Any operation."""
    return "done"


def of_rest_framework(key: str) -> Any:
    """A class of REST framework as it should be."""

    @drf.single_flight(key)
    class Pay(APIView):
        permission_classes = ()

        def post(self, request: Any, **_: Any) -> Response:
            return Response()

    return Pay.as_view()


def routed(key: str) -> Any:
    """The URLs of a viewset under a router: a list, and one object."""

    @drf.single_flight(key, methods=["PATCH"])
    class Orders(ViewSet):
        permission_classes = ()

        def list(self, request: Any) -> Response:
            return Response()

        def partial_update(self, request: Any, pk: str) -> Response:
            return Response()

    router = SimpleRouter()
    router.register("orders", Orders, basename="order")
    return include(router.urls)


at = functools.partial(path, "")


BROKEN: dict[str, tuple[Callable[[], Any], bool, str]] = {
    "dispatch of REST framework": (
        lambda: at(of_class(APIView, "dispatch")),
        False,
        r"REST framework authenticates inside of the view, .*\.rest_framework",
    ),
    "a method of REST framework": (
        lambda: at(of_class(APIView, "post")),
        False,
        r"REST framework authenticates inside of the view, .*\.rest_framework",
    ),
    "a decorator": (
        lambda: at(single_flight("x")),
        False,
        r"in urls\.py write single_flight\('pay:\{pk\}'\)\(view\)",
    ),
    "a decorator of REST framework": (
        lambda: at(drf.single_flight("x")),
        False,
        "decorate a class, or write",
    ),
    "below transaction.atomic of a method": (
        lambda: at(of_class(View, "post", transaction.atomic)),
        True,
        "put it above transaction.atomic",
    ),
    "a method": (lambda: at(of_class(View, "post")), True, "and on 'dispatch' of a class"),
    "django-ninja": (lambda: path("", of_api(marked=False)), True, "non_atomic of django_redlock"),
}


UNNAMED: dict[str, Callable[[], Any]] = {
    "a method": lambda: at(of_class(View, "dispatch", key="x:{pk}")),
    "any arguments": lambda: at(single_flight("x:{pk}")(plain)),
    "another argument": lambda: path("<int:id>", of_class(View, "dispatch", key="x:{pk}")),
    "REST framework": lambda: at(of_rest_framework("x:{pk}")),
}


RIGHT: dict[str, Callable[[], Any]] = {
    "a function": lambda: at(single_flight("x")(plain)),
    "a decorator with wraps": lambda: at(wrapped(single_flight("x")(plain))),
    "above transaction.atomic": lambda: at(single_flight("x")(transaction.atomic(plain))),
    "dispatch": lambda: at(of_class(View, "dispatch", key="x:{client}:{request.path}")),
    "REST framework": lambda: at(of_rest_framework("x:{request.user.pk}")),
    "above api_view": lambda: at(drf.single_flight("x")(api_view(["POST"])(plain_of_rest))),
    "django-ninja": lambda: path("", of_api(marked=True)),
    "an argument": lambda: path("<int:pk>", of_class(View, "dispatch", key="x:{pk}")),
    "of an include": lambda: path(
        "<int:pk>/", include([re_path("(?P<n>.)", of_class(View, "dispatch", key="x:{pk}:{n}"))])
    ),
    "of extra options": lambda: path("", of_class(View, "dispatch", key="x:{pk}"), {"pk": 3}),
    "a function as the key": lambda: at(
        of_class(View, "dispatch", key=lambda request, **found: f"x:{found.get('pk')}")
    ),
    "a router": lambda: path("", routed("x:{pk}")),
}


ADDRESS = {"an argument": "/3", "of an include": "/3/4", "another argument": "/3"}


def plain_of_rest(request: Any) -> Response:
    """Any view of REST framework."""
    return Response()


def ask(mistake: str) -> Any:
    """The response to a request; what the view raises, this raises."""
    return Client().post(ADDRESS.get(mistake, "/"))


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_view_whose_every_request_fails_is_told(mistake, request):
    """By the first request, with what to write."""
    make, atomic_requests, text = BROKEN[mistake]
    if atomic_requests:
        request.getfixturevalue("orders")
    with urls(make()), pytest.raises((TypeError, RuntimeError), match=text):
        ask(mistake)


@pytest.mark.parametrize("mistake", UNNAMED)
def test_a_key_that_the_url_does_not_fill_is_told(mistake, caplog):
    """Each request is a 400, and the log says why."""
    with urls(UNNAMED[mistake]()):
        assert ask(mistake).status_code == 400
    assert "a request gets a 400: " in caplog.text
    assert "pk" in caplog.text


@pytest.mark.parametrize("atomic_requests", [False, True])
@pytest.mark.parametrize("how", RIGHT)
def test_what_is_right_is_not_told(how, atomic_requests, request):
    """And it is answered."""
    if atomic_requests:
        request.getfixturevalue("orders")
    with urls(RIGHT[how]()):
        assert told() == []
        if how != "a router":
            assert ask(how).status_code == 200


LOGIN = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
NO_IDENTITY = {
    "{request.user}": "is a User, whose text may change, and be that of others: write "
    "{request.user.pk}",
    "{request.user!s:>9}": "{request.user} in a lock's name is a User",
    "{request.session}": "is a SessionStore, whose text is its address",
    "{request.get_full_path}": "is a method, whose text is its address",
}


@pytest.mark.parametrize("field", NO_IDENTITY)
def test_an_object_of_the_request_in_a_key_is_told(field):
    """By the first request."""
    with urls(at(single_flight(f"x:{field}")(plain))), override_settings(MIDDLEWARE=LOGIN):
        client = Client()
        client.force_login(User.objects.create(username="ada"))
        with pytest.raises(TypeError, match="in a lock's name is a") as error:
            client.post("/")
    assert NO_IDENTITY[field] in str(error.value)


GUESTS: dict[str, Callable[[], Any]] = {
    "a function": lambda: at(single_flight("x:{request.user.pk}")(plain)),
    "a class": lambda: at(of_class(View, "dispatch", key="x:{request.user.id}")),
}
USERS: dict[str, Callable[[], Any]] = {
    "login_required": lambda: at(login_required(single_flight("x:{request.user.pk}")(plain))),
    "a mixin": lambda: at(
        of_class(type("Own", (LoginRequiredMixin, View), {}), "dispatch", key="x:{request.user.pk}")
    ),
    "client": lambda: at(single_flight("x:{client}:{request.user.pk}")(plain)),
}


@pytest.mark.parametrize("how", GUESTS)
def test_w032_a_key_that_is_one_for_all_guests(how):
    """django_redlock.W032: one guest would be refused while another is served."""
    with urls(GUESTS[how]()):
        ((number, said),) = told()
        middleware = ["django.contrib.auth.middleware.LoginRequiredMiddleware"]
        with override_settings(MIDDLEWARE=middleware):
            assert told() == []
    assert number == "W032"
    assert "which is None for each visitor who is not logged in" in said


@pytest.mark.parametrize("how", USERS)
def test_a_key_of_views_that_guests_do_not_reach_is_right(how):
    """As one that tells guests apart."""
    with urls(USERS[how]()):
        assert told() == []
