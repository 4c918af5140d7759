"""Which requests a key of `single_flight` makes equal: fields, functions, visitors."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.exceptions import BadRequest
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View

from django_redlock.views import client, single_flight

from .asking import asked, call, post
from .test_views import examples


def names_of(key: Any, request: Any, **arguments: Any) -> tuple[str, ...]:
    """The names that a request locks in a view with this key."""

    @single_flight(key=key)
    def view(request: Any, pk: int = 0, **more: Any) -> Any:
        return HttpResponse("\n".join(request.lease.names))

    return tuple(view(request, **arguments).content.decode().split("\n"))


def name_of(request: Any, key: Any = None) -> str:
    """The name that the request locks."""
    (name,) = names_of(key, request)
    return name


def tells(request: Any) -> HttpResponse:
    """A view that tells the name of its lock."""
    return HttpResponse(request.lease.name)


async def atells(request: Any) -> HttpResponse:
    """The same, async."""
    return tells(request)


def session(key: str) -> SessionStore:
    """A session with this key."""
    return SessionStore(session_key=key)


# -- without a key ---------------------------------------------------------------------------------


def test_the_default_key_is_who_method_and_path():
    """A logged-in user's requests are equal when method and path are."""
    user = User(pk=5)
    assert name_of(asked("/a/?x=1", user=user)) == "view:user:5:POST:/a/"
    assert name_of(asked("/a/", "PUT", user=user)) == "view:user:5:PUT:/a/"
    assert name_of(asked("/a/", user=User(pk=6))) == "view:user:6:POST:/a/"
    assert name_of(asked("/a/")) == "view:address:127.0.0.1:POST:/a/"
    assert name_of(asked("/a/", user=AnonymousUser())) == "view:address:127.0.0.1:POST:/a/"
    assert name_of(asked(REMOTE_ADDR="::1")) == "view:address:%3A%3A1:POST:/checkout/"


def test_a_session_stands_in_for_a_user_and_is_not_shown():
    """Anonymous requests are equal within a session; its key, a secret, is hashed."""
    anonymous: Any = {"user": AnonymousUser(), "session": session("secret" * 6)}
    name = name_of(asked(**anonymous))
    digest = hashlib.sha256(b"secret" * 6).hexdigest()[:32]
    assert name == f"view:session:{digest}:POST:/checkout/"
    assert name_of(asked(session=session("other" * 6))) != name
    assert name_of(asked(session=SessionStore())).startswith("view:address:")


def test_kinds_and_parts_cannot_run_into_each_other():
    """No user, session, address or path spells the name of another."""
    names = [
        name_of(asked("/x", user=User(pk=pk))) for pk in ("5", "5:POST:/x", "session", "%", "%25")
    ]
    names += [name_of(asked("/x:POST:/x", user=User(pk=5)))]
    names += [name_of(asked("/x", session=session(key * 8))) for key in ("user:5", "12345678")]
    names += [name_of(asked("/x", REMOTE_ADDR=at)) for at in ("5", "user:5", "")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("of_a_function", [False, True])
@pytest.mark.parametrize(
    "odd", ["x" * 5000, "\N{SNOWMAN}" * 400, "a\r\nSET a b", "\x00", "{who}{0}{"]
)
def test_odd_texts_are_bounded(odd, of_a_function):
    """What a stranger chooses makes a name of at most 512 bytes that is still his own."""
    names = []
    for tail in "aab":
        request = asked("/")
        request.path = f"/{odd}{tail}"
        names.append(name_of(request, (lambda asked: asked.path) if of_a_function else None))
    assert names[0] == names[1] != names[2]
    for name in names:
        assert len(name.encode()) <= 512
        assert name.startswith("view:address:127.0.0.1:POST:/" if not of_a_function else "")
        assert name.isprintable()


# -- fields ----------------------------------------------------------------------------------------


def test_a_key_is_filled_from_request_and_arguments():
    """A key's fields are the request and the view's arguments by name, defaults included."""

    @single_flight("{request.user.pk}:{pk}:{slug}:{kind}:{req.method}")
    def view(req, pk, slug, kind="new"):
        return HttpResponse(req.lease.name)

    request = asked(user=User(pk=5))
    assert view(request, 7, slug="a b").content == b"5:7:a b:new:POST"
    assert view(request, pk=7, slug="a", kind="old").content == b"5:7:a:old:POST"


def test_a_key_knows_what_the_url_gives():
    """The arguments of the URL are fields of the key, in functions, classes and `**kwargs`."""

    class Class(View):
        def post(self, request, pk):
            return tells(request)

    function = single_flight("order:{pk}")(lambda request, pk: tells(request))
    anything = single_flight("order:{pk}")(lambda request, **kwargs: tells(request))
    dispatch = method_decorator(single_flight("order:{pk}:{request.method}"), name="dispatch")
    views = {function: b"order:4", anything: b"order:4", dispatch(Class).as_view(): b"order:4:POST"}
    for view, name in views.items():
        assert post(view, "/4", "<int:pk>").content == name


@pytest.mark.parametrize(
    "key",
    [
        "order:{order_id}", "{pk|x}", "{other.pk}", "{}", "{0}", "{pk", "pk}", "{request.GET[a]|x}",
        "\n", "", "a:{pk!z}", "a:{request..user}", "a:{request.user[pk}", "{pk:{q}}",
    ],
)  # fmt: skip
def test_a_key_that_no_request_can_fill_is_refused_at_decoration(key):
    """A field that no argument fills, and what is no template."""
    with pytest.raises(ValueError, match="name"):
        single_flight(key)(lambda request, pk: HttpResponse())

    if key in {"{}", "{0}", "{pk", "pk}"}:  # nor behind `**kwargs`, where any name is a field
        with pytest.raises(ValueError, match=r"name|format|expected"):
            single_flight(key)(lambda request, **kwargs: None)


# -- requests that lack what a key needs -----------------------------------------------------------


keyed = single_flight("key:{request.headers[X-Order]}:{request.POST[amount]}")(tells)
akeyed = single_flight("key:{request.GET[order]}")(atells)
nobody = single_flight("key:{request.user.tenant.pk}")(tells)  # nobody sets a user
urlpatterns = [path("keyed/", keyed), path("akeyed/", akeyed), path("nobody/", nobody)]


@pytest.mark.parametrize("debug", [False, True])
@override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[])
def test_what_a_key_needs_and_a_request_lacks(debug):
    """A header, a form field or an attribute that is not there makes a 400, not a 500."""
    with override_settings(DEBUG=debug):
        client, aclient = Client(), AsyncClient()
        for address in ("/keyed/", "/nobody/", "/akeyed/"):
            assert client.post(address).status_code == 400
        assert asyncio.run(aclient.post("/akeyed/")).status_code == 400
        assert client.post("/keyed/", headers={"x-order": "1"}).status_code == 400
        there = client.post("/keyed/", {"amount": "5"}, headers={"x-order": "1"})
        assert (there.status_code, there.content) == (200, b"key:1:5")
        assert asyncio.run(aclient.post("/akeyed/?order=1")).status_code == 200


