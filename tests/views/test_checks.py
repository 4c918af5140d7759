"""The system checks of views: E003, E004, W021 and W022. What is right is not told."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
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
from django_redlock.idempotency import idempotent
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


async def aplain(request: Any) -> HttpResponse:
    """Any async view."""
    return HttpResponse("done")


async def amarked(request: Any) -> HttpResponse:
    """Another one, for a decorator that marks what it gets."""
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
        "Pay is a view of REST framework, which authenticates inside",
    ),
    "a method of REST framework": (
        lambda: at(of_class(APIView, "post")),
        False,
        "Pay is a view of REST framework, which authenticates inside",
    ),
    "a decorator": (lambda: at(single_flight("x")), False, "without a view"),
    "a decorator of REST framework": (lambda: at(drf.single_flight("x")), False, "without a view"),
    "below transaction.atomic of a method": (
        lambda: at(of_class(View, "post", transaction.atomic)),
        True,
        "opens a transaction around it",
    ),
    "a method": (
        lambda: at(of_class(View, "post")),
        True,
        "ATOMIC_REQUESTS opens a transaction around it",
    ),
    "django-ninja": (
        lambda: path("", of_api(marked=False)),
        True,
        "ATOMIC_REQUESTS opens a transaction around it",
    ),
    "async": (
        lambda: at(single_flight("x")(aplain)),
        True,
        "an async view can have no transaction",
    ),
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
    "async": lambda: at(single_flight("x")(transaction.non_atomic_requests("orders")(amarked))),
}


ADDRESS = {"an argument": "/3", "of an include": "/3/4", "another argument": "/3"}


def plain_of_rest(request: Any) -> Response:
    """Any view of REST framework."""
    return Response()


def ask(mistake: str) -> Any:
    """The response to a request; what the view raises, this raises."""
    address = ADDRESS.get(mistake, "/")
    if "async" not in mistake:
        return Client().post(address)
    return asyncio.run(AsyncClient().post(address))


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_view_whose_every_request_fails_is_told(mistake, request):
    """By the check, what its request says; both in the same words of what to write."""
    make, atomic_requests, text = BROKEN[mistake]
    if atomic_requests:
        request.getfixturevalue("orders")
    with urls(make()):
        ((number, said),) = told()
        with pytest.raises((TypeError, RuntimeError)):
            ask(mistake)
    assert number == "E004"
    assert text in said


@pytest.mark.parametrize("mistake", UNNAMED)
def test_a_key_that_the_url_does_not_fill_is_told(mistake):
    """Each request would be a 400."""
    with urls(UNNAMED[mistake]()):
        ((number, said),) = told()
        assert ask(mistake).status_code == 400
    assert number == "W022"
    assert "has {pk} in its key" in said


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


PROJECT = """\
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.response import Response
from rest_framework.views import APIView
from tests.settings import *

from django_redlock.views import single_flight

ROOT_URLCONF = __name__ + "_urls"
REDLOCK = {"default": {"NODES": ["redis://10.0.0.1"]}}
ENGINE = "django.db.backends.sqlite3"
DATABASES = {"default": {"ENGINE": ENGINE, "NAME": ":memory:", "ATOMIC_REQUESTS": True}}
"""


URLS = """\
from placed import *


@method_decorator(single_flight("a"), name="dispatch")
class OfRestFramework(APIView):
    def post(self, request):
        return Response()


@single_flight("c:{pk}")
def unnamed(request, **kwargs):
    return HttpResponse()


@single_flight("d", ttl=600)
def long(request):
    return HttpResponse()


