"""Settings, options, errors, signals, metrics: the reference has each, and nothing else."""

from __future__ import annotations

import ast
import inspect
import io
import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command, load_command_class
from django.core.management.base import BaseCommand
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Metric

from django_redlock import (
    LeaseLost,
    LockTaken,
    NodesUnavailable,
    checks,
    conf,
    errors,
    events,
    otel,
    redlock,
    signals,
)
from django_redlock.celery import DuplicateTask, locked_task
from django_redlock.celery import checks as task_checks
from django_redlock.celery.plan import CHOICES, UNTIL_FINISHED, plan_of
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import LEVELS, Event, EventKind, NodeTiming, TaskEvent, TaskOutcome
from django_redlock.fencing import FencedRows, StaleFence, fenced
from django_redlock.fencing import field as fence_field
from django_redlock.inspection.rows import EXIT
from django_redlock.inspection.state import LockState
from django_redlock.inspection.survey import Health, LockStatus
from django_redlock.inspection.tasks import TaskState
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.signals import RobustSignal
from django_redlock.views import checks as view_checks
from django_redlock.views import single_flight
from tests.docs.pages import METRICS, ROOT, SETTINGS, blocks, codes, first_codes, table, tables
from tests.support.looked_at import A, finish, put, queue

OF_SIGNALS, OF_METRICS = "docs/reference/signals.md", "docs/reference/metrics.md"
OF_STATUS = "docs/how-to/status.md"
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
    page = SETTINGS.read_text()
    rows = re.findall(r"^\| \[`([A-Z_]+)`\].*\| `([^`]*)`[^|]*\|$", page, re.MULTILINE)
    assert {key: ast.literal_eval(default) for key, default in rows} == conf.DEFAULTS
    sections = re.findall(r"^### ([A-Z_]+)$", page, re.MULTILINE)
    assert sections == list(conf.DEFAULTS)


def test_every_check_is_described():
    """Each id of a system check has a section."""
    every = vars(checks) | vars(task_checks) | vars(fence_field)
    every |= vars(view_checks)
    ids = {value for name, value in every.items() if re.fullmatch(r"[EW]\d+", name)}
    assert (
        set(re.findall(r"^### (django_redlock\.\w+)$", SETTINGS.read_text(), re.MULTILINE)) == ids
    )


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


@pytest.mark.parametrize(
    ("option", "values"),
    CHOICES.items(),
)
def test_the_choices_of_a_task(option, values):
    """The table of an option has each of its values, and names the default."""
    page = table("docs/how-to/celery.md", f"`{option}`")
    rows = [row for row in page.rows if row[0] != "a function"]
    assert (len(rows) < len(page.rows)) == (option == "on_duplicate")
    assert tuple(ast.literal_eval(codes(row[0])[0]) for row in rows) == values
    (default,) = [codes(row[0])[0] for row in rows if "the default" in row[0]]
    given = inspect.signature(locked_task).parameters[option].default
    of_marks = {"mode": UNTIL_FINISHED, "on_conflict": "retry"}
    plan = plan_of(locked_task(**of_marks | {option: given})(lambda: None))
    assert ast.literal_eval(default) == getattr(plan, option)


# -- errors and calls -----------------------------------------------------------------------------


ERRORS = {each.__name__ for each in errors.RedlockError.__subclasses__()} & set(errors.__all__)


def test_the_tables_of_errors():
    """Each error has a row in the reference; those of a lock have one in "Errors", in its order."""
    assert set(first_codes(table("docs/reference/api.md", "Error"))) == {*ERRORS, "StaleFence"}
    assert issubclass(StaleFence, errors.LeaseLost)
    page = table("docs/how-to/errors.md", "Error")
    of_locks = ERRORS - {DuplicateTask.__name__}
    assert set(first_codes(page)) == of_locks
    answers = table("docs/how-to/errors.md", "", "`LockTaken`")
    assert [codes(each)[0] for each in answers.header[1:]] == first_codes(page)
    for name in ERRORS:
        assert issubclass(getattr(errors, name), errors.RedlockError)


def test_the_calls_of_threads_and_tasks():
    """Each call in a thread is, with an "a" before its name, a coroutine function for tasks."""
    page = table("docs/how-to/asyncio.md", "In a thread", "In a task")
    owners: dict[str, Any] = {"lock": Lock, "lease": Lease, "redlock": type(redlock)}
    pairs = 0
    for blocking, awaiting in page.rows:
        calls = re.findall(r"`(\w+)\.(\w+)\(", blocking)
        assert re.findall(r"`await (\w+)\.a(\w+)\(", awaiting) == calls
        for owner, method in calls:
            pairs += 1
            assert inspect.iscoroutinefunction(getattr(owners[owner], f"a{method}"))
            assert not inspect.iscoroutinefunction(getattr(owners[owner], method))
    every = [
        f"a{name}" for owner in owners.values() for name in vars(owner) if f"a{name}" in vars(owner)
    ]
    assert pairs == len(every)


