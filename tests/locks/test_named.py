"""``redlock.named``: the lock of a template and its values, and who is told the template."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.http import HttpResponse
from django.test import RequestFactory

from django_redlock import (
    LeaseLost,
    LockTaken,
    NodesUnavailable,
    current_lease,
    redlock,
)
from django_redlock.celery import locked_task
from django_redlock.management import LockedCommand
from django_redlock.views import single_flight
from tests.fencing.models import Hall
from tests.support.listening import Told, memory, nobody, told

__all__ = ["memory", "nobody", "told"]

ID = uuid.UUID("00000000-0000-0000-0000-00000000002a")
INVOICE = "invoice:{pk}"


# -- the name -------------------------------------------------------------------------------------


def test_it_is_the_lock_of_the_name():
    """It excludes the lock of the name that the template makes, and has its own template."""
    lock = redlock.named(INVOICE, pk=42)
    assert (lock.names, lock.template, lock.alias) == (("invoice:42",), INVOICE, "default")
    assert redlock.using("other", ttl=7).named("{ttl}", ttl=1).names == ("1",)
    assert redlock.using("other").named("{x}", x=1).alias == "other"
    with lock as lease:
        assert (lease.name, lease.template) == ("invoice:42", INVOICE)
        assert redlock("invoice:42").try_acquire() is None
        assert redlock("invoice:42").state().held
        assert lock.state().held
    with redlock("invoice:42") as lease:
        assert lease.template == ""
        assert lock.try_acquire() is None


DIGEST = "821213858ca94dfccdd2b0c2d501fabdebfa69ba9886c416debc5950e65f8a39"


@pytest.mark.parametrize(
    ("template", "values", "name"),
    [
        ("a:{x}", {"x": "b"}, "a:b"),
        ("a:{x}", {"x": ID}, f"a:{ID}"),
        ("a:{x}", {"x": decimal.Decimal("1.50")}, "a:1.50"),
        ("a:{x}", {"x": 1e16}, "a:10000000000000000"),  # as a queue in PostgreSQL gives it back
        ("a:{x}", {"x": -1.5e300}, f"a:{-15 * 10**299}"),
        ("a:{x}", {"x": 1e15}, "a:1000000000000000.0"),
        ("a:{x:%Y-%m}", {"x": dt.date(2026, 3, 1)}, "a:2026-03"),
        ("a:{x:>{width}}", {"x": 7, "width": 3}, "a:  7"),
        ("a:{x.pk}", {"x": Hall(pk=5)}, "a:5"),
        ("a:{x}:{x}:{y}", {"x": 1, "y": 2}, "a:1:1:2"),
        ("a:{x}", {"x": "{y}"}, "a:{y}"),
        ("a:{{{x}}}", {"x": 1}, "a:{1}"),
        ("{ttl}:{template}:{self}", {"ttl": 1, "template": 2, "self": 3}, "1:2:3"),
        (["a:{x}", "b:{y}"], {"x": 1, "y": 2}, ("a:1", "b:2")),
        (["all", "a:{x}"], {"x": 1}, ("all", "a:1")),
        # Somebody else may choose the text: two texts are two names.
        ("of:{x}", {"x": "a\nb"}, f"of:a?b~{DIGEST}"),
    ],
)
def test_the_fields_are_filled_as_those_of_a_decorator(template, values, name):
    """Any format; a keyword is a value, whatever it is called; braces in it are text."""
    with redlock.named(template, **values) as lease:
        assert lease.name == name


PLAIN = {"x": 1}


@pytest.mark.parametrize(
    ("template", "values", "error", "says"),
    [
        ("a:{x}", {}, TypeError, r"'a:\{x\}' needs a value: write x=…; a decorator fills it from"),
        ("a:{x}:{y}", PLAIN, TypeError, r"needs a value: write y=…$"),
        ("a:{x:{width}}", PLAIN, TypeError, "needs a value: write width=…"),
        (["a:{x}", "b:{y}"], PLAIN, TypeError, "needs a value: write y=…"),
        ("a:{x}", PLAIN | {"ttl": 3}, TypeError, r"no field \{ttl\}; an option is given before"),
        ("a:{pk}", {"pk": 1, "pkk": 2}, TypeError, r"no field \{pkk\} \(did you mean 'pk'\?\)"),
        ("a:7", {}, ValueError, "'a:7' has no field, as {pk}: leave out the f before"),
        ("a:{{x}}", PLAIN, ValueError, "has no field"),
        ("a:{}", {}, ValueError, "is not a template: .*positional"),
        ("a:{0}", {}, ValueError, "is not a template: .*positional"),
        ("a:{x", PLAIN, ValueError, "is not a template: expected '}'"),
        ("a:{x:%Y}", {"x": 1}, ValueError, "a int does not have the format"),
        ("a:{x.pk}", {"x": 1}, ValueError, r"\{x.pk\} names an attribute that is not there"),
        ("a:{x}", {"x": None}, TypeError, r"\{x\} in a lock's name is None"),
        ("a:{x}", {"x": b"1"}, TypeError, "is a bytes: write one text or number"),
        ("a:{x}", {"x": [1, 2]}, TypeError, "is a list: write one text or number"),
        ("a:{x}", {"x": {1}}, TypeError, "is a set: write one text or number"),
        ("a:{x}", {"x": {}}, TypeError, "is a dict: write one text or number"),
        ("a:{x}", {"x": object()}, TypeError, "whose text is its address"),
        ("a:{x}", {"x": {}.get}, TypeError, "whose text is its address"),
        ("a:{x}", {"x": print}, TypeError, "whose text is its address"),
        ("a:{x}", {"x": asyncio.run}, TypeError, "whose text is its address"),
        ("a:{x.upper}", {"x": "b"}, TypeError, "whose text is its address"),
        ("a:{x}", {"x": Hall(pk=1)}, TypeError, r"a Hall, whose text may change.*write \{x.pk\}"),
        ("a:{x.pk}", {"x": Hall()}, TypeError, "because the Hall is not saved"),
        ("", {}, ValueError, "is empty"),
        (7, {}, TypeError, "a lock's name must be a str"),
        ([], {}, ValueError, "1 to 128 names"),
    ],
)
def test_what_does_not_fit_is_refused(template, values, error, says):
    """Before any node is asked, and with what to write."""
    with pytest.raises(error, match=says):
        redlock.named(template, **values)


def test_a_named_lock_decorates_a_function():
    """Its name is what it is: a brace in a value is no field of the function's arguments."""

    @redlock.named("of:{x}", x="{year}")
    def build(year: int) -> Any:
        lease = current_lease()
        return (lease.name, lease.template, year) if lease else None

    @redlock.named("of:{x}", x="{year}")
    async def abuild(year: int) -> Any:
        lease = current_lease()
        return (lease.name, lease.template, year) if lease else None

    assert build(2026) == ("of:{year}", "of:{x}", 2026)
    assert asyncio.run(abuild(2026)) == ("of:{year}", "of:{x}", 2026)


