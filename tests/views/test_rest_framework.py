"""``@single_flight`` for views of Django REST framework: the real package, with its tokens."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import include, path
from rest_framework import exceptions
from rest_framework.decorators import action, api_view
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import Serializer
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_redlock import LeaseLost, current_lease, redlock
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.views import IgnoreRefusals
from django_redlock.views import rest_framework as drf
from django_redlock.views import single_flight as plain

from .asking import BEGUN, count, in_transaction, insert, is_free, urls
from .tokens import Tokens

pytestmark = pytest.mark.django_db(databases=["default"])


class Base(APIView):
    """What the views have in common."""

    authentication_classes = (Tokens,)
    permission_classes = (IsAuthenticated,)


def ask(method: str = "post", address: str = "/", user: int | str = 5, **options: Any) -> Any:
    """The response to a request with a token."""
    headers = {"Authorization": f"Token {user}"} | options.pop("headers", {})
    call = getattr(Client(raise_request_exception=options.pop("raises", True)), method)
    return call(address, headers=headers, **options)


@drf.single_flight("pay:{client}")
class Pay(Base):
    """Inserts a row and tells what it sees."""

    def post(self, request: Any) -> Response:
        insert()
        assert request.lease is current_lease()
        return Response({"held": redlock("pay:user:5").state().held, "in": in_transaction()})

    def get(self, request: Any) -> Response:
        assert request.lease is None
        return Response(in_transaction())


def test_the_lock_is_around_the_transaction_and_behind_the_token(orders, caplog):
    """Each user has a lock of its own; a request without a token takes none."""
    with urls(path("", Pay.as_view())):
        done = ask()
        assert (done.status_code, done.json()) == (200, {"held": True, "in": {"orders": True}})
        assert is_free("pay:user:5")
        with redlock("pay:user:5"):
            refused = ask()
            assert (refused.status_code, refused.headers["Retry-After"]) == (409, "1")
            assert refused.headers["Content-Type"] == "application/problem+json"
            assert refused.json()["detail"].startswith("This request was not carried out")
            (record,) = [each for each in caplog.records if each.name == "django.request"]
            assert not IgnoreRefusals().filter(record)
            assert ask("get").json() == {"orders": True}
            assert ask(user="nobody").status_code == 401
    assert count() == 1


def test_nothing_of_django_is_open_when_an_exception_is_handled(orders):
    """What the handler wrote is rolled back, the lock is free, and the answer is DRF's."""
    seen = []

    @drf.single_flight("order")
    class View(Base):
        def post(self, request: Any) -> Response:
            insert()
            raise exceptions.ValidationError({"seat": ["taken"]})

        def handle_exception(self, exc: Exception) -> Response:
            seen.append((in_transaction(), is_free("order")))
            return super().handle_exception(exc)

    with urls(path("", View.as_view())):
        answer = ask()
    assert (answer.status_code, answer.json()) == (400, {"seat": ["taken"]})
    assert seen == [({"orders": False}, True)]
    assert count() == 0


class Orders(ViewSet):
    """A viewset with an action of its own."""

    authentication_classes = (Tokens,)

    def create(self, request: Any) -> Response:
        return Response({"lease": request.lease.name, "in": in_transaction()})

    def list(self, request: Any) -> Response:
        return Response({"lease": request.lease, "in": in_transaction()})

    @action(detail=True, methods=["post"])
    def pay(self, request: Any, pk: str) -> Response:
        return Response({"lease": request.lease.name, "in": in_transaction()})

    @action(detail=True, methods=["post"])
    def ship(self, request: Any, pk: str) -> Response:
        return Response({"lease": request.lease, "in": in_transaction()})


def test_actions_of_a_viewset(orders):
    """Each has the lock that its decorator says, and its transaction; the others have theirs."""

    @drf.single_flight("create:{client}", actions=["create"])
    @drf.single_flight("pay:{pk}", actions=["pay"])
    class Sales(Orders):
        pass

    router = SimpleRouter()
    router.register("orders", Sales, basename="order")
    inside = {"in": {"orders": True}}
    with urls(path("", include(router.urls))):
        assert ask(address="/orders/").json() == {"lease": "create:user:5", **inside}
        assert ask(address="/orders/7/pay/").json() == {"lease": "pay:7", **inside}
        assert ask(address="/orders/7/ship/").json() == {"lease": None, **inside}
        assert ask("get", address="/orders/").json() == {"lease": None, **inside}
        assert ask("delete", address="/orders/").status_code == 405
        with redlock("pay:7"):
            assert ask(address="/orders/7/pay/").status_code == 409
            assert ask(address="/orders/8/pay/").status_code == 200


def test_a_subclass_is_locked_and_may_say_how(orders):
    """Also where its ``initial()`` calls no other; its own decorator replaces its parent's."""

    class Child(Pay):
        def initial(self, request: Any, *args: Any, **kwargs: Any) -> None: ...

        def post(self, request: Any) -> Response:
            return Response(request.lease.name)

    @drf.single_flight("own")
    class Own(Child):
        pass

    with urls(path("child/", Child.as_view()), path("own/", Own.as_view())):
        assert ask(address="/child/").json() == "pay:user:5"
        assert ask(address="/own/").json() == "own"


