"""Tables of signals, metrics and the log say what the code tells, in both directions."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Metric

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, events, otel, signals
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import Event, EventKind, NodeTiming, TaskEvent, TaskOutcome
from django_redlock.locks import Lock
from django_redlock.signals import RobustSignal
from tests.docs.tables import ROOT, codes, first_codes, table, tables
from tests.docs.test_docs import blocks

SIGNALS = "docs/reference/signals.md"
METRICS = "docs/reference/metrics.md"
LOST = LeaseLost(because(ReasonCode.RAN_OUT), name="name")


# -- signals --------------------------------------------------------------------------------------


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
    of_locks, of_lock_arguments, of_tasks, of_task_arguments = tables(SIGNALS)
    assert {*first_codes(of_locks), *first_codes(of_tasks)} == every_signal().keys()
    event = Event(EventKind.LOST, "default", "name", 1.0, error=LOST)
    for name in first_codes(of_locks):
        assert told(every_signal()[name], event) == (Lock, first_codes(of_lock_arguments))
    task_event = TaskEvent(TaskOutcome.SKIPPED, "default", "name", "reports.sync", "id")
    for name in first_codes(of_tasks):
        sender, arguments = told(every_signal()[name], task_event)
        assert (sender, arguments) == ("reports.sync", first_codes(of_task_arguments))


def test_a_signal_of_tasks_is_named_after_its_outcome():
    """Each outcome of a message has its signal, and each signal of tasks its outcome."""
    of_tasks = table(SIGNALS, "Signal", "Sent when", "In")
    assert first_codes(of_tasks) == [f"task_{outcome.value}" for outcome in TaskOutcome]


# -- metrics --------------------------------------------------------------------------------------


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
    page = table(METRICS, "Metric")
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


# -- the log --------------------------------------------------------------------------------------


def test_the_fields_of_the_log(caplog):
    """A record has the fields of the table and no others; a line is as the page shows it."""
    page = table(METRICS, "Field")
    caplog.set_level(logging.DEBUG, logger="django_redlock")
    for event in each_event():
        events.tell(event)
    assert len(caplog.records) == len(EventKind)
    for record in caplog.records:
        fields = [name for name in vars(record) if name.startswith("redlock_")]
        assert sorted(fields) == sorted(first_codes(page))


def test_a_line_of_the_log_is_as_the_page_shows_it(caplog):
    """The line that the page prints is that of such a refusal."""
    (shown,) = [block.text for block in blocks(ROOT / METRICS) if block.language == "text"]
    held = because(ReasonCode.HELD, holder="web-1:2114", nodes=3, size=5)
    votes = events.VoteCount(0, 3, 2)
    refusal = Event(EventKind.REFUSED, "default", "invoice:42", 0.000712, None, votes)
    caplog.set_level(logging.INFO, logger="django_redlock")
    events.tell(refusal._replace(error=LockTaken(held, name="invoice:42")))
    assert [record.getMessage() for record in caplog.records] == [shown.strip()]


def test_the_pages_tell_how_to_end_what_they_begin():
    """Each function to listen has one to stop, and the pages name it."""
    text = "".join((ROOT / page).read_text() for page in (SIGNALS, METRICS))
    for begin in ("subscribe", "watch_nodes", "watch_tasks"):
        assert inspect.isfunction(getattr(events, f"un{begin}"))
        assert f"events.un{begin}(" in text
