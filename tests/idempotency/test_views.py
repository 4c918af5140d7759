"""``@idempotent``: a client that sends a request again gets the first answer."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.core.signals import request_finished
from django.db import IntegrityError, connection, connections, transaction
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import override_settings
from django.test.client import BOUNDARY, encode_multipart
from django.utils import timezone
from django.views.generic import View

from django_redlock import NodesUnavailable, conf, redlock
from django_redlock.idempotency import NotReplayable, idempotent, idempotent_work
from django_redlock.idempotency.checks import check_idempotent
from django_redlock.idempotency.decorator import LEFT
from django_redlock.idempotency.models import Record
from django_redlock.idempotency.records import Work
from django_redlock.inspection.survey import survey
from django_redlock.views import single_flight
from tests.support.waiting import eventually
from tests.views.asking import OURS, leaves, visiting

from .shop import (
    KEY,
    SESSIONS,
    Shop,
    anybody,
    assert_same,
    close,
    identity,
    order,
    orders_made,
    records,
)

pytestmark = pytest.mark.django_db


def is_free(identity: str) -> bool:
    """Whether no request is at work on this piece of work."""
    lease = redlock(f"idempotency:{identity}").try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


# -- the first answer, again -----------------------------------------------------------------------


def test_a_repetition_gets_the_first_answer():
    """Status, headers and body are those of the first time, and the work is done once."""
    shop = Shop(anybody(order))
    first = shop.send()
    assert first.status_code == 201
    for _ in range(3):
        assert_same(first, shop.send())
    (record,) = records()
    assert is_free(record.identity)
    assert shop.send("another").content != first.content
    assert orders_made() == 2


@pytest.mark.parametrize(
    ("one", "other"), [("a", "A"), ("a b", "a  b"), ("a", "a "), ("a", 'a"b"')]
)
def test_keys_are_compared_letter_by_letter(one, other):
    """Whatever a database takes for equal: it compares digests. The quotes may be left out."""
    shop = Shop(anybody(order))
    answers = [shop.send(f'"{each}"' if '"' not in each else each) for each in (one, other)]
    assert [each.status_code for each in answers] == [201, 201]
    assert answers[0].content != answers[1].content
    assert_same(shop.send(KEY), shop.send(f'"{KEY}"'))


def test_a_replay_runs_no_view_and_asks_once(django_assert_num_queries, memory):
    """One SELECT and no lock, so it is answered without a majority of the nodes as well."""
    shop = Shop(anybody(order))
    first = shop.send()
    memory.down = {0, 1, 2}
    with django_assert_num_queries(1):
        assert_same(first, shop.send())


def test_a_first_request_asks_three_times(django_assert_num_queries, monkeypatch):
    """SELECT, INSERT, UPDATE, and a savepoint, where outside of tests is a transaction."""
    # Who gets the lock late looks once more whether a twin was faster; a stall is no twin.
    monkeypatch.setattr("django_redlock.idempotency.decorator.LOOK_AGAIN", 3600.0)
    shop = Shop(anybody(lambda _: HttpResponse("done")))
    with django_assert_num_queries(5) as asked:
        shop.send()
    verbs = [each["sql"].split()[0] for each in asked.captured_queries]
    assert verbs == ["SELECT", "SAVEPOINT", "INSERT", "UPDATE", "RELEASE"]


def test_what_a_view_sees():
    """Its key and its lease; neither for a method that passes."""
    seen = []

    def view(request: Any) -> HttpResponse:
        seen.append((request.idempotency_key, request.lease and request.lease.name))
        return HttpResponse()

    shop = Shop(anybody(view))
    shop.send()
    shop.send(method="get")
    (record,) = records()
    assert seen == [(KEY, f"idempotency:{record.identity}"), (None, None)]


def test_a_record_ends():
    """After ``keep`` the key is that of a new request; the old row makes room."""
    shop = Shop(anybody(order, keep=60))
    first = shop.send()
    Record.objects.update(expires=timezone.now() - timedelta(seconds=1))
    second = shop.send()
    assert second.content != first.content
    assert_same(second, shop.send())
    (record,) = records()
    assert timedelta(seconds=55) < record.expires - timezone.now() <= timedelta(seconds=60)


@pytest.mark.parametrize("days", [-2, 2])
def test_a_record_ends_by_the_clock_of_the_database(days, monkeypatch):
    """One web server of several has the time of another day."""
    shop = Shop(anybody(order))
    first = shop.send()
    wrong = timezone.now() + timedelta(days=days)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    assert_same(first, shop.send())
    shop.send("other")
    call_command("redlock_clear_idempotency", stdout=io.StringIO())
    monkeypatch.undo()
    assert len(records()) == 2
    assert all(each.expires > timezone.now() > each.begun for each in records())


# -- which request it is ---------------------------------------------------------------------------


def year_of(request: Any) -> str:
    """A key of its own, which a request may lack."""
    if "year" not in request.POST:
        raise ValueError("there is no year")
    return str(request.POST["year"])


OF_USERS: Any = {"scope": "{request.user.pk}"}
LACKS = "it lacks a value that its key is made of"


@pytest.mark.parametrize(
    ("options", "key", "detail"),
    [
        ({}, None, "has no Idempotency-Key"),
        *(({}, key, "is not valid") for key in ["", "a b", "k\u00e9", "x" * 256, '"', '"a', '""']),
        ({"required": False}, "", "is not valid"),
        ({"scope": None}, KEY, "nobody is logged in"),  # an address is many people's
        # The header is not its key, so no text speaks of the header.
        ({"key": "renew:{request.POST[year]}"}, None, LACKS),
        ({"key": year_of}, None, LACKS),
        ({"key": year_of, "required": False}, None, LACKS),
        (OF_USERS, KEY, LACKS),  # all anonymous visitors would have one scope
        (OF_USERS | {"required": False}, KEY, LACKS),
    ],
)
def test_a_request_without_a_key_that_can_be_used_is_refused(options, key, detail, caplog):
    """A 400 that says why, as an API answers it; no work is done."""
    shop = Shop(idempotent(**{"scope": "anybody"} | options)(order), middleware=SESSIONS)
    answer = shop.send(key)
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert detail in json.loads(answer.content)["detail"]
    assert "Retry-After" not in answer
    assert ("request.user.pk" in caplog.text) == ("{request.user.pk}" in options.values())
    assert orders_made() == 0


def test_a_key_may_be_left_out_where_none_is_required():
    """Then the view runs each time, as if it were not decorated."""
    shop = Shop(anybody(order, required=False))
    assert shop.send(None).content != shop.send(None).content
    assert (orders_made(), records()) == (2, [])
    assert_same(shop.send(), shop.send())


def multipart(boundary: str, text: bytes = b"text", token: str = "t", name: str = "a.txt") -> Any:
    """A form with a file, and the type that names its boundary."""
    fields = {
        "seats": "1",
        "csrfmiddlewaretoken": token,
        "file": SimpleUploadedFile(name, text, "text/plain"),
    }
    body = encode_multipart(boundary, fields)
    return {"data": body, "content_type": f"multipart/form-data; boundary={boundary}"}


def numbers(*texts: str) -> list[Any]:
    """Requests of JSON with such a number."""
    return [{"data": f'{{"a": {text}}}'} for text in texts]


def in_charset(charset: str, kind: str, *texts: bytes) -> list[Any]:
    """Requests of forms in a charset in which no text can be."""
    form = multipart(BOUNDARY)
    kind = f"{kind or form['content_type']}; charset={charset}"
    bodies = [form["data"].replace(b"text", text) for text in texts]
    return [{"method": "put", "data": body, "content_type": kind} for body in bodies]


WHOLE = -15 * 10**299
SEATS: Any = {"data": {"seats": 1}}
URLENCODED = "application/x-www-form-urlencoded"
POST_AND_PUT = ({"method": "post"}, {"method": "put"})
DIFFERENT: list[Any] = [
    (SEATS, SEATS | {"method": "put"}),
    (SEATS, SEATS | {"address": "/pay/7/"}),
    (SEATS, SEATS | {"address": "/pay/?seats=2"}),
    (SEATS, {"data": {"seats": 2}}),
    (SEATS, {"data": b"\xff", "content_type": "application/octet-stream"}),
    (SEATS, {"data": "seats=1", "content_type": URLENCODED}),
    ({"data": '{"a": 1, "b": [true, null]}'}, {"data": '{"b":[1,null],"a":1}'}),
    *((use | multipart(BOUNDARY), use | multipart(BOUNDARY, b"tex_")) for use in POST_AND_PUT),
    *((use | multipart(BOUNDARY), use | multipart(BOUNDARY, name="b")) for use in POST_AND_PUT),
    # A float has some fifteen digits.
    numbers("12345678901234567890123", "12345678901234567890124"),
    numbers("0.12345678901234567891", "0.12345678901234567892"),
    numbers("9007199254740993.0", "9007199254740992.0"),
    numbers("1e400", "1e401"),
    numbers("1E-400", "0.0"),
    numbers("1e9999999999999999999", "2e9999999999999999999"),
    numbers("1e16", "10000000000000001"),
    numbers("-1.5e300", str(WHOLE + 1)),
    # A visitor causes no 500: the bytes are compared.
    *(
        in_charset(charset, kind, b"text", b"tex_")
        for charset in ("hex", "undefined", "utf-16")
        for kind in (URLENCODED, "")
    ),
]
EQUAL: list[Any] = [
    ({"data": '{"a": 1, "b": [true, null]}'}, {"data": '{"b":[true,null],"a":1}'}),
    ({"data": "{"}, {"data": "{"}),
    # Each encoding has a boundary of its own, and each page a CSRF token.
    *((use | multipart(BOUNDARY), use | multipart("other", token="u")) for use in POST_AND_PUT),
    numbers("0.30000000000000004", "0.300000000000000040"),  # of JavaScript, with seventeen digits
    numbers("1.50", "15e-1"),
    numbers("-1e2", "-100.0"),
    numbers("1e16", "10000000000000000"),  # as JavaScript and PostgreSQL's jsonb write it
    numbers("-1.5e300", str(WHOLE)),
    numbers("123456789012345680.0", "123456789012345680"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_a_key_with_another_content_is_refused(one, other):
    """A 422: the client has a defect, and would take the answer for that to what it sent last."""
    shop = Shop(anybody(order))
    assert_same(shop.send(**one), shop.send(**one))
    answer = shop.send(**other)
    assert answer.status_code == 422
    assert "another content" in answer.content.decode()
    assert orders_made() == 1


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_content_is_compared_by_its_values(one, other):
    """However it is written."""
    shop = Shop(anybody(order))
    assert_same(shop.send(**one), shop.send(**other))


def test_a_form_that_was_parsed_before():
    """A middleware has looked for fields where Django has none, or has parsed them itself."""

    def looked(request: Any) -> Any:
        assert not request.POST
        return view(request)

    view = anybody(order)
    shop = Shop(looked)
    first = shop.send(method="put", **multipart(BOUNDARY))
    assert_same(first, shop.send(method="put", **multipart("other")))

    def parsed(request: Any) -> Any:
        request.method = "POST"
        assert request.FILES
        request.method = "PUT"
        return view(request)

    shop = Shop(parsed)
    first = shop.send("b", method="put", **multipart(BOUNDARY))
    assert_same(first, shop.send("b", method="put", **multipart("other")))
    assert shop.send("b", method="put", **multipart(BOUNDARY, b"tex_")).status_code == 422


def test_a_head_is_a_get():
    """Where GET is meant."""
    shop = Shop(anybody(lambda _: HttpResponse("x"), methods=["GET"]))
    shop.send(None, method="get")
    assert shop.send(method="get").status_code == 200
    assert shop.send(method="head")["Idempotency-Replayed"] == "true"


def test_what_is_read_is_bounded(monkeypatch):
    """A content that is too large is refused before it is read; one that is too deep as well."""
    shop = Shop(anybody(order))
    assert shop.send(data="[" * 100_000).status_code == 413
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=None):
        monkeypatch.setattr("django_redlock.idempotency.keys.LARGEST", 10)
        answer = shop.send("c", data="12345678901")
        form = "application/x-www-form-urlencoded"  # which Django parses as it reads it
        assert shop.send("d", data="12345678901", content_type=form).status_code == 413
    assert answer.status_code == 413
    assert json.loads(answer.content)["title"] == "Content Too Large"


def test_of_large_files_the_beginning_counts(monkeypatch):
    """And the size; the view reads the file from its start."""
    monkeypatch.setattr("django_redlock.idempotency.keys.LARGEST", 3)
    with override_settings(FILE_UPLOAD_MAX_MEMORY_SIZE=1):  # it becomes a file
        shop = Shop(anybody(lambda request: HttpResponse(request.FILES["file"].read())))
        assert shop.send(**multipart(BOUNDARY, b"text")).content == b"text"
        assert shop.send(**multipart(BOUNDARY, b"texX"))["Idempotency-Replayed"] == "true"
        assert shop.send(**multipart(BOUNDARY, b"texts")).status_code == 422


# -- whose key it is -------------------------------------------------------------------------------


def test_a_key_is_its_users():
    """Two users with one key have two orders; what one is answered the other does not see."""
    shop = Shop(idempotent(order), middleware=SESSIONS)
    answers = []
    for name in ("ann", "bob"):
        shop.client.force_login(User.objects.create(username=name))
        answers.append(shop.send())
        assert_same(answers[-1], shop.send())
    assert answers[0].content != answers[1].content
    assert [each.scope[:5] for each in records()] == ["user:", "user:"]


def test_without_a_user_it_is_the_sessions():
    """A session is as good as a user; its key, which is a secret, is not stored."""
    shop = Shop(idempotent(order), middleware=SESSIONS)
    session = shop.client.session
    session["basket"] = [1]
    session.save()
    shop.client.cookies["sessionid"] = str(session.session_key)
    assert_same(shop.send(), shop.send())
    (record,) = records()
    assert record.scope.startswith("session:")
    assert str(session.session_key) not in record.scope


def test_a_key_of_ones_own():
    """A text with fields, or a function, as for ``single_flight``."""
    shop = Shop(idempotent(key="order:{pk}", scope="{request.headers[X-Shop]}")(order))
    first = shop.send(None, "/pay/7/", **{"X-Shop": "one"})
    assert_same(first, shop.send(None, "/pay/7/", **{"X-Shop": "one"}))
    assert shop.send(None, "/pay/7/", **{"X-Shop": "two"}).content != first.content
    assert shop.send(None, "/pay/7/").status_code == 400  # it has no scope
    (one, two) = records()
    assert [(each.scope, each.key) for each in (one, two)] == [
        ("one", "order:7"),
        ("two", "order:7"),
    ]


def test_a_scope_does_not_run_into_the_key():
    """One scope "ab" with the key "c" is not "a" with "bc"."""
    shop = Shop(idempotent(scope="{request.headers[X-Shop]}")(order))
    shop.send("c", **{"X-Shop": "ab"})
    shop.send("bc", **{"X-Shop": "a"})
    assert orders_made() == 2


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_functions_name_key_and_scope(kind):
    """Plain ones, and coroutine ones too."""

    def key(request: Any, **_: Any) -> str:
        return str(request.headers["X-Order"])

    async def akey(request: Any, **_: Any) -> str:
        return key(request)

    chosen = key if kind == "plain" else akey
    shop = Shop(idempotent(key=chosen, scope=chosen)(order))
    assert_same(shop.send(None, **{"X-Order": "5"}), shop.send(None, **{"X-Order": "5"}))
    shop = Shop(idempotent(key=lambda _: ["a", "b"], scope="all")(order), raises=True)
    with pytest.raises(TypeError, match="key= must return one text, not 2"):
        shop.send(None)


# -- what is stored --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers"),
    [(200, {}), (302, {"Location": "/"}), (400, {}), (499, {}), (202, {"Retry-After": "5"})],
)
def test_an_answer_below_500_is_stored(status, headers):
    """The work is done, or cannot be done; a success with ``Retry-After`` asks for a look."""

    def view(request: Any) -> HttpResponse:
        order(request)
        return HttpResponse("x", status=status, headers=headers)

    shop = Shop(anybody(view))
    answers = [shop.send(), shop.send()]
    assert [each.status_code for each in answers] == [status] * 2
    assert answers[1]["Idempotency-Replayed"] == "true"
    assert orders_made() == 1


def creates() -> None:
    """A row that is there, without a savepoint."""
    with suppress(IntegrityError):
        User.objects.create(username="ann")


def creates_several() -> None:
    """The same, by a block that has no savepoint; some with keys and some without have one."""
    with suppress(IntegrityError):
        User.objects.bulk_create([User(pk=777, username="bob"), User(username="ann")])


def ends_a_block() -> None:
    """An error of the project, in a block that has no savepoint."""
    with suppress(ZeroDivisionError), transaction.atomic(savepoint=False):
        raise ZeroDivisionError


def rolls_back() -> None:
    """Because it wants to."""
    transaction.set_rollback(True)


@pytest.mark.parametrize("ends", [creates, creates_several, ends_a_block, rolls_back])
def test_a_success_whose_work_is_rolled_back_is_none(ends):
    """Django rolls back for an error that a view has caught; no repetition is told a success."""
    status = 201

    def view(request: Any) -> HttpResponse:
        order(request)
        ends()
        return HttpResponse(status=status)

    User.objects.create(username="ann")
    shop = Shop(anybody(view), raises=True)
    with pytest.raises(NotReplayable, match="answered 201, and its work is rolled back"):
        shop.send()
    assert (orders_made(), records()) == (0, [])
    status = 409
    assert_same(shop.send(), shop.send())
    assert orders_made() == 0


def failing(request: Any) -> HttpResponse:
    """Answers 500."""
    order(request)
    return HttpResponse(status=500)


def busy(request: Any) -> HttpResponse:
    """Asks for a repetition."""
    order(request)
    return HttpResponse(status=429, headers={"Retry-After": "1"})


def raising(request: Any) -> HttpResponse:
    """Raises."""
    order(request)
    raise ZeroDivisionError


def refused(request: Any) -> HttpResponse:
    """Wants a lock that is taken."""
    order(request)
    with redlock("taken", durable=False):
        return HttpResponse()


@pytest.mark.parametrize("view", [failing, busy, raising, refused])
def test_what_fails_leaves_nothing(view):
    """Neither rows nor a record, so the repetition is a first request."""
    broken = True
    decorated = anybody(lambda request: view(request) if broken else order(request))
    shop = Shop(decorated, middleware=(OURS,))
    with redlock("taken"):
        assert shop.send().status_code == (409 if view is refused else 429 if view is busy else 500)
    assert (orders_made(), records()) == (0, [])
    broken = False
    assert_same(shop.send(), shop.send())
    assert orders_made() == 1


def test_store_decides():
    """What it refuses is rolled back."""
    shop = Shop(anybody(order, store=lambda response: response.status_code != 201))
    assert shop.send().status_code == 201
    assert (orders_made(), records()) == (0, [])


def test_a_template_is_rendered_in_the_transaction():
    """What it reads belongs to the work, and its error rolls the work back."""
    template = engines["django"].from_string("{{ orders }} {{ token }}")
    broken = True

    def orders() -> int:
        if broken:
            raise ZeroDivisionError
        assert connection.in_atomic_block
        return Group.objects.count()

    def view(request: Any) -> HttpResponse:
        Group.objects.create(name=uuid.uuid4().hex)
        return TemplateResponse(request, template, {"orders": orders, "token": object()})

    shop = Shop(anybody(view))
    assert shop.send().status_code == 500
    assert (orders_made(), records()) == (0, [])
    broken = False
    first = shop.send()
    assert first.content.startswith(b"1 ")
    assert_same(first, shop.send())


def setting_a_cookie(_: Any) -> Any:
    """A cookie."""
    response = HttpResponse()
    response.set_cookie("basket", "1")
    return response


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        (lambda _: StreamingHttpResponse(iter([b"x"])), "it is a stream"),
        (setting_a_cookie, "it sets the cookie basket"),
        (lambda _: HttpResponse(headers={"Set-Cookie": "seat=1"}), "it sets the cookie seat"),
        (lambda _: HttpResponse("x" * 11), "its body has 11 bytes, more than max_body=10"),
        (lambda _: None, "the view returned NoneType"),
    ],
)
def test_what_cannot_be_replayed_is_refused_at_once(view, problem):
    """Not at the first repetition: the work is rolled back, and the error says why."""

    def ordering(request: Any) -> Any:
        Group.objects.create(name=uuid.uuid4().hex)
        return view(request)

    shop = Shop(anybody(ordering, max_body=10), raises=True)
    with pytest.raises(NotReplayable, match=problem):
        shop.send()
    assert (orders_made(), records()) == (0, [])


def test_a_stream_that_is_refused_leaves_its_file_closed(tmp_path):
    """A server closes what it answers with, and this response reaches no server."""
    (tmp_path / "report").touch()
    file = (tmp_path / "report").open("rb")
    shop = Shop(anybody(lambda _: FileResponse(file)), raises=True)
    with pytest.raises(NotReplayable, match="it is a stream"):
        shop.send()
    assert file.closed


def test_a_body_need_not_be_stored():
    """It may be personal data; status and headers are replayed."""
    shop = Shop(anybody(order, store_body=False, max_body=0))
    shop.send()
    again = shop.send()
    assert (again.status_code, again.content, again["Location"]) == (201, b"", "/orders/1")
    (record,) = records()
    assert record.body is None


def test_a_body_of_just_max_body_is_stored():
    """The option is the most that is stored."""
    shop = Shop(anybody(lambda _: HttpResponse("x" * 10), max_body=10))
    assert_same(shop.send(), shop.send())


def test_headers_are_chosen():
    """Those that are named, however they are written."""
    shop = Shop(anybody(order, headers=["LOCATION"]))
    shop.send()
    assert set(shop.send().headers) == {"Location", "Content-Type", "Idempotency-Replayed"}
    bare = HttpResponse(status=204)
    del bare["Content-Type"]
    shop = Shop(anybody(lambda _: bare))
    assert_same(shop.send("bare"), shop.send("bare"))


# -- at the same time ------------------------------------------------------------------------------


def test_while_the_first_runs_a_repetition_is_refused():
    """A 409 that asks for another one; nothing is done, and nothing waits."""
    shop = Shop(anybody(order, wait=0))
    with redlock(f"idempotency:{identity()}"):
        answer = shop.send()
    assert (answer.status_code, answer["Retry-After"]) == (409, "1")
    assert orders_made() == 0
    assert shop.send().status_code == 201


def test_without_a_majority_the_view_may_run(memory):
    """``on_unavailable``: a 503, or the record alone keeps two from being done."""
    careful, bold = Shop(anybody(order, wait=0)), Shop(anybody(order, on_unavailable="run"))
    memory.down = {0, 1, 2}
    answer = careful.send()
    assert answer.status_code == 503
    assert "Retry-After" in answer
    assert_same(bold.send(), bold.send())
    assert orders_made() == 1


def test_a_request_waits_for_no_node_that_hangs(redlock_nodes):
    """With three of five real nodes hung a new key is answered 503 at once, and not in an hour."""
    shop = Shop(anybody(order, wait=3600))
    shop.send("before")
    for node in redlock_nodes[:3]:
        node.pause()
    answer = shop.send()
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    assert shop.send("before")["Idempotency-Replayed"] == "true"
    with pytest.raises(NodesUnavailable), idempotent_work("charge", 7, wait=3600):
        pass
    assert orders_made() == 1


# -- kinds of views --------------------------------------------------------------------------------


@pytest.fixture
def closing(transactional_db: None) -> Iterator[None]:
    """A request ends with its connections: they belong to its task."""

    def finish(**_: Any) -> None:
        close()

    request_finished.connect(finish)
    yield
    assert request_finished.disconnect(finish)


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_content_that_comes_in_chunks_is_compared(closing, method):
    """Without a length, by which Django's parsers would take it for empty."""

    def view(request: Any) -> HttpResponse:
        return HttpResponse(request.body, status=201)

    async def send(boundary: str, text: bytes) -> tuple[int, bytes]:
        form = multipart(boundary, text)
        headers = {"idempotency_key": KEY, "content_type": form["content_type"]}
        asked = await visiting("/pay/", method, form["data"], **headers)
        start, body = await asked.receive_output(20), await asked.receive_output(20)
        await asked.wait(20)
        return start["status"], body["body"]

    shop = Shop(anybody(view))
    with shop.site:
        first = asyncio.run(send(BOUNDARY, b"text"))
        assert first == (201, multipart(BOUNDARY, b"text")["data"])
        assert asyncio.run(send("other", b"text")) == first
        assert asyncio.run(send(BOUNDARY, b"tex_"))[0] == 422