# -- who is told ----------------------------------------------------------------------------------


def test_each_event_of_a_block_has_it(told):
    """From a refusal to a release, in a thread."""
    lock = redlock.named(INVOICE, pk=42)
    with lock as lease:
        lease.extend()
        assert lock.try_acquire() is None
        assert redlock("invoice:42").try_acquire() is None
    assert told.templates() == [
        ("ACQUIRED", INVOICE),
        ("EXTENDED", INVOICE),
        ("REFUSED", INVOICE),
        ("REFUSED", ""),
        ("RELEASED", INVOICE),
    ]
    assert {event.name for event in told} == {"invoice:42"}


def test_an_outage_and_a_loss_have_it(told, memory):
    """Nodes that are down, and a lease that was taken away."""
    lock = redlock.named(INVOICE, pk=42)
    lease = lock.acquire()
    memory.down = {0, 1, 2}
    with pytest.raises(NodesUnavailable):
        lock.acquire()
    memory.down = set()
    redlock.revoke("invoice:42")
    with pytest.raises(LeaseLost):
        lease.extend()
    assert told.templates() == [("ACQUIRED", INVOICE), ("UNAVAILABLE", INVOICE), ("LOST", INVOICE)]


def test_a_lease_that_is_handed_over_keeps_it(told):
    """The handle carries it, by whichever template of the alias it is adopted."""
    handle = redlock.named(["a:{x}", "b:{x}"], x=1).acquire().handle()
    with pytest.raises(LockTaken):
        redlock("a:1").acquire()
    lease = redlock.adopt(handle)
    assert lease.template == "a:{x}, b:{x}"
    lease.release()
    with pytest.raises(LeaseLost):
        redlock.adopt(handle)
    both = "a:{x}, b:{x}"
    assert told.templates() == [
        ("ACQUIRED", both),
        ("GIVEN", both),
        ("REFUSED", ""),
        ("ACQUIRED", both),
        ("RELEASED", both),
        ("REFUSED", both),
    ]


