"""Settings, options, errors, signals, metrics: the reference has each, and nothing else."""

from __future__ import annotations

import ast
import inspect
import logging
import math
import re
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from dev.tools.reference import options
from django_redlock import (
    LockTaken,
    conf,
    events,
    redlock,
)
from django_redlock.celery import locked_task
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import Event, EventKind, TaskEvent
from django_redlock.fencing import fenced
from django_redlock.idempotency import answers
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.signals import RobustSignal
from django_redlock.views import refusals, single_flight
from django_redlock.work.options import CHOICES, OPTIONS, UNTIL_FINISHED, TaskOptions
from django_redlock.work.plan import Plan, plan_of
from tests.docs.pages import METRICS, MONITORING, SETTINGS, blocks, codes, first_codes, table, whole

OF_SIGNALS, OF_METRICS = "docs/reference/signals.md", "docs/reference/metrics.md"
NODES = ["memory://a", "memory://b", "memory://c"]
LONGEST = 1e9  # seconds, as the page says


# -- settings -------------------------------------------------------------------------------------

# For what the column "Type" says: values that are accepted, and values that are not.
TYPES: dict[str, tuple[list[Any], list[Any]]] = {
    "list or tuple": ([NODES, tuple(NODES)], [[], (), "memory://a", {"a": 1}, None]),
    "number > 0": ([1, 0.5], [0, -1, "1", None, True, math.inf, math.nan]),
    'number ≥ 0, or `float("inf")`': ([0, 0.5, math.inf], [-1, "1", None, True, math.nan]),
    'number > 0, `float("inf")`, or `None`': ([0.5, math.inf, None], [0, -1, "1", True]),
    "number ≥ 0": ([0, 0.5], [-1, "1", None, True, math.inf]),
    "whole number ≥ 1, or `None`": ([1, 100, None], [0, -1, 1.5, "1", True, math.inf]),
    "0 ≤ number < 1": ([0, 0.5], [1, -0.1, "0", None, True]),
    "bool": ([True, False], [1, 0, None, "yes"]),
    "str": (["", "shop:"], [None, b"shop:", 1]),
    "dict": ([{}], [None, [], "db=1"]),
}


def make(key: str, value: Any) -> None:
    """Make a backend with one key set; a ttl has the room that it needs."""
    room = {"TTL": 0.1} if key == "MAX_TTL" else {"MAX_TTL": LONGEST}
    conf.make("default", {"NODES": NODES} | room | {key: value})


def test_the_types_of_the_settings():
    """Each key accepts what its row says, its default included, and refuses the rest."""
    page = table("docs/reference/settings.md", "Key", "Type", "Unit", "Default")
    assert first_codes(page) == list(conf.DEFAULTS)
    assert set(page.column("Type")) == TYPES.keys()
    for (key,), kind in zip(map(codes, page.column("Key")), page.column("Type"), strict=True):
        accepted, refused = TYPES[kind]
        for value in accepted:
            make(key, value)
        for value in refused:
            with pytest.raises(ImproperlyConfigured, match=key):
                make(key, value)


def test_every_setting_is_described():
    """The reference has each key with its default, a section for it, and no other keys."""
    page = whole(SETTINGS)
    rows = re.findall(r"^\| \[`([A-Z_]+)`\].*\| `([^`]*)`[^|]*\|$", page, re.MULTILINE)
    assert {key: ast.literal_eval(default) for key, default in rows} == conf.DEFAULTS
    sections = re.findall(r"^### ([A-Z_]+)$", page, re.MULTILINE)
    assert sections == list(conf.DEFAULTS)


# -- options --------------------------------------------------------------------------------------

DESCRIBED = [
    type(redlock).__call__,
    type(redlock).adopt,
    Lock.acquire,
    Lock.try_acquire,
    Lease.extend,
    Lease.handle,
    single_flight,
    fenced,
]


@pytest.mark.parametrize("function", DESCRIBED, ids=lambda each: each.__qualname__)
def test_the_reference_describes_each_argument(function):
    """What the reference prints of a function has its arguments, all of them and no others."""
    parameters = inspect.signature(function).parameters.values()
    # Another form of an argument with a name, and what takes no argument but refuses it.
    aside = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_KEYWORD}
    wanted = [each.name for each in parameters if each.name != "self" and each.kind not in aside]
    text = inspect.getdoc(function) or ""
    _, _, below = text.partition("Args:\n")
    section = re.split(r"^\S", below, maxsplit=1, flags=re.MULTILINE)[0]
    described = re.findall(r"^ {4}(\w[\w, ]*):", section, re.MULTILINE)
    assert [name for line in described for name in line.split(", ")] == wanted


