"""Each text of the page "Troubleshooting" is said by the code, in the case that the page names."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from contextvars import Context
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpResponse
from django.test import RequestFactory, override_settings

from django_redlock import LockTaken, assert_locked, redlock
from django_redlock.celery import LockedTask, locked_task
from django_redlock.core.reasons import ReasonCode, because, describe
from django_redlock.errors import DuplicateTask
from django_redlock.fencing import RemoteHolder, fenced
from django_redlock.fencing.field import Token
from django_redlock.testing import EmbeddedNode, taken, unavailable
from django_redlock.views import RedlockMiddleware, single_flight
from tests.celery.desk import Desk, Work, desk
from tests.docs.tables import codes, tables
from tests.docs.test_docs import SETTINGS
from tests.fencing.models import Seat
from tests.support.looked_at import check, group, status
from tests.support.waiting import eventually

__all__ = ["desk"]

PAGE = "docs/how-to/troubleshooting.md"
READ = "You read"
PATIENT = {"NODE_TIMEOUT": 10, "RESTART_GUARD": False}


def texts() -> list[str]:
    """What the page quotes, but for the ids of checks."""
    return [
        code
        for each in tables(PAGE)
        if each.header[0] == READ
        for row in each.rows
        for code in codes(row[0])[:1]
        if not code.startswith("django_redlock.")
    ]


def pattern(text: str) -> str:
    """A quoted text as a pattern: each … is something."""
    return ".+".join(map(re.escape, text.split("…")))


# -- real nodes -----------------------------------------------------------------------------------


def ask(*nodes: Any, **options: Any) -> None:
    """Take a lock on these nodes."""
    with override_settings(REDLOCK={"default": {"NODES": list(nodes)} | PATIENT | options}):
        redlock("x").acquire()


def a_new_node() -> None:
    with closing(EmbeddedNode()) as node:
        node.start()
        ask(node.url, RESTART_GUARD=True)


def a_node_that_hangs() -> None:
    with closing(EmbeddedNode()) as node, ExitStack() as stack:
        node.start()
        alias = {"NODES": [node.url], "RESTART_GUARD": False, "NODE_TIMEOUT": 0.1}
        stack.enter_context(override_settings(REDLOCK={"default": alias}))
        redlock("first", renew=False).acquire(wait=60)
        node.pause()
        stack.callback(node.resume)
        redlock("x").acquire()


def with_a_password(**login: str) -> None:
    with closing(EmbeddedNode()) as node:
        node.start()
        with closing(node.client()) as admin:
            admin.config_set("requirepass", "right")
        ask({"URL": node.url} | login)


def a_user_without_rights() -> None:
    with closing(EmbeddedNode()) as node:
        node.start()
        with closing(node.client()) as admin:
            admin.execute_command("ACL SETUSER few on >pw ~* +info +select +client +time")
        ask({"URL": node.url, "USERNAME": "few", "PASSWORD": "pw"})


def one_server_twice() -> None:
    with closing(EmbeddedNode()) as node:
        node.start()
        ask(node.url, f"redis://localhost:{node.port}/1")


# -- nodes in memory ------------------------------------------------------------------------------


def an_outage(call: Callable[[], Any] = lambda: redlock("x").acquire()) -> Any:
    """Do something while no majority can be asked."""
    with unavailable():
        return call()


@contextmanager
def logged() -> Iterator[list[logging.LogRecord]]:
    """The records of the log, also while the block runs."""
    records: list[logging.LogRecord] = []

    def note(record: logging.LogRecord) -> bool:
        records.append(record)
        return True

    logger = logging.getLogger("django_redlock")
    logger.addFilter(note)
    try:
        yield records
    finally:
        logger.removeFilter(note)


def lost() -> Any:
    """A lease whose time is over, and that is told."""
    with logged() as records:
        lease = redlock("x", ttl=0.05, renew=False).acquire()
        eventually(lambda: records)
    return lease


def deleted() -> None:
    lease = redlock("x", renew=False).acquire()
    for node in group("default").nodes:
        node.keys.clear()
    lease.extend()


def extended_in_an_outage() -> None:
    lease = redlock("x", renew=False).acquire()
    an_outage(lease.extend)


def not_renewed() -> None:
    with logged() as records, redlock("x"), unavailable():
        eventually(lambda: records)


def a_stale_holder() -> None:
    row = Seat.objects.create()
    Seat.objects.filter(pk=row.pk).update(fence=Token(2**62))
    fenced(RemoteHolder("x", 1), Seat.objects.filter(pk=row.pk))


async def blocking() -> None:
    with redlock("x"):
        pass


def in_a_transaction(**options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with transaction.atomic():
            redlock("x", **options).acquire()


def pay(_request: Any) -> HttpResponse:
    return HttpResponse("paid")


def a_view_that_has_begun() -> None:
    def view(request: Any) -> HttpResponse:
        with redlock("first"):
            redlock("second").acquire()
        return HttpResponse()

    def middle(request: Any) -> HttpResponse:
        try:
            return view(request)
        except LockTaken as error:
            answer = middleware.process_exception(request, error)
            assert isinstance(answer, HttpResponse)
            return answer

    middleware: Any = RedlockMiddleware(middle)
    with taken("second"):
        middleware(RequestFactory().post("/"))


def task(**options: Any) -> Any:
    """A locked task of an application of its own."""
    return Desk().task(locked_task("key", **options)(work))


def work() -> str:
    """The body of a task."""
    return "done"


def in_the_wrong_order() -> None:
    locked_task("x")(Desk().task(pay))


def configured(redlocks: Any) -> None:
    """Take a lock with these settings."""
    with override_settings(REDLOCK=redlocks):
        redlock("x").acquire()


def without(count: int, call: Callable[[], tuple[int, str]]) -> str:
    """What a command prints while so many of five nodes in memory are down."""
    group("default").down = set(range(count))
    return call()[1]


def checked(well: int, **options: Any) -> str:
    """What `redlock_check` prints of three nodes, of which so many are there."""
    with ExitStack() as stack:
        urls = [f"redis://127.0.0.1:{number + 1}" for number in range(3 - well)]
        for _ in range(well):
            node = stack.enter_context(closing(EmbeddedNode()))
            node.start()
            urls.append(node.url)
        stack.enter_context(
            override_settings(REDLOCK={"default": {"NODES": urls} | PATIENT | options})
        )
        status()  # where the nodes are new, their seconds count from here on
        return check()[1]


def a_copy_after_its_run(desk: Any) -> None:
    first = Work(desk)
    first.run()
    first.copy()


def a_copy_beside_its_run(desk: Any) -> None:
    def meet() -> None:
        Context().run(first.copy)

    first = Work(desk, meet)
    first.run()


def without_a_record(desk: Any) -> None:
    def lose() -> None:
        for node in group("default").nodes:
            node.keys.clear()

    Work(desk, lose).run()


SAID: dict[str, Callable[[], Any]] = {
    "… of … nodes could vote, … are needed": an_outage,
    "restart guard: started or emptied a short while ago, … s left": a_new_node,
    "connection refused": lambda: ask("redis://127.0.0.1:1"),
    "no answer for … s": a_node_that_hangs,
    "asks for a password": with_a_password,
    "refuses the username or password": lambda: with_a_password(PASSWORD="wrong"),
    "the user lacks a right": a_user_without_rights,
    # A real one: tests/transport/test_refusals.py::test_a_sentinel.
    "is a Sentinel, which holds no locks": lambda: describe(because(ReasonCode.SENTINEL)),
    "is the same server as …": one_server_twice,
    "… of … nodes answered; held until its deadline": extended_in_an_outage,
    "held by … on … of … nodes": lambda: [redlock("x").acquire() for _ in range(2)],
    "this very process and thread holds … already": lambda: [
        redlock("x").acquire() for _ in range(2)
    ],
    "its time ran out": lost,
    "the lease was lost": lambda: lost().ensure(),
    "a majority does not have it any more": deleted,
    "a later holder has claimed …, or it is gone": a_stale_holder,
    "this code runs without the lock that it needs": lambda: assert_locked("x"),
    "lock not renewed: …": not_renewed,
    "set REDLOCK to a dictionary": lambda: configured(None),
    "REDLOCK has settings where aliases belong": lambda: configured({"NODES": ["redis://a"]}),
    "REDLOCK has no alias …": lambda: configured({"other": {"NODES": ["redis://a"]}}),
    "ttl=… is above MAX_TTL": lambda: redlock("x", ttl=600).acquire(),
    "has braces, which only a decorator fills in": lambda: redlock("invoice:{pk}").acquire(),
    "is a …, whose text may change, and be that of others": lambda: single_flight("x:{user}")(
        lambda request, user: None
    )(RequestFactory().post("/"), User(pk=1)),
    "You cannot take a lock by blocking calls from an async context": lambda: asyncio.run(
        blocking()
    ),
    "is durable and cannot be taken inside a transaction": lambda: in_a_transaction(durable=True),
    "a lock is taken inside a transaction and is free before the COMMIT": in_a_transaction,
    "@locked_task is above @shared_task or @app.task": in_the_wrong_order,
    "its class sends messages without marks": task(mode="until_finished"),
    "the view runs without its lock": lambda: an_outage(
        lambda: single_flight("x", on_unavailable="run")(pay)(RequestFactory().post("/"))
    ),
    "a request is answered … although its view has begun": a_view_that_has_begun,
    "… is not locked: …": lambda: an_outage(task(on_unavailable="run")),
    "healthy (…": lambda: status()[1],
    "degraded (…": lambda: without(1, status),
    "no majority, no lock can be taken (…": lambda: without(3, status),
    "locks work, and something is to be done (…": lambda: checked(2),
    "too few nodes can vote, no lock can be taken (…": lambda: checked(1),
    "not yet, no lock can be taken for … s more (…": lambda: checked(3, RESTART_GUARD=True),
}
OF_A_DESK: dict[str, Callable[[Any], Any]] = {
    "… is sent unmarked: no majority of the nodes has marked it": lambda desk: an_outage(
        desk.task(locked_task("key", mode="until_finished")(work), base=LockedTask).delay
    ),
    "… is a copy and comes back in … s": a_copy_beside_its_run,
    "… has finished before: this copy does not run": a_copy_after_its_run,
    "… is done, and would run again if delivered again": without_a_record,
}


# -- the page -------------------------------------------------------------------------------------


def heard(caplog: pytest.LogCaptureFixture, call: Callable[[], Any]) -> str:
    """All that something says: its result, its error and its lines of the log."""
    with caplog.at_level(logging.INFO, logger="django_redlock"):
        try:
            said = str(call())
        except Exception as error:  # noqa: BLE001 - any of those on the page
            said = str(error)
    return "\n".join([said, *(record.getMessage() for record in caplog.records)])


def test_each_text_of_the_page_is_said_by_a_test():
    """The page and the two lists name the same texts."""
    assert sorted(texts()) == sorted([*SAID, *OF_A_DESK])


@pytest.mark.django_db
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("text", SAID)
def test_what_the_page_quotes_is_said(text, memory, caplog):
    """In the case that the page names, an error, the log or a command says it."""
    assert re.search(pattern(text), heard(caplog, SAID[text]))


@pytest.mark.parametrize("text", OF_A_DESK)
def test_what_the_page_quotes_of_messages_is_said(text, desk, caplog):
    """The log tells what becomes of a message."""
    assert re.search(pattern(text), heard(caplog, lambda: OF_A_DESK[text](desk)))


def test_what_celery_shows(desk, memory):
    """The dictionary of the page is the result of a task that was skipped."""
    (shown,) = [codes(row[0])[0] for row in table_of("You see").rows if "skipped" in row[0]]
    with taken("key"):
        result = task().apply().get()
    assert ast.literal_eval(shown.replace("…", "None")) == result | {"retry_after": None}
    assert result["retry_after"] > 0
    with taken("key"), pytest.raises(LockTaken):
        task(on_conflict="raise").apply(throw=True)
    marked = desk.task(
        locked_task("m", mode="until_finished", on_duplicate="raise")(work), base=LockedTask
    )
    marked.delay()
    with pytest.raises(DuplicateTask) as refused:
        marked.delay()
    assert refused.value.task_id


def table_of(head: str) -> Any:
    """The one table of the page with this head."""
    (found,) = [each for each in tables(PAGE) if each.header[0] == head]
    return found


def test_the_page_has_each_check():
    """With a link to its section."""
    ids = re.findall(r"^### (django_redlock\.\w+)$", SETTINGS.read_text(), re.MULTILINE)
    rows = [row for each in tables(PAGE) for row in each.rows if "`django_redlock." in row[0]]
    assert [codes(row[0])[0] for row in rows] == ids
    for name, row in zip(ids, rows, strict=True):
        assert f"../reference/settings.md#{name.rpartition('.')[2].lower()})" in row[1]