def test_the_log_has_it_as_a_field(caplog):
    """In each record, "" where there is none; the line stays as it is."""
    caplog.set_level(logging.DEBUG, logger="django_redlock")
    with redlock.named(INVOICE, pk=42), redlock("name"):
        pass
    found = {record.redlock_name: record.redlock_template for record in caplog.records}
    assert found == {"invoice:42": INVOICE, "name": ""}
    assert not any(INVOICE in record.getMessage() for record in caplog.records)


# -- decorators -----------------------------------------------------------------------------------


def in_function(name: str) -> None:
    """Call a decorated function."""

    @redlock(name)
    def build(year: int) -> None: ...

    build(2026)


def in_coroutine(name: str) -> None:
    """Await a decorated coroutine function."""

    @redlock(name)
    async def build(year: int) -> None: ...

    asyncio.run(build(2026))


def in_task(name: str | None) -> None:
    """Call the function of a task."""

    @locked_task(name)
    def build(year: int) -> None: ...

    build(2026)


def in_view(key: Any) -> None:
    """Ask a view."""

    @single_flight(key=key)
    def view(request: Any, year: int) -> HttpResponse:
        return HttpResponse()

    view(RequestFactory().post("/orders/"), 2026)


def in_async_view(key: Any) -> None:
    """Ask an async view."""

    @single_flight(key=key)
    async def view(request: Any, year: int) -> HttpResponse:
        return HttpResponse()

    asyncio.run(view(RequestFactory().post("/orders/"), 2026))


def in_command(name: str | None) -> None:
    """Run a command."""

    class Import(LockedCommand):
        lock_name = name
        requires_system_checks = ()

        def handle(self, *args: Any, **options: Any) -> None: ...

    call_command(Import())


IN_TASK = "task:tests.locks.test_named.build:{digest}"


@pytest.mark.parametrize(
    ("call", "key", "template"),
    [
        (in_function, "report:{year}", "report:{year}"),
        (in_function, "report:2026", ""),
        (in_coroutine, "report:{year}", "report:{year}"),
        (in_coroutine, "report:2026", ""),
        (in_task, "report:{year}", "report:{year}"),
        (in_task, ["all", "report:{year}"], "all, report:{year}"),
        (in_task, "nightly", "nightly"),
        (in_task, None, IN_TASK),
        (in_view, "report:{year}", "report:{year}"),
        (in_view, ["all", "report:{year}"], "all, report:{year}"),
        (in_view, "checkout", "checkout"),
        (in_view, None, "view:{client}:{method}:{path}"),
        (in_view, lambda request, year: f"report:{year}", ""),
        (in_view, lambda request, year: [f"report:{year}", "all"], ""),
        (in_async_view, "report:{year}", "report:{year}"),
        (in_async_view, None, "view:{client}:{method}:{path}"),
        (in_command, "import:{verbosity}", "import:{verbosity}"),
        (in_command, None, "command:test_named"),
    ],
)
def test_the_key_of_a_decorator_is_the_template(
    told: Told, call: Callable[[Any], None], key: Any, template: str
) -> None:
    """Except for what a function made, and a name without a field, which may be an f-string's."""
    call(key)
    assert told.templates() == [("ACQUIRED", template), ("RELEASED", template)]
    assert all("{" not in str(event.name) for event in told)