# -- what is done once, when the view is decorated -------------------------------------------------


def function(request: Any, pk: int) -> Response:
    """For ``@api_view``."""
    return Response()


@pytest.mark.parametrize(
    "make",
    [
        lambda: type("View", (Base,), {"post": lambda self, request, pk: None}),
        lambda: type("View", (Orders,), {}),
        lambda: api_view(["POST"])(function),
    ],
    ids=["a class", "a viewset", "a function"],
)
def test_a_key_that_the_handler_does_not_fill_is_refused(make):
    """A field, or an argument of a function, that no handler to be locked has."""
    with pytest.raises(ValueError, match=r"uses \{order\}"):
        drf.single_flight("pay:{order}")(make())
    with pytest.raises(TypeError, match=r"takes \(request\), and is called with \(request, pk\)"):
        drf.single_flight(key=lambda request: "x")(make())
    drf.single_flight("pay:{client}:{request.data[order]}")(make())


# -- the exception handler ------------------------------------------------------------------------


@pytest.mark.parametrize(("accept", "page"), [("application/json", False), ("text/html", True)])
def test_a_lock_that_a_view_takes_itself(orders, handled, accept, page):
    """It is answered 409, and rolled back; what is no refusal stays what it was."""

    class View(Base):
        def post(self, request: Any) -> Response:
            insert()
            if request.query_params:
                raise LeaseLost(because(ReasonCode.LOST))
            with redlock("stock", durable=False):
                return Response()

        serializer_class = Serializer

    with urls(path("", View.as_view())), redlock("stock"):
        refused = ask(headers={"Accept": accept})
        assert ask(address="/?lost=1", raises=False).status_code == 500
        assert ask(user="nobody").status_code == 401
    assert (refused.status_code, refused.headers.get("Retry-After")) == (409, None)
    assert refused.headers["Cache-Control"] == "no-store"
    assert refused.headers["Content-Type"].startswith("application/problem+json") or page
    assert BEGUN in refused.content.decode()
    assert count() == 0


# -- the wrong ways -------------------------------------------------------------------------------

RIGHT = r"write @single_flight\(\.\.\.\) of django_redlock\.views\.rest_framework"


def test_what_as_view_made_is_refused():
    """In urls.py, or above ``@api_view``."""
    with pytest.raises(TypeError, match=RIGHT):
        plain("order:{client}")(Pay.as_view())
    with pytest.raises(TypeError, match=RIGHT):
        plain("order")(api_view(["POST"])(lambda request: Response()))


def test_what_is_no_view_of_the_framework_is_refused():
    """With the name of the decorator for other views."""

    def view(request: Any) -> None: ...

    for other in (view, dict, None, 7):
        with pytest.raises(TypeError, match=r"other views: django_redlock\.views\.single_flight"):
            drf.single_flight("order")(other)  # type: ignore[type-var]
    for direct in (Pay, Pay.as_view()):
        with pytest.raises(TypeError, match="has parentheses"):
            drf.single_flight(direct)


def test_actions_that_make_no_sense_are_refused():
    """What is no list of actions of the viewset is refused, with what to write."""
    wrong: Any
    for wrong, example in ("pay", "pay"), ([], "create"), ([1], "create"), (5, "create"):
        told = rf"actions must be a list of names, as \['{example}'\]$"
        with pytest.raises(TypeError, match=told):
            drf.single_flight("order", actions=wrong)

    class Looks(Orders):
        @action(detail=True)  # for GET
        def look(self, request: Any, pk: str) -> None: ...

    with pytest.raises(ValueError, match=r"Looks\.look is for GET, which is not in methods="):
        drf.single_flight("order", actions=["look"])(Looks)
    drf.single_flight("order", actions=["look"], methods=["GET"])(Looks)
    with pytest.raises(TypeError, match="is no viewset: leave actions= out"):
        drf.single_flight("order", actions=["post"])(Base)
    with pytest.raises(ValueError, match="Orders has no action refund"):
        drf.single_flight("order", actions=["pay", "refund"])(Orders)
    with pytest.raises(TypeError, match="has a single_flight for every action already"):
        drf.single_flight("order")(drf.single_flight("order")(type("Twice", (Orders,), {})))


# -- what REST framework answers itself ----------------------------------------------------------


def test_a_request_that_lacks_a_field_is_answered_in_json(orders, caplog):
    """A body without the field, or of another shape, is a 400 of REST framework, and logged."""

    @drf.single_flight("order:{request.data[order]}")
    class View(Base):
        def post(self, request: Any) -> Response:
            return Response(request.lease.name)

    with urls(path("", View.as_view())):
        told = {"content_type": "application/json"}
        assert ask(data='{"order": 5}', **told).json() == "order:5"
        for body in ('{"other": 5}', "[1]"):
            refused = ask(data=body, **told)
            assert (refused.status_code, refused.json()) == (400, {"detail": "Malformed request."})
    assert "{request.data[order]}" in caplog.text
