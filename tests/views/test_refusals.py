"""What a site's log and its ADMINS get of requests that `single_flight` refuses."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import BadRequest
from django.http import HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View

from django_redlock import conf, redlock
from django_redlock.views import IgnoreRefusals, single_flight
from django_redlock.views.lock import LOG_EVERY as EVERY
from django_redlock.views.lock import LogThrottle
from tests.docs.pages import blocks

VIEWS = Path(__file__).parents[2] / "docs/how-to/views.md"
SITE = """
import asyncio, json, logging, sys

import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path

lines = []

class Keep(logging.Handler):
    def emit(self, record):
        lines.append([record.name, record.levelname, record.getMessage()])

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"keep": {"()": "__main__.Keep"}},
    "root": {"handlers": ["keep"], "level": "WARNING"},
}
if "filtered" in sys.argv:
    merged = json.loads(sys.argv[2])
    LOGGING |= {"filters": merged["filters"], "loggers": merged["loggers"]}
LOCMEM = "django.core.mail.backends.locmem.EmailBackend"
MAIL = {"EMAIL_BACKEND": LOCMEM}
if django.VERSION >= (6, 1):
    MAIL = {"MAILERS": {"default": {"BACKEND": LOCMEM}}}
settings.configure(
    ADMINS=["ops@example.org"] if django.VERSION >= (6,) else [("Ops", "ops@example.org")],
    ALLOWED_HOSTS=["testserver"],
    **MAIL,
    INSTALLED_APPS=["django_redlock"],
    LOGGING=LOGGING,
    REDLOCK={"default": {"NODES": ["memory://a"]}},
    ROOT_URLCONF="__main__",
    SECRET_KEY="not a secret",
)
django.setup()

from django.core import mail
from django.test import AsyncClient, Client
from django_redlock import conf, redlock
from django_redlock.views import single_flight

mail.outbox = []

def fail():
    raise RuntimeError("a fault of the site")

@single_flight("pay")
def pay(request):
    return fail() if "fail" in request.GET else HttpResponse("paid")

@single_flight("apay")
async def apay(request):
    return fail() if "fail" in request.GET else HttpResponse("paid")

def unavailable(request):
    return HttpResponse("the site's own", status=503)

@single_flight("key:{request.headers[X-Order]}")
def keyed(request):
    return HttpResponse("ran")

urlpatterns = [path("pay/", pay), path("apay/", apay), path("own/", unavailable),
               path("keyed/", keyed)]
client = Client(raise_request_exception=False)
aclient = AsyncClient(raise_request_exception=False)

def ask(address):
    if address.startswith("/a"):
        status = asyncio.run(aclient.post(address)).status_code
    else:
        status = client.post(address).status_code
    told = {"status": status, "lines": lines[:], "mails": [each.subject for each in mail.outbox]}
    lines.clear()
    mail.outbox.clear()
    return told

nodes = conf.backend("default").group
told = {}
for view in ("pay", "apay"):
    nodes.down = {0}
    told[view] = [ask(f"/{view}/") for _ in range(3)]
    nodes.down = set()
    with redlock(view):
        told[f"{view} taken"] = ask(f"/{view}/")
    told[f"{view} failed"] = ask(f"/{view}/?fail")
told["own"] = ask("/own/")
told["keyed"] = [ask("/keyed/") for _ in range(2)]
print(json.dumps(told))
"""


def site(*arguments: str) -> dict[str, Any]:
    """What a site says and mails, request by request."""
    command = [sys.executable, "-W", "error", "-c", SITE, *arguments]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
    return found


def documented() -> str:
    """The LOGGING of the page, as JSON."""
    (block,) = [each for each in blocks(VIEWS) if "IgnoreRefusals" in each.text]
    scope: dict[str, Any] = {}
    exec(block.text, scope)  # noqa: S102 - our own page
    return json.dumps(scope["LOGGING"])


def test_a_refusal_mails_nobody():
    """With the page's LOGGING a refused request mails no ADMIN and writes a line, once a minute."""
    told = site("filtered", documented())
    for view in ("pay", "apay"):
        first, *others = told[view]
        assert [each["status"] for each in told[view]] == [503] * 3
        assert [each["mails"] for each in told[view]] == [[]] * 3
        ((logger, level, line),) = first["lines"]
        assert (logger, level) == ("django_redlock", "ERROR")
        assert line.startswith("a request is answered 503: ")
        assert "memory://a: down" in line
        assert [each["lines"] for each in others] == [[], []]
        assert told[f"{view} taken"] == {"status": 409, "lines": [], "mails": []}