def test_the_methods_of_claimed_rows():
    """The table has each method of claimed rows, and the text those for tasks."""
    page = ROOT / "docs/how-to/fencing.md"
    rows = first_codes(table("docs/how-to/fencing.md", "", "statement"))
    assert rows[0] == f"fenced({', '.join(list(inspect.signature(fenced).parameters)[:2])})"
    named = [code.partition("(")[0] for code in rows[1:]]
    methods = [name for name, each in vars(FencedRows).items() if inspect.isfunction(each)]
    public = {name for name in methods if not name.startswith("_")}
    of_tasks = {name for name in public if inspect.iscoroutinefunction(getattr(FencedRows, name))}
    assert set(named) == public - of_tasks
    (line,) = re.findall(r"^There are (`a.*)\.$", page.read_text(), re.MULTILINE)
    assert set(codes(line)) == of_tasks


# -- signals, metrics and the log -----------------------------------------------------------------


LOST = LeaseLost(because(ReasonCode.RAN_OUT), name="name")


def every_signal() -> dict[str, RobustSignal]:
    """The signals of the module, by name."""
    found = vars(signals).items()
    return {name: signal for name, signal in found if isinstance(signal, RobustSignal)}


def told(signal: RobustSignal, event: Event | TaskEvent) -> tuple[Any, list[str]]:
    """The sender of a signal and the names of its arguments."""
    sender, arguments = signal._told(event)
    return sender, list(arguments)


def test_the_tables_of_signals():
    """Each signal is in one of the two tables; a table's arguments are those of its signals."""
    of_locks, of_lock_arguments, of_tasks, of_task_arguments = tables(OF_SIGNALS)
    assert {*first_codes(of_locks), *first_codes(of_tasks)} == every_signal().keys()
    event = Event(EventKind.LOST, "default", "name", 1.0, error=LOST)
    for name in first_codes(of_locks):
        assert told(every_signal()[name], event) == (Lock, first_codes(of_lock_arguments))
    task_event = TaskEvent(TaskOutcome.SKIPPED, "default", "name", "reports.sync", "id")
    for name in first_codes(of_tasks):
        sender, arguments = told(every_signal()[name], task_event)
        assert (sender, arguments) == ("reports.sync", first_codes(of_task_arguments))


def each_event() -> Iterator[Event]:
    """An event of each kind."""
    refusals = {EventKind.REFUSED: LockTaken, EventKind.UNAVAILABLE: NodesUnavailable}
    for kind in EventKind:
        reason = because(ReasonCode.RAN_OUT)
        error = refusals[kind](reason, name="name") if kind in refusals else None
        yield Event(kind, "default", "name", 1.0, error=error)