urlpatterns = [
    path("a", OfRestFramework.as_view()),
    path("c", unnamed),
    path("d", long),
    path("e", single_flight("e")),
]
"""


@pytest.mark.slow
def test_the_command_tells_one_of_each_sort(tmp_path):
    """In a process of its own, whose URLs nobody has imported."""
    (tmp_path / "placed.py").write_text(PROJECT)
    (tmp_path / "placed_urls.py").write_text(URLS)
    ran = subprocess.run(
        [sys.executable, "-m", "django", "check", "--settings", "placed"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:."},
        capture_output=True,
        text=True,
        check=False,
    )
    said = " ".join(ran.stderr.split())
    assert ran.returncode == 1
    assert "Traceback" not in said
    locks = "answers each request that it locks with a 500:"
    for line, text in (
        (4, f"{locks} OfRestFramework is a view of REST framework"),
        (10, "has {pk} in its key, and the URL 'c' has no such argument"),
        (15, "answers each request with a 500: ttl=600 is above MAX_TTL"),
    ):
        assert f"The single_flight of placed_urls, line {line} {text}" in said
    assert "E004) The view of the URL 'e' is single_flight(...) without a view" in said
    assert re.findall(r"django_redlock\.(\w+)", said).count("E004") == 2


# -- options and templates -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"alias": "payments"}, "has no alias 'payments'; it has: 'default'"),
        ({"ttl": 61}, "ttl=61 is above MAX_TTL"),
        ({"min_hold": 61}, "min_hold=61 is above MAX_TTL"),
        ({"ttl": 0.001}, "too short"),
    ],
)
def test_e003_a_lock_that_no_request_can_have(given, problem):
    """django_redlock.E003: of functions, classes and views of REST framework, by their line."""
    function = single_flight("a", **given)(plain)
    every = [function]
    every.append(method_decorator(single_flight(**given), name="dispatch")(type("V", (View,), {})))
    every.append(drf.single_flight("c", **given)(type("R", (APIView,), {})))
    found = told()
    assert len(found) == len(every)
    for number, message in found:
        assert number == "E003"
        assert problem in message
        assert f"{__name__}, line " in message
    assert len(set(found)) == len(every)


LOGIN = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
NO_IDENTITY = {
    "{request.user}": "is a User, whose text may change, and be that of others: write "
    "{request.user.pk}, or {client} in the key of a view",
    "{request.user!s:>9}": "{request.user} in a lock's name is a User",
    "{request.session}": "is a Session, whose text is its address",
    "{request.get_full_path}": "is a method, whose text is its address",
}


@pytest.mark.parametrize("field", NO_IDENTITY)
def test_e004_an_object_of_the_request_in_a_key(field):
    """django_redlock.E004: what a request would be told is told before there is one."""
    every = [single_flight(f"x:{field}")(plain), of_rest_framework(f"x:{field}")]
    every.append(of_class(View, "dispatch", key=f"x:{field}"))
    with urls(at(every[0])), override_settings(MIDDLEWARE=LOGIN):
        client = Client()
        client.force_login(User.objects.create(username="ada"))
        with pytest.raises(TypeError, match="in a lock's name is a"):
            client.post("/")
    found = told()
    assert len(found) == len(every)
    for number, message in found:
        assert number == "E004"
        assert "answers each request that it locks with a 500: {request." in message
        assert NO_IDENTITY[field] in message


@pytest.mark.parametrize("part", ["key", "scope"])
def test_e004_names_the_answer_of_an_idempotent(part):
    """Its scope counts as its key does, and what is missing there is answered 400."""
    given: dict[str, Any] = {"key": "x", "scope": "y", part: "{request.user}"}
    kept = idempotent(**given)(plain)
    ((number, message),) = told()
    assert number == "E004"
    assert "answers each request that it locks with a 400: {request.user}" in message
    del kept


@pytest.mark.parametrize(
    "field",
    [
        "{client}",
        "{request.user.pk}",
        "{request.user.team.pk}",
        "{request.path}",
        "{request.session.session_key}",
        "{request.headers[X-Order]}",
        "{request.tenant}",
    ],
)
def test_what_identifies_a_request_is_not_told(field):
    """Nor what only the project knows."""
    kept = [single_flight(f"x:{field}")(plain)]
    assert told() == []
    assert kept


def test_what_is_wrong_with_redlock_is_told_by_its_own_checks():
    """No view is blamed for settings that are missing, or wrong."""
    kept = [single_flight("a", ttl=600)(plain)]
    settings: tuple[Any, ...] = ({}, None, {"default": {"NODES": []}})
    for setting in settings:
        with override_settings(REDLOCK=setting):
            assert told() == []
    assert [number for number, _ in told()] == ["E003"]
    assert kept


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


def test_w021_an_address_that_there_is_not():
    """django_redlock.W021: a misspelt name, which no request but a refused one would look up."""
    for result, why in (("ordrs", "is none of the URLconf"), ("order", "needs arguments")):
        kept = single_flight("x", result=result)(plain)
        with urls(path("", kept, name="orders"), path("<int:pk>", plain, name="order")):
            ((number, said),) = told()
        assert number == "W021"
        assert why in said
        del kept
        gc.collect()
    for result in ("orders", "/orders/"):
        kept = single_flight("x", result=result)(plain)
        with urls(path("", kept, name="orders")):
            assert told() == []


@pytest.mark.parametrize("text", [None, "{% if %}"])
def test_w021_a_template_that_cannot_be_loaded(text, tmp_path):
    """django_redlock.W021: of a view or a middleware, and whether it is missing or wrong."""
    kept = [single_flight("a", on_refused="shop/none.html")(plain)]
    (tmp_path / "shop").mkdir()
    if text is not None:
        (tmp_path / "shop/none.html").write_text(text)
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [tmp_path]}
    names = [f"{__name__}.Busy", "django_redlock.views.RedlockMiddleware", "nowhere.Middleware"]
    with override_settings(TEMPLATES=[engine], MIDDLEWARE=names):
        first, second = told()
    (tmp_path / "shop/none.html").write_text("{{ refusal.detail }}")
    with override_settings(
        TEMPLATES=[engine], MIDDLEWARE=names
    ):  # loaders remember what is missing
        assert told() == []
    for number, message in (first, second):
        assert number == "W021"
        assert "'shop/none.html'" in message
    assert "single_flight of" in first[1]
    assert f"middleware {__name__}.Busy" in second[1]
    assert kept


@pytest.mark.slow
def test_a_view_that_is_gone_is_not_checked():
    """The list of views keeps none alive."""
    single_flight("a", ttl=600)(plain)
    gc.collect()
    assert told() == []