def test_a_client_that_goes_away_while_it_waits(closing):
    """The thread that waits for the lock goes on, and begins no view."""
    ran: list[Any] = []
    seen: list[Any] = []

    async def view(request: Any) -> HttpResponse:
        ran.append(request)
        return HttpResponse()

    async def leave() -> None:
        async with redlock(f"idempotency:{identity()}"):
            asked = await visiting("/pay/", idempotency_key=KEY)
            await asyncio.to_thread(eventually, one_waits)
            await asked.send_input({"type": "http.disconnect"})
            await asyncio.to_thread(eventually, lambda: getattr(seen[0], LEFT, False))
        await asked.wait(20)

    def one_waits() -> bool:
        return survey(conf.backend("default"), memory=True).waiting == 1

    def key(request: Any, **_: Any) -> str:
        seen.append(request)
        return KEY

    shop = Shop(anybody(view, wait=20, key=key))
    with shop.site:
        asyncio.run(leave())
    eventually(lambda: is_free(identity()))
    assert (ran, orders_made(), records()) == ([], 0, [])


def test_a_client_that_goes_away(closing):
    """Django cancels the async view: its work is rolled back, and nothing stays locked."""
    at_work, told = threading.Event(), []

    async def view(request: Any) -> HttpResponse:
        await Group.objects.acreate(name=uuid.uuid4().hex)
        at_work.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cancelled")
        return HttpResponse()

    async def leave() -> None:
        asked = await visiting("/pay/", idempotency_key=KEY)
        await asyncio.to_thread(at_work.wait, 20)
        await leaves(asked)

    shop = Shop(anybody(view))
    with shop.site:
        asyncio.run(leave())
    assert len(told) == 1
    assert (orders_made(), records()) == (0, [])
    assert is_free(identity())