@pytest.fixture
def measured() -> Iterator[dict[str, Metric]]:
    """What an SDK has when each kind of event was told once, by the metric's name."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    instruments = otel.Instruments(meters, None)
    for event in each_event():
        instruments._on_event(event)
    for outcome in TaskOutcome:
        instruments._on_task(TaskEvent(outcome, "default", "name", "reports.sync", "id"))
    instruments._on_timing(NodeTiming("default", "10.0.0.1:6379/0", 0.001))
    instruments._on_timing(NodeTiming("default", "n", None, because(ReasonCode.DOWN)))
    data = reader.get_metrics_data()
    assert data is not None
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    yield {metric.name: metric for metric in scope.metrics}
    meters.shutdown()


def attributes(cell: str) -> dict[str, set[str]]:
    """The attributes that a cell names, each with the values that follow it."""
    found: dict[str, set[str]] = {}
    for code in codes(cell):
        if "." in code:
            found[code] = set()
        else:
            found[list(found)[-1]].add(code)
    return found


def test_the_table_of_metrics(measured):
    """Name, kind, unit, attributes and outcomes of each metric are those of its row."""
    page = table(OF_METRICS, "Metric")
    assert sorted(first_codes(page)) == sorted(measured)
    for head, kind, _, cell in page.rows:
        (name,) = codes(head)
        metric = measured[name]
        unit = f"histogram, {metric.unit}" if isinstance(metric.data, Histogram) else "counter"
        assert kind == unit
        points: list[Any] = list(metric.data.data_points)
        shown = attributes(cell)
        assert {key for point in points for key in point.attributes} == shown.keys(), name
        for key, values in shown.items():
            if values:
                assert {str(point.attributes[key]) for point in points} == values


def test_the_fields_of_the_log(caplog):
    """A record has the fields of the table and no others; a line is as the page shows it."""
    page = table(OF_METRICS, "Field")
    caplog.set_level(logging.DEBUG, logger="django_redlock")
    for event in each_event():
        events.tell(event)
    assert len(caplog.records) == len(EventKind)
    for record in caplog.records:
        fields = [name for name in vars(record) if name.startswith("redlock_")]
        assert sorted(fields) == sorted(first_codes(page))


def test_a_line_of_the_log_is_as_the_page_shows_it(caplog):
    """The line that the page prints is that of such a refusal."""
    (shown,) = [block.text for block in blocks(METRICS) if block.language == "text"]
    held = because(ReasonCode.HELD, holder="web-1:2114", nodes=3, size=5)
    votes = events.VoteCount(0, 3, 2)
    refusal = Event(EventKind.REFUSED, "default", "invoice:42", 0.000712, None, votes)
    caplog.set_level(logging.INFO, logger="django_redlock")
    events.tell(refusal._replace(error=LockTaken(held, name="invoice:42")))
    assert [record.getMessage() for record in caplog.records] == [shown.strip()]


def test_the_levels_of_the_page_are_those_of_the_log():
    """The table of levels names each event once, at its level."""
    rows = re.findall(r"^\| `(WARNING|INFO|DEBUG)` \| (.*) \|$", METRICS.read_text(), re.MULTILINE)
    told = {kind: level for level, text in rows for kind in re.findall(r"`([a-z ]+)`", text)}
    assert told == {str(kind): logging.getLevelName(level) for kind, level in LEVELS.items()}


# -- the status command ---------------------------------------------------------------------------


OWN = [each for each in Health if each is not Health.NOT_YET]  # that one is of redlock_check


def test_the_options_of_the_command():
    """The table uses each option of the command, and no other."""
    parser = load_command_class("django_redlock", "redlock_status").create_parser("manage.py", "x")
    everywhere = BaseCommand().create_parser("manage.py", "x")
    own = set(parser._option_string_actions) - set(everywhere._option_string_actions)
    commands = [codes(row[0])[0] for row in table(OF_STATUS, "Command").rows]
    assert {word for command in commands for word in command.split() if word[0] == "-"} == own
    for command in commands:
        parser.parse_args(command.replace("'", "").split()[2:])


def test_the_exit_status(memory):
    """Each health has its row; 1 and 2 are what Django and argparse end with."""
    assert {int(row[0]) for row in table(OF_STATUS, "Exit status").rows} == {
        *map(EXIT.get, OWN),
        1,
        2,
    }
    with pytest.raises(CommandError) as wrong:
        call_command("redlock_status", "--alias", "nobody")
    assert wrong.value.returncode == 1


def keys_of(document: Any, where: str = "") -> Iterator[str]:
    """The places of a document, as the page writes them, without what leads to a list."""
    if isinstance(document, list):
        for each in document:
            yield from keys_of(each, f"{where}[]")
    elif isinstance(document, dict):
        for key, value in document.items():
            name = "*" if where == "aliases" else key
            place = f"{where}.{name}" if where else name
            if not isinstance(value, list) or not any(isinstance(each, dict) for each in value):
                yield place
            yield from keys_of(value, place)


def shown_keys() -> Iterator[str]:
    """The places that the page's table names; "…." is the last list above it."""
    last = ""
    for key, value in table(OF_STATUS, "Key", "Value").rows:
        for code in codes(key):
            if code.endswith("[]"):
                last = code
                yield from (f"{last}.{each}" for each in codes(value) if each.isidentifier())
            else:
                yield code.replace("…", last)


def document(*arguments: str) -> Any:
    """What ``--json`` prints."""
    out = io.StringIO()
    call_command("redlock_status", "--json", *arguments, stdout=out)
    return json.loads(out.getvalue())


def test_the_keys_of_the_document(memory):
    """The JSON has the keys of the table, all of them and no others."""
    put(memory, "invoice:42", f"{A}:7:web-1:2114", *range(5))
    queue(memory, "reports.sync", "account:7", "id-1", *range(5))
    finish(memory, "reports.sync", "id-2", *range(5))
    found = set(keys_of(document("--finished"))) - {"aliases.*"}
    shown = set(shown_keys()) - {"null"}
    # Cells name `null` in their text, and these two are told by the rows below them.
    assert {key for key in shown if not key.endswith(".null")} == found


def test_the_values_of_the_document():
    """Health, kinds of locks and states of tasks are those of the code."""
    rows = {row[0]: row[1] for row in table(OF_STATUS, "Key", "Value").rows}
    for key, values in (("`health`", OWN), ("`….kind`", LockStatus), ("`….state`", TaskState)):
        assert [json.loads(code) for code in codes(rows[key])] == [each.value for each in values]


OF_A_STATE = {each.name for each in fields(LockState)} | {"held", "known"}


def test_the_attributes_of_a_state():
    """The table has each attribute of what ``Lock.state`` returns, but the name."""
    (shown,) = tables("docs/how-to/locks.md")
    assert set(first_codes(shown)) == OF_A_STATE - {"name"}
    assert isinstance(vars(LockState)["held"], property)