@pytest.mark.slow
def test_the_faults_of_a_site_are_mailed_as_ever():
    """With the page's LOGGING a real 500, and a 503 of the site's own, are logged and mailed."""
    told = site("filtered", documented())
    for view in ("pay", "apay"):
        failed = told[f"{view} failed"]
        assert (failed["status"], len(failed["mails"])) == (500, 1)
        assert [line[:2] for line in failed["lines"]] == [["django.request", "ERROR"]]
    assert (told["own"]["status"], len(told["own"]["mails"])) == (503, 1)


@pytest.mark.slow
def test_without_the_filter_each_refusal_is_mailed():
    """Django mails each 503 to the ADMINS and warns of each 409, unless it is told not to."""
    told = site()
    assert [len(each["mails"]) for each in told["pay"]] == [1, 1, 1]
    assert [line[0] for line in told["pay"][0]["lines"]] == ["django_redlock", "django.request"]
    assert [line[:2] for line in told["pay taken"]["lines"]] == [["django.request", "WARNING"]]


def test_a_request_that_lacks_a_field_mails_nobody():
    """What a visitor did not send is a 400: mailed to nobody, and explained once in a minute."""
    told = site("filtered", documented())
    first, second = told["keyed"]
    assert (first["status"], second["status"]) == (400, 400)
    assert (first["mails"], second["mails"]) == ([], [])
    ours = [line for line in first["lines"] if line[0] == "django_redlock"]
    assert [line[:2] for line in ours] == [["django_redlock", "WARNING"]]
    assert "{request.headers[X-Order]} names an item that is not there" in ours[0][2]
    assert {line[0] for line in second["lines"]} == {"django.request"}


# -- piece by piece -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def memory(request: pytest.FixtureRequest) -> Any:
    """A node in memory of one's own."""
    with override_settings(REDLOCK={"default": {"NODES": [f"memory://{request.node.name}"]}}):
        yield conf.backend("default").group


def record(name: str = "django.request", **more: Any) -> logging.LogRecord:
    """A line of Django's about a request."""
    return logging.makeLogRecord({"name": name, "levelname": "ERROR", **more})


def refused() -> Any:
    """A request that was answered 409."""
    request = RequestFactory().post("/")
    with redlock("key"):
        view = single_flight("key")(lambda request: HttpResponse())
        assert view(request).status_code == 409
    return request


def test_what_the_filter_leaves_out():
    """It leaves out the line about the refusal itself; not an error after it, nor other lines."""
    keep = IgnoreRefusals().filter
    request = refused()
    assert not keep(record(request=request, status_code=409))
    assert keep(record(request=request, status_code=500))
    assert keep(record(request=request, status_code=409, exc_info=(None, None, None)))
    assert keep(record(request=request))
    assert keep(record(request=RequestFactory().post("/"), status_code=409))
    assert keep(record(status_code=409))