@pytest.mark.parametrize("use", ["def", "async"])
def test_the_transactions_of_atomic_requests_are_opened_inside(orders, bills, use):
    """Those of other databases commit first; what fails rolls all of them back."""
    seen = []

    def view(request: Any) -> HttpResponse:
        seen.append([connections[each].in_atomic_block for each in ("default", "orders", "bills")])
        with connections["orders"].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('1')")
        return HttpResponse(status=500 if request.headers.get("X-Fails") else 200)

    async def aview(request: Any) -> HttpResponse:
        return await sync_to_async(view)(request)

    shop = Shop(anybody(view if use == "def" else aview))
    assert shop.send(**{"X-Fails": "1"}).status_code == 500
    assert shop.send().status_code == 200
    assert shop.send().status_code == 200
    with connections["orders"].cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM orders")
        assert cursor.fetchone() == (1,)
    assert seen == [[True] * 3] * 2


def test_a_transaction_around_it_is_refused(transactional_db):
    """The lock and the record would end before its COMMIT."""
    shop = Shop(anybody(order), raises=True)
    with (
        pytest.raises(RuntimeError, match="idempotent runs inside a transaction"),
        transaction.atomic(),
    ):
        shop.send()


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("keep", 0, "keep must be above 0"),
        ("keep", "1", "keep must be a timedelta or seconds, not str"),
        ("keep", 1e300, "no time in which"),
        ("keep", timedelta.max, "at most 100 years"),
        ("wait", -1, "wait"),
        ("using", 5, "using must be the alias of a database, not int"),
        ("store", 5, "store must be a plain function"),
        ("headers", "Location", "headers must be a list"),
        ("headers", ["set-cookie"], "a cookie is not replayed"),
        ("max_body", -1, "max_body must be a number of bytes"),
        ("on_unavailable", "wait", "on_unavailable='wait' is none of"),
        ("key", ["a", "b"], "key must be a text or a function, not list"),
        ("scope", 7, "scope must be a text or a function, not int"),
        ("methods", "POST", "methods must be a list"),
        ("timeout", 5, "no keyword 'timeout': write ttl= or wait=; it takes key, scope, keep"),
    ],
)
def test_a_wrong_option_is_told_at_once(option, value, text):
    """With its name; what raises leaves no lock half made, which the checks would look at."""
    with pytest.raises((TypeError, ValueError), match=text) as error:
        idempotent(**{option: value})
    check_idempotent()
    assert error.tb is not None  # whose frames keep alive what was made


def test_a_key_has_fields_of_the_view():
    """What nothing can fill is refused where it is written."""

    def view(request: Any, pk: int) -> None: ...

    with pytest.raises(ValueError, match="nr"):
        idempotent(key="order:{nr}")(view)
    with pytest.raises(ValueError, match="nr"):
        idempotent(scope="order:{nr}")(view)
    with pytest.raises(TypeError, match="takes its key by name"):
        idempotent("order:{pk}")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"@method_decorator\(idempotent"):
        idempotent(View)


def test_two_decorators():
    """Below ``single_flight`` the record is written in its lock."""
    shop = Shop(single_flight("pay")(anybody(order)))
    assert_same(shop.send(), shop.send())
    assert redlock("pay").try_acquire() is not None


def test_a_database_without_autocommit_is_refused(orders, monkeypatch):
    """The end of its transaction is not its COMMIT."""
    monkeypatch.setattr(connections["orders"], "autocommit", False)
    shop = Shop(anybody(order, using="orders"), raises=True)
    monkeypatch.setattr(Work, "find", lambda _: None)
    with pytest.raises(RuntimeError, match="autocommit is off for the database 'orders'"):
        shop.send()
