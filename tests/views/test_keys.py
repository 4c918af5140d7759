"""Which requests a key of `single_flight` makes equal: functions, defaults, anonymous visitors."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import BadRequest
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings
from django.utils.decorators import method_decorator
from django.views.generic import View

from django_redlock import redlock
from django_redlock.views import client, single_flight
from django_redlock.views import keys as keys_module
from django_redlock.views.decorator import Options

NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """A node in memory of one's own."""
    with override_settings(REDLOCK={"default": {"NODES": [f"memory://keys-{next(NUMBERS)}"]}}):
        yield


def asked(address: str = "/", **attributes: Any) -> Any:
    """A POST; ``headers`` are headers, and the rest are attributes of the request."""
    request = RequestFactory().post(address, headers=attributes.pop("headers", {}))
    for name, value in attributes.items():
        setattr(request, name, value)
    return request


def names_of(key: Any, request: Any, **arguments: Any) -> tuple[str, ...]:
    """The names that a request locks in a view with this key."""

    @single_flight(key=key)
    def view(request: Any, pk: int = 0, **more: Any) -> Any:
        return HttpResponse("\n".join(request.lease.names))

    return tuple(view(request, **arguments).content.decode().split("\n"))


# -- functions ------------------------------------------------------------------------------------


def test_a_function_makes_the_key_of_a_request():
    """It gets what the view gets, and its text is the name; of equal names one runs."""

    def key(request: Any, *args: Any, **kwargs: Any) -> str:
        return f"pay:{request.user.pk}:{args}:{kwargs}"

    found = []

    @single_flight(key=key, ttl=7)
    def view(request: Any, pk: int, *, slug: str) -> Any:
        found.append(request.lease.name)
        if len(found) == 1:
            assert view(asked(user=User(pk=5)), pk, slug=slug).status_code == 409
            assert view(asked(user=User(pk=6)), pk, slug=slug).status_code == 200
        return HttpResponse()

    assert view(asked(user=User(pk=5)), 7, slug="a").status_code == 200
    assert found == ["pay:5:(7,):{'slug': 'a'}", "pay:6:(7,):{'slug': 'a'}"]


def test_braces_in_what_a_function_returns_are_text():
    """A visitor who chooses the text cannot make a field of it."""
    assert names_of(lambda request: "{request.META}{0}{", asked()) == ("{request.META}{0}{",)


def test_a_function_may_return_several_names():
    """A list of names is one lock of all of them."""
    assert names_of(lambda _, pk: [f"a:{pk}", f"b:{pk}"], asked(), pk=3) == ("a:3", "b:3")
    assert names_of(lambda _: ["a"], asked()) == ("a",)


@pytest.mark.parametrize("odd", ["x" * 5000, "\N{SNOWMAN}" * 400, "a\r\nSET a b", "\x00"])
def test_what_a_function_returns_is_bounded(odd):
    """Text that is no valid name becomes a digest, which differs for different text."""
    (one,), (two,) = (names_of(lambda _, tail=tail: odd + tail, asked()) for tail in ("a", "b"))
    assert one != two
    for name in (one, two):
        assert len(name.encode()) <= 512
        assert name.isprintable()


def test_names_that_are_not_shortened_are_noticed(monkeypatch):
    """Without the digest a long text is refused, and the test above fails; no node stores it."""
    monkeypatch.setattr("django_redlock.core.names.shortened", lambda name: name)
    with pytest.raises(BadRequest, match="longer than 512 bytes"):
        names_of(lambda _: "x" * 5000, asked())


def test_a_coroutine_function_makes_the_key_of_an_async_view():
    """An async view may have a key that is awaited; a plain function works as well."""

    async def awaited(request: Any) -> str:
        await asyncio.sleep(0)
        return "awaited"

    async def view(request: Any) -> HttpResponse:
        return HttpResponse(request.lease.name)

    for key, name in ((awaited, b"awaited"), (lambda _: "plain", b"plain")):
        request = AsyncRequestFactory().post("/")
        answer: Any = asyncio.run(single_flight(key=key)(view)(request))
        assert answer.content == name
    with pytest.raises(TypeError, match="key= is a coroutine function, and the view is none"):
        single_flight(key=awaited)(lambda request: HttpResponse())


def test_a_function_makes_the_key_of_a_class():
    """`dispatch` of a class is locked by what the function returns."""

    @method_decorator(single_flight(key=lambda request, pk: f"seat:{pk}"), name="dispatch")
    class Seat(View):
        def post(self, request: Any, pk: int) -> HttpResponse:
            return HttpResponse(request.lease.name)

    assert Seat.as_view()(asked(), pk=4).content == b"seat:4"  # type: ignore[attr-defined]


@pytest.mark.parametrize("result", [None, 5, b"a", ["a", None], {"a"}])
def test_a_function_that_returns_no_text(result):
    """It is a mistake of the site, which the error explains."""
    with pytest.raises(TypeError, match=r"key= must return a str, or a list of str, not"):
        names_of(lambda _: result, asked())


@pytest.mark.parametrize("result", ["", [], ["a", ""]])
def test_an_empty_name_is_a_bad_request(result, caplog):
    """All requests without the text would share one lock; each is answered 400, and one logged."""
    for _ in range(3):
        with pytest.raises(BadRequest, match="key= returned an empty name"):
            names_of(lambda _: result, asked())
    assert "a request is answered 400" in caplog.text


def test_what_a_function_raises():
    """ValueError is the request's fault, as of `int("x")`; anything else is raised as it is."""
    with pytest.raises(BadRequest):
        names_of(lambda request: f"{int(request.GET['n'])}", asked("/?n=x"))
    with pytest.raises(KeyError):
        names_of(lambda request: request.GET["n"], asked())