def test_a_request_that_stands_around_djangos():
    """A framework that wraps the request is served: Django logs the one inside."""
    inside = RequestFactory().post("/")

    class Wrapped:
        _request = inside
        META, method, path = inside.META, inside.method, inside.path

        def get_preferred_type(self, types: Any) -> Any:
            return inside.get_preferred_type(types)

    with redlock("key"):
        single_flight("key")(lambda request: HttpResponse())(Wrapped())
    assert not IgnoreRefusals().filter(record(request=inside, status_code=409))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, by which lines are left out: one number that can be set."""
    time = [1000.0]
    monkeypatch.setattr("django_redlock.views.lock.monotonic", lambda: time[0])
    return time


def test_one_line_in_a_minute_counts_the_others(now):
    """The first line is written at once, the next after a minute, with how many were left out."""
    throttle = LogThrottle()
    assert [throttle.admit("line") for _ in range(4)] == [0, None, None, None]
    now[0] += EVERY
    assert [throttle.admit("line") for _ in range(2)] == [3, None]
    now[0] += 10 * EVERY
    assert [throttle.admit("line") for _ in range(2)] == [1, None]


def test_lines_are_counted_by_many_threads(now):
    """Of many threads that are refused at once one writes, and the next line counts all others."""
    throttle = LogThrottle()
    written: list[int | None] = []

    def refuse() -> None:
        written.extend(throttle.admit("line") for _ in range(1000))

    threads = [threading.Thread(target=refuse) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written.count(None) == 7999
    now[0] += EVERY
    assert throttle.admit("line") == 7999


def test_the_line_says_how_many_were_left_out(memory, caplog, now):
    """After a minute the line comes again, for each view by itself, and tells the count."""
    views = [single_flight(name)(lambda request: HttpResponse()) for name in ("one", "two")]
    memory.down = {0}
    for view in views:
        for _ in range(3):
            assert view(RequestFactory().post("/")).status_code == 503
    assert [each.redlock_left_out for each in caplog.records] == [0, 0]
    now[0] += EVERY
    views[0](RequestFactory().post("/"))
    line = caplog.records[-1]
    assert (line.redlock_left_out, line.redlock_code) == (2, "no_majority")
    assert line.message.endswith("(and 2 more since the last such line)")
    assert (line.redlock_alias, line.redlock_name) == ("default", "one")


def test_who_listens_is_told_of_each(memory):
    """Signals and metrics count every refusal, whatever the log leaves out."""
    from django_redlock import events

    told: list[Any] = []
    view = single_flight("key")(lambda request: HttpResponse())
    memory.down = {0}
    events.subscribe(told.append, [events.EventKind.UNAVAILABLE])
    try:
        for _ in range(3):
            view(RequestFactory().post("/"))
    finally:
        events.unsubscribe(told.append, [events.EventKind.UNAVAILABLE])
    assert len([event for event in told if event.name == "key"]) == 3


# -- mistakes -------------------------------------------------------------------------------------


@single_flight("key:{request.headers[X-Order]}:{request.POST[amount]}")
def keyed(request: Any) -> HttpResponse:
    """A view whose key needs what a visitor may leave out."""
    return HttpResponse("ran")


@single_flight("key:{request.GET[order]}")
async def akeyed(request: Any) -> HttpResponse:
    """The same, async."""
    return HttpResponse("ran")


@method_decorator(single_flight("key:{request.user.tenant.pk}"), name="dispatch")
class Keyed(View):
    """The same, as a class; and nobody sets a user."""

    def post(self, request: Any) -> HttpResponse:
        return HttpResponse("ran")


urlpatterns = [path("keyed/", keyed), path("akeyed/", akeyed), path("class/", Keyed.as_view())]


@pytest.mark.parametrize("debug", [False, True])
@override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[])
def test_what_a_key_needs_and_a_request_lacks(debug):
    """A header, a form field or an attribute that is not there makes a 400, not a 500."""
    with override_settings(DEBUG=debug):
        client, aclient = Client(), AsyncClient()
        for address in ("/keyed/", "/class/", "/akeyed/"):
            assert client.post(address).status_code == 400
        assert asyncio.run(aclient.post("/akeyed/")).status_code == 400
        assert client.post("/keyed/", headers={"x-order": "1"}).status_code == 400
        there = client.post("/keyed/", {"amount": "5"}, headers={"x-order": "1"})
        assert (there.status_code, there.content) == (200, b"ran")
        assert asyncio.run(aclient.post("/akeyed/?order=1")).status_code == 200


def test_what_was_sent_is_not_quoted():
    """The error of a request that lacks something names the field, and quotes nothing sent."""
    request = RequestFactory().post("/", headers={"x-secret": "s3cr3t"})
    with pytest.raises(BadRequest) as error:
        keyed(request)
    assert "{request.headers[X-Order]}" in str(error.value)
    assert "s3cr3t" not in str(error.value)


def test_a_key_function_where_the_view_belongs():
    """A function as the first argument is the view; the error names `key=`, at decoration."""
    decorate: Any = single_flight
    for decorator in (
        decorate(lambda request: f"pay:{request.user.pk}"),
        decorate(lambda request: "pay", ttl=5),
    ):
        with pytest.raises(TypeError, match=r"a function that makes the key: .*\(key=function\)"):

            @decorator
            def view(request: Any) -> HttpResponse:
                raise AssertionError

        with pytest.raises(TypeError, match="makes the key"):

            @decorator
            async def aview(request: Any) -> HttpResponse:
                raise AssertionError

        with pytest.raises(TypeError, match="makes the key"):

            @method_decorator(decorator, name="dispatch")
            class Order(View):
                pass


@pytest.mark.parametrize("view", [RequestFactory().post("/"), "pay:{pk}", None, 5], ids=repr)
def test_a_decorator_without_a_view(view):
    """What is no view, such as the request where the view was forgotten, is told what to write."""
    with pytest.raises(TypeError, match=r"decorates a view, not \w+: in urls\.py write"):
        single_flight("pay")(view)


@pytest.mark.parametrize(
    "key", ["a:{pk!z}", "a:{request..user}", "a:{request.user[pk}", "{pk:{q}}"]
)
def test_a_key_that_no_request_can_fill(key):
    """A key that is no template, whatever the request, is found when the view is decorated."""
    with pytest.raises(ValueError, match=r"^the lock name .*(is not a template|uses \{q\})"):
        single_flight(key)(lambda request, pk: HttpResponse())