def test_the_options_of_tasks():
    """Both tables have the options and defaults of both decorators, and one text for both."""
    of_celery, of_django = (options.options(name) for name in ("locked_task", "tasks.locked_task"))
    assert [each.name for each in of_celery] == [each.name for each in of_django] == [*OPTIONS]
    shared = options.arguments(inspect.getdoc(TaskOptions) or "")
    assert ("key", *shared) == OPTIONS
    parameters = inspect.signature(Plan).parameters
    for each in (*of_celery, *of_django):
        assert each.about.startswith(shared.get(each.name, "The lock's name"))
        given = None if each.name == "key" else parameters[each.name].default
        assert ast.literal_eval(each.default) == given
    differing = [one.name for one, other in zip(of_celery, of_django, strict=True) if one != other]
    assert differing == ["key", "wait", "on_conflict", "mode", "on_duplicate"]


def test_the_options_of_a_view():
    """Each option that the page shows has the default that it shows."""
    page = table("docs/how-to/views.md", "Option", "Default")
    parameters = inspect.signature(single_flight).parameters
    for (name,), shown in zip(
        map(codes, page.column("Option")), page.column("Default"), strict=True
    ):
        default = parameters[name].default
        if name == "methods":
            assert tuple(shown.split(", ")) == default
        elif default is None:
            assert shown == (
                f"the alias's `{name.upper()}`" if name.upper() in conf.DEFAULTS else ""
            )
        else:
            assert ast.literal_eval(shown.strip("`")) == default


@pytest.mark.parametrize(
    ("option", "values"),
    CHOICES.items(),
)
def test_the_choices_of_a_task(option, values):
    """The table of an option has each of its values, and names the default: one of each case."""
    page = table("docs/how-to/celery.md", f"`{option}`")
    rows = [row for row in page.rows if row[0] != "a function"]
    assert (len(rows) < len(page.rows)) == (option == "on_duplicate")
    assert tuple(ast.literal_eval(codes(row[0])[0]) for row in rows) == values
    defaults = [row[0] for row in rows if "the default" in row[0]]
    limits = [bool(re.search("with a `limit`", each)) for each in defaults]
    assert limits == ([False, True] if option == "on_conflict" else [False])
    given = inspect.signature(Plan).parameters[option].default
    of_marks: dict[str, Any] = {"mode": UNTIL_FINISHED, "on_conflict": "retry"}
    for default, with_limit in zip(defaults, limits, strict=True):
        others = {"limit": 2} if with_limit else of_marks
        plan = plan_of(locked_task(**others | {option: given})(lambda: None))
        assert ast.literal_eval(codes(default)[0]) == getattr(plan, option)


# -- errors and calls -----------------------------------------------------------------------------


def test_the_texts_that_users_read():
    """The page about errors has the texts that are answered."""
    read = table("docs/how-to/errors.md", "Status", "Your users read").column("Your users read")
    assert read[:3] == [refusals._TAKEN, refusals._UNAVAILABLE, refusals._BEGUN]
    assert read[3:5] == [answers._AGAIN, answers._RELOAD]
    assert read[6:] == [answers._DETAILS["size"], answers._FOR_PEOPLE["other"]]


# -- signals, metrics and the log -----------------------------------------------------------------


def told(signal: RobustSignal, event: Event | TaskEvent) -> tuple[Any, list[str]]:
    """The sender of a signal and the names of its arguments."""
    sender, arguments = signal._arguments(event)
    return sender, list(arguments)


@pytest.mark.parametrize("page", [METRICS, MONITORING], ids=lambda page: page.stem)
def test_a_line_of_the_log_is_as_the_page_shows_it(caplog, page):
    """The line that the page prints is that of such a refusal."""
    (shown,) = [block.text for block in blocks(page) if block.language == "text"]
    held = because(ReasonCode.HELD, holder="web-1:2114", nodes=3, size=5)
    votes = events.VoteCount(0, 3, 2)
    refusal = Event(EventKind.REFUSED, "default", "invoice:42", 0.000712, None, votes)
    caplog.set_level(logging.INFO, logger="django_redlock")
    events.tell(refusal._replace(error=LockTaken(held, name="invoice:42")))
    assert [record.getMessage() for record in caplog.records] == [shown.strip()]