def test_two_keys_are_refused():
    """One as the first argument and one by name."""
    with pytest.raises(TypeError, match="got two keys"):
        single_flight("a", key="b")  # type: ignore[call-overload]


# -- defaults -------------------------------------------------------------------------------------

HEADER = "{request.headers[X-Order]|none}"


@pytest.mark.parametrize(
    ("key", "request_", "name"),
    [
        (HEADER, {}, "none"),
        (HEADER, {"headers": {"x-order": "7"}}, "7"),
        (HEADER, {"headers": {"x-order": "{request}|x"}}, "{request}|x"),
        ("{request.user.tenant.pk|nobody}", {"user": User(pk=1)}, "nobody"),
        ("{request.user.pk|nobody}", {"user": AnonymousUser()}, "nobody"),
        ("{request.user.pk|nobody}", {"user": User(pk=1)}, "1"),
        ("{request.tenant|}a", {}, "a"),
        ("{request.GET[a|b]|c}", {}, "c"),
        ("{slug|none}:{request.method}", {}, "none:POST"),
        ("{{x|y}}:{slug|z}", {}, "{x|y}:z"),
        ("{slug|none!r:>8}", {}, "  'none'"),
        ("{pk:|>5}", {}, "||||0"),
        ("{slug|a}{other|b}", {}, "ab"),
    ],
)
def test_a_field_may_have_a_default(key, request_, name):
    """`{field|default}` is the default where the request lacks the field, or it is None."""
    assert names_of(key, asked(**request_)) == (name,)


def test_defaults_of_several_names():
    """Each name of a list has its own."""
    key = ["a:{slug|x}", "b:{other|y}"]
    assert names_of(key, asked(), other="z") == ("a:x", "b:z")


def test_a_default_in_a_class():
    """Behind `dispatch`, whose arguments nobody knows before the call."""

    @method_decorator(single_flight(HEADER), name="dispatch")
    class Order(View):
        def post(self, request: Any) -> HttpResponse:
            return HttpResponse(request.lease.name)

    assert Order.as_view()(asked()).content == b"none"  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["{other|x}", "{other.pk|x}", "{pk|x", "{|x}"])
def test_a_default_does_not_hide_a_mistake(key):
    """A field that the view does not have is found at decoration, with a default as without."""
    with pytest.raises(ValueError, match="lock name"):
        single_flight(key)(lambda request, pk: HttpResponse())


def test_without_a_default_the_request_is_refused(caplog):
    """The default is asked for, or there is none; the log shows the key as it is written."""
    key = "{slug|x}:{request.headers[X-Order]}"
    with pytest.raises(BadRequest):
        names_of(key, asked())
    (line,) = caplog.records
    assert line.redlock_name == (key.replace("|x", ""),)


# -- anonymous visitors ---------------------------------------------------------------------------


def visitors() -> list[Any]:
    """Two users, and visitors with two sessions and two addresses."""
    nobody: Any = {"user": AnonymousUser()}
    found = [asked(user=User(pk=pk)) for pk in (1, 2)]
    found += [asked(**nobody, session=SessionStore(session_key=key * 8)) for key in "ab"]
    found += [asked(**nobody), asked(**nobody)]
    found[-1].META["REMOTE_ADDR"] = "10.1.2.3"
    return found


def test_client_tells_anonymous_visitors_apart():
    """`{client}` is the user, else the session, else the address; `{request.user.pk}` is not."""
    assert len({names_of("pay:{client}", each) for each in visitors()}) == 6
    assert len({names_of("pay:{request.user.pk}", each) for each in visitors()}) == 3
    assert len({names_of(client, each) for each in visitors()}) == 6
    assert names_of("pay:{client}", visitors()[0]) == ("pay:user:1",)


def test_an_argument_named_client_is_the_views_own():
    """A view that has such an argument means that one, also behind `**kwargs`."""

    @single_flight("{client}")
    def view(request: Any, client: str) -> HttpResponse:
        return HttpResponse(request.lease.name)

    assert view(asked(), "mine").content == b"mine"
    assert names_of("{client}", asked(), client="yours") == ("yours",)


FORGED = {"x-forwarded-for": "10.9.9.9", "x-real-ip": "10.9.9.9", "forwarded": "for=10.9.9.9"}


def names_of_a_forger() -> set[tuple[str, ...]]:
    """The names that one anonymous visitor reaches by sending addresses."""
    requests = [asked(), asked(headers=FORGED)]
    return {names_of(key, each) for key in (None, "view:{client}:POST:/") for each in requests}


def test_no_header_makes_another_visitor():
    """Who sends `X-Forwarded-For` gets the same lock: what a visitor writes is not believed."""
    assert names_of_a_forger() == {("view:address:127.0.0.1:POST:/",)}


def test_a_client_that_believes_the_header_is_noticed(monkeypatch):
    """With an address from the header a visitor would have as many locks as he likes."""

    def believing(request: Any) -> str:
        return f"address:{request.headers.get('X-Forwarded-For')}"

    monkeypatch.setattr(keys_module, "client", believing)
    assert len(names_of_a_forger()) > 1


def test_the_lock_of_a_function_is_the_lock_of_its_name():
    """`redlock` with the same name excludes the view."""
    view = single_flight(key=lambda _: "shared")(lambda request: HttpResponse())
    with redlock("shared"):
        assert view(asked()).status_code == 409


def test_type_checkers_know_every_option():
    """The options for type checkers are those of the function."""
    options = set(inspect.signature(single_flight).parameters) - {"first", "key"}
    assert set(Options.__annotations__) == options