def test_what_was_sent_is_not_quoted():
    """The error of a request that lacks something names the field, and quotes nothing sent."""
    request = asked(headers={"x-secret": "s3cr3t"})
    with pytest.raises(BadRequest) as error:
        keyed(request)
    assert "{request.headers[X-Order]}" in str(error.value)
    assert "s3cr3t" not in str(error.value)


# -- functions, visitors ---------------------------------------------------------------------------


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


def test_a_function_may_return_several_names():
    """A list of names is one lock of all of them."""
    assert names_of(lambda _, pk: [f"a:{pk}", f"b:{pk}"], asked(), pk=3) == ("a:3", "b:3")
    assert names_of(lambda _: ["a"], asked()) == ("a",)


def test_a_coroutine_function_makes_the_key_of_an_async_view():
    """An async view may have a key that is awaited; a plain function works as well."""

    async def awaited(request: Any) -> str:
        await asyncio.sleep(0)
        return "awaited"

    for key, name in ((awaited, b"awaited"), (lambda _: "plain", b"plain")):
        assert call(single_flight(key=key)(atells), asked()).content == name


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
    assert "a request gets a 400" in caplog.text


def test_what_a_function_raises():
    """ValueError is the request's fault, as of `int("x")`; anything else is raised as it is."""
    with pytest.raises(BadRequest):
        names_of(lambda request: f"{int(request.GET['n'])}", asked("/?n=x"))
    with pytest.raises(KeyError):
        names_of(lambda request: request.GET["n"], asked())


def test_the_log_shows_the_key_as_it_is_written(caplog):
    """With its fields, of which the request lacks one."""
    key = "{slug}:{request.headers[X-Order]}"
    with pytest.raises(BadRequest):
        names_of(key, asked(), slug="x")
    (line,) = caplog.records
    assert line.redlock_name == (key,)


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


FORGED = {"x-forwarded-for": "10.9.9.9", "x-real-ip": "10.9.9.9", "forwarded": "for=10.9.9.9"}


def test_no_header_makes_another_visitor():
    """Who sends `X-Forwarded-For` gets the same lock: what a visitor writes is not believed."""
    requests = [asked("/"), asked("/", headers=FORGED)]
    names = {names_of(key, each) for key in (None, "view:{client}:POST:/") for each in requests}
    assert names == {("view:address:127.0.0.1:POST:/",)}


@pytest.mark.parametrize(
    ("proxy", "header", "address"),
    [
        ("10.0.0.5", "1.1.1.1", "1.1.1.1"),
        ("10.0.0.5", "9.9.9.9, 1.1.1.1", "1.1.1.1"),
        ("10.0.0.5", "", "10.0.0.5"),
        ("2.2.2.2", "9.9.9.9", "2.2.2.2"),
    ],
)
def test_the_middleware_of_the_how_to_believes_its_proxy(proxy, header, address):
    """It takes the address that the proxy appended, and nothing of another client's."""
    trusting = examples()["trust_proxies"](lambda request: name_of(request, "{client}"))
    asking = asked(headers={"x-forwarded-for": header}, REMOTE_ADDR=proxy)
    assert trusting(asking) == f"address:{address}"
