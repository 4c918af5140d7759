"""Tables of settings, options and checks say what the code does, in both directions.

``test_every_table_is_compared_or_prose`` lists the tables of all pages, and the tests of each.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory, override_settings

from django_redlock import conf, redlock
from django_redlock.celery import locked_task
from django_redlock.celery import options as celery_options
from django_redlock.fencing import fenced
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.locks.options import KNOWN
from django_redlock.setting_values import LONGEST_TIMEOUT
from django_redlock.views import refusals, single_flight
from tests.docs.tables import codes, first_codes, table, tables
from tests.docs.test_docs import SETTINGS
from tests.support.looked_at import group, in_memory

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


def test_the_limits_of_the_settings():
    """A number of seconds has the limit that the page tells; a part of a ttl has none of these."""
    page = table("docs/reference/settings.md", "Key", "Type", "Unit", "Default")
    units = dict(zip(first_codes(page), page.column("Unit"), strict=True))
    told = re.search(r"at most ([\d,]+) .*`NODE_TIMEOUT` at most ([\d,]+)", SETTINGS.read_text())
    assert told
    longest, timeout = (int(number.replace(",", "")) for number in told.groups())
    assert (longest, timeout) == (LONGEST, LONGEST_TIMEOUT)
    for key, unit in units.items():
        if unit != "seconds":
            other = {"CLOCK_DRIFT": "part of a ttl", "MAX_WAITING_REQUESTS": "requests"}
            assert unit == other.get(key, "")
            assert not isinstance(conf.DEFAULTS[key], float) or unit
            continue
        most = timeout if key == "NODE_TIMEOUT" else longest
        make(key, most)
        with pytest.raises(ImproperlyConfigured, match=key):
            make(key, most + 1)


@pytest.mark.django_db  # checks of Django ask the databases, too
@override_settings(
    REDLOCK={
        "default": {"NODES": NODES},
        "real": {
            "NODES": [f"redis://10.0.0.{node}" for node in (1, 2, 3)],
            "RESTART_GUARD": False,
        },
    }
)
def test_the_checks_of_a_deployment():
    """The checks that are told by ``check --deploy`` only are those of which the page says so."""
    sections = re.split(r"^### (django_redlock\.\w+)$", SETTINGS.read_text(), flags=re.MULTILINE)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    told = {check for check, text in texts.items() if "Told by `check --deploy` only" in text}

    def found(*, deploy: bool) -> set[str]:
        ids = {str(each.id) for each in run_checks(include_deployment_checks=deploy)}
        return {each for each in ids if each.startswith("django_redlock.")}

    seen = found(deploy=True) - found(deploy=False)
    assert {"django_redlock.W004", "django_redlock.W005"} <= seen <= told
    (row,) = [each for each in tables("docs/reference/settings.md") if each.rows[0][0] == "Errors"]
    (listed,) = [each[1] for each in row.rows if "--deploy" in each[0]]
    numbers = [int(each) for each in re.findall(r"\[W(\d+)\]", listed)]
    spans = re.findall(r"\[W(\d+)\]\S* to \[W(\d+)\]", listed)
    numbers += [each for low, high in spans for each in range(int(low), int(high) + 1)]
    assert {f"django_redlock.W{number:03}" for number in numbers} == told


# -- options --------------------------------------------------------------------------------------

DESCRIBED = [
    type(redlock).__call__,
    type(redlock).adopt,
    Lock.acquire,
    Lock.try_acquire,
    Lease.extend,
    Lease.handle,
    single_flight,
    locked_task,
    fenced,
]


@pytest.mark.parametrize("function", DESCRIBED, ids=lambda each: each.__qualname__)
def test_the_reference_describes_each_argument(function):
    """What the reference prints of a function has its arguments, all of them and no others."""
    parameters = inspect.signature(function).parameters.values()
    alone = inspect.Parameter.POSITIONAL_ONLY  # another form of an argument with a name
    wanted = [each.name for each in parameters if each.name != "self" and each.kind != alone]
    text = inspect.getdoc(function) or ""
    _, _, below = text.partition("Args:\n")
    section = re.split(r"^\S", below, maxsplit=1, flags=re.MULTILINE)[0]
    described = re.findall(r"^ {4}(\w[\w, ]*):", section, re.MULTILINE)
    assert [name for line in described for name in line.split(", ")] == wanted


def test_the_options_of_a_lock_are_its_arguments():
    """``redlock(...)`` and ``redlock.using(...)`` take the same options, four inner ones aside."""
    taken = list(inspect.signature(redlock.__call__).parameters)
    assert taken == ["name", *KNOWN[:-4]]


def test_the_options_of_a_view():
    """The table has each option of ``single_flight`` with its default."""
    page = table("docs/how-to/views.md", "Option", "Default")
    shown = dict(zip(first_codes(page), page.column("Default"), strict=True))
    defaults = {
        name: option.default
        for name, option in inspect.signature(single_flight).parameters.items()
        if name not in {"first", "key"}
    }
    assert list(shown) == list(defaults)
    for name, default in defaults.items():
        if name == "methods":
            assert tuple(shown[name].split(", ")) == default
        elif name in {"on_lost", "on_refused"}:
            assert (shown[name], default) == ("", None)
        elif isinstance(default, str):
            assert shown[name] == f'`"{default}"`'
        elif default is None:
            inherited = '`"default"`' if name == "alias" else f"the alias's `{name.upper()}`"
            of_aliases = name == "alias" or name.upper() in conf.DEFAULTS
            assert shown[name] == (inherited if of_aliases else "")
        else:
            assert ast.literal_eval(shown[name].strip("`")) == default


def test_the_answers_of_a_view():
    """Status and Retry-After of a refusal are those of the table."""
    held, away, waiting = table("docs/how-to/views.md", "", "Status").rows
    assert waiting[1:3] == away[1:3]
    assert waiting[3] == held[3]
    options = table("docs/how-to/views.md", "Option", "Default")
    (status,) = [row[2] for row in options.rows if row[0] == "`status`"]
    assert set(map(int, re.findall(r"\d{3}", status))) == refusals.BUSY

    @single_flight("pay")
    def pay(_request: Any) -> HttpResponse:
        return HttpResponse("paid")

    with in_memory("default"):
        with redlock("pay"):
            refused = pay(RequestFactory().post("/"))
        assert refused.status_code == int(held[1].partition(",")[0])
        assert refused.headers["Retry-After"] == held[2].partition(",")[0]
        group("default").down = {0, 1, 2}
        unknown = pay(RequestFactory().post("/"))
    assert [str(unknown.status_code), unknown.headers["Retry-After"]] == list(away[1:3])
    texts = {held[3]: refused, away[3]: unknown}
    for told, response in texts.items():
        assert all(part.strip() in response.content.decode() for part in told.split(":"))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("mode", celery_options.MODES),
        ("on_conflict", celery_options.ON_CONFLICT),
        ("on_unavailable", celery_options.ON_UNAVAILABLE),
        ("on_duplicate", celery_options.ON_DUPLICATE),
    ],
)
def test_the_choices_of_a_task(option, values):
    """The table of an option has each of its values, and names the default."""
    page = table("docs/how-to/celery.md", f"`{option}`")
    rows = [row for row in page.rows if row[0] != "a function"]
    assert (len(rows) < len(page.rows)) == (option == "on_duplicate")
    assert tuple(ast.literal_eval(codes(row[0])[0]) for row in rows) == values
    (default,) = [codes(row[0])[0] for row in rows if "the default" in row[0]]
    given = inspect.signature(locked_task).parameters[option].default
    of_marks = {"mode": celery_options.UNTIL_FINISHED, "on_conflict": "retry"}
    filled = celery_options.check(
        **{"on_unavailable": "retry", "queue_ttl": None, "using": None, "on_duplicate": None}
        | of_marks
        | {option: given}
    )
    assert ast.literal_eval(default) == getattr(filled, option)


def test_the_wait_of_the_page():
    """The first row is the default of WAIT; each value of the table is accepted."""
    waits = [codes(row[0])[0] for row in table("docs/how-to/waiting.md", "`wait`").rows]
    first, *others = waits
    assert ast.literal_eval(first) == conf.DEFAULTS["WAIT"]
    for wait in (first, *others):
        redlock("name", wait=float("inf") if "inf" in wait else float(wait))
