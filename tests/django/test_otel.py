"""OpenTelemetry: what an SDK is given, and that the app runs without one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from django_redlock import LeaseLost, NodesUnavailable, events, otel, redlock
from django_redlock.events import TaskEvent, TaskOutcome
from django_redlock.leases import Lease
from tests.support.listening import memory
from tests.support.waiting import eventually, release_under_a_waiter

__all__ = ["memory"]


class Telemetry:
    """An SDK that keeps what it is given.

    What it tells is of the alias "default": another test may have left a torn lease, whose time
    runs out meanwhile.
    """

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._spans = InMemorySpanExporter()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))

    def points(self, name: str) -> list[Any]:
        """The data points of a metric so far."""
        return [
            point for metric in self._metrics() if metric.name == name for point in _ours(metric)
        ]

    def names(self) -> set[str]:
        """The metrics that have data."""
        return {metric.name for metric in self._metrics() if _ours(metric)}

    def _metrics(self) -> list[Metric]:
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        scopes = [each for resource in data.resource_metrics for each in resource.scope_metrics]
        assert {each.scope.name for each in scopes} == {"django_redlock"}
        return [metric for each in scopes for metric in each.metrics]

    def spans(self) -> tuple[ReadableSpan, ...]:
        """The spans that have ended."""
        return self._spans.get_finished_spans()


def _ours(metric: Metric) -> list[Any]:
    """The data points of the alias that the tests use."""
    points = metric.data.data_points
    return [
        point for point in points if dict(point.attributes or {}).get("redlock.alias") == "default"
    ]


@pytest.fixture
def telemetry(patient_nodes) -> Iterator[Telemetry]:
    """An SDK that the locks on five real nodes are measured by."""
    with redlock("warm"):
        pass
    sdk = Telemetry()
    otel.instrument(sdk.meters, sdk.tracers)
    yield sdk
    otel.instrument()
    sdk.meters.shutdown()


def by(attribute: str, points: list[Any]) -> dict[Any, Any]:
    """Points by one of their attributes."""
    return {point.attributes[f"redlock.{attribute}"]: point for point in points}


def test_waiting_and_holding_are_measured(telemetry):
    """The wait of a lock and its hold are in the histograms, in seconds, by alias and outcome."""
    first = release_under_a_waiter(redlock("name", renew=False).acquire(), 0.1)
    redlock("name").acquire(wait=20).release()
    first.join()
    assert redlock("a").acquire().handle()
    with redlock("b"):
        assert redlock("b").try_acquire() is None
    waits = by("outcome", telemetry.points("redlock.wait.duration"))
    assert {outcome: point.count for outcome, point in waits.items()} == {
        "acquired": 4,
        "refused": 1,
    }
    assert 0.1 <= waits["acquired"].sum < 20
    assert waits["acquired"].attributes["redlock.alias"] == "default"
    holds = by("outcome", telemetry.points("redlock.hold.duration"))
    assert {outcome: point.count for outcome, point in holds.items()} == {
        "released": 3,
        "given": 1,
    }
    assert 0.1 <= holds["released"].max < 20
    (refusals,) = telemetry.points("redlock.refusals")
    assert (refusals.value, dict(refusals.attributes)) == (1, {"redlock.alias": "default"})


@pytest.mark.slow
def test_a_loss_is_counted(telemetry):
    """A lease that is lost counts as a loss, and its hold ends at its deadline."""
    redlock("name", ttl=3, renew=False).acquire()  # forgotten, but not by us
    lease = redlock("other", ttl=3, renew=False).acquire()
    eventually(lambda: "redlock.losses" in telemetry.names())
    lease.release()
    (losses,) = telemetry.points("redlock.losses")
    assert losses.value == 1
    holds = by("outcome", telemetry.points("redlock.hold.duration"))
    assert holds["lost"].sum == pytest.approx(3 * 0.99 - 0.002)


@pytest.mark.usefixtures("often")
def test_a_lease_that_could_not_be_renewed_is_counted(telemetry, patient_nodes):
    """Once for an outage; its hold is not over, and nothing was lost."""
    with redlock("name") as lease:
        for index in range(3):
            patient_nodes.kill(index)
        eventually(lambda: "redlock.unknown" in telemetry.names())
        tried = lease.renew_at
        eventually(lambda: lease.renew_at > tried)
        (unknown,) = telemetry.points("redlock.unknown")
        assert unknown.value == 1
        assert not {"redlock.losses", "redlock.hold.duration"} & set(telemetry.names())


def test_unavailable_nodes_are_counted_apart(telemetry, patient_nodes):
    """What nobody knows is no refusal, and its span is an error."""
    for index in range(3):
        patient_nodes.kill(index)
    with pytest.raises(NodesUnavailable):
        redlock("name").acquire()
    (point,) = telemetry.points("redlock.unavailable")
    assert point.value == 1
    assert "redlock.refusals" not in telemetry.names()
    (span,) = telemetry.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "NodesUnavailable"


def test_messages_of_tasks_are_counted(telemetry):
    """By alias, task and outcome; ids and names of locks are no attributes."""
    for outcome in [*TaskOutcome, TaskOutcome.SKIPPED]:
        assert events.wanted_of_tasks(outcome)
        events.tell_of_task(TaskEvent(outcome, "default", "account:7", "reports.sync", "an-id"))
    points = by("outcome", telemetry.points("redlock.task.messages"))
    counts = {"skipped": 2, "deferred": 1, "duplicate": 1, "finished_before": 1}
    assert {outcome: point.value for outcome, point in points.items()} == counts
    told = {"alias": "default", "task": "reports.sync", "outcome": "skipped"}
    assert dict(points["skipped"].attributes) == {f"redlock.{key}": told[key] for key in told}


def now(telemetry: Telemetry) -> dict[str, float]:
    """The gauges of the process, by the last word of their names."""
    names = ("held", "waiting", "oldest_hold")
    return {name: each.value for name in names for each in telemetry.points(f"redlock.{name}")}


def held_for(lease: Lease) -> float:
    """The seconds since the lease was asked for, by the clock of leases."""
    return lease.backend.policy.clock() - lease.grant.since


def test_what_the_process_holds_is_measured(telemetry):
    """Leases of threads and of tasks, of one name or several, until they end; no node is asked."""
    assert now(telemetry) == {"held": 0, "waiting": 0}
    with redlock("old") as old:

        async def hold() -> tuple[float, dict[str, float], float]:
            async with redlock("a", renew=False), redlock(["b", "c"]):
                return held_for(old), now(telemetry), held_for(old)

        least, found, most = asyncio.run(hold())
        assert (found["held"], found["waiting"]) == (3, 0)
        assert least <= found["oldest_hold"] <= most
        assert now(telemetry)["held"] == 1
        given = redlock("given").acquire()
        requests = telemetry.points("redlock.node.duration")
        assert now(telemetry)["held"] == 2
        assert sum(each.count for each in telemetry.points("redlock.node.duration")) == sum(
            each.count for each in requests
        )
        given.handle()
        assert now(telemetry)["held"] == 1
    assert now(telemetry) == {"held": 0, "waiting": 0}


def test_who_waits_is_measured(telemetry):
    """A thread and a task that wait count, until they have the lock."""

    async def ask() -> None:
        async with redlock("name", wait=60):
            pass

    def hold_for_a_moment() -> None:
        with redlock("name", wait=60):
            pass

    waiting = [threading.Thread(target=hold_for_a_moment)]
    waiting += [threading.Thread(target=asyncio.run, args=[ask()])]
    with redlock("name"):
        for thread in waiting:
            thread.start()
        eventually(lambda: now(telemetry)["waiting"] == 2)
    for thread in waiting:
        thread.join()
    assert now(telemetry) == {"held": 0, "waiting": 0}


def test_a_lease_that_nobody_is_told_of_is_not_held(telemetry):
    """That of a run name, which is told to nobody, is no lock of the user's."""
    kept: list[Lease] = []

    def own(lease: Lease) -> None:
        lease.tell_once()
        kept.append(lease)

    with redlock.using(foreign=own)("run"), redlock("name"):
        assert now(telemetry)["held"] == 1
    assert now(telemetry)["held"] == 0


def test_gauges_are_told_once(telemetry):
    """A process that instruments again reports each alias once, and stopped it reports nothing."""
    for _ in range(3):
        otel.instrument(telemetry.meters, telemetry.tracers)
    assert len(telemetry.points("redlock.held")) == 1
    otel.uninstrument()
    assert now(telemetry) == {}
    otel.instrument(Telemetry().meters, telemetry.tracers)
    assert now(telemetry) == {}


def failures(telemetry: Telemetry) -> list[Any]:
    """The failures of nodes, after one more lock."""
    redlock("name").acquire().release()
    return telemetry.points("redlock.node.failures")


def test_nodes_are_measured(telemetry, patient_nodes):
    """Each node has its round trips, and the one that is dead its failures."""
    patient_nodes.kill(4)
    labels = [f"{node.host}:{node.port}/0" for node in patient_nodes]

    def heard() -> set[object]:  # a question may do without some nodes' answers
        return set(by("node", telemetry.points("redlock.node.duration")))

    eventually(lambda: failures(telemetry) and set(labels[:4]) <= heard())
    failed = {point.attributes["error.type"]: point for point in failures(telemetry)}
    assert set(failed) <= {"connection_closed", "connection_lost", "connection_refused"}
    assert dict(failed["connection_refused"].attributes) == {
        "redlock.alias": "default",
        "redlock.node": labels[4],
        "error.type": "connection_refused",
    }
    assert {each.attributes["redlock.node"] for each in failed.values()} == {labels[4]}
    trips = by("node", telemetry.points("redlock.node.duration"))
    assert all(0 < trips[label].min <= trips[label].max < 10 for label in labels[:4])


def test_a_name_is_no_attribute_of_a_metric(telemetry):
    """Names have no end, so no metric has one: a hundred of them make one point."""
    for number in range(100):
        with redlock(f"name-of-{number}"):
            pass
    for name in telemetry.names():
        for point in telemetry.points(name):
            assert set(point.attributes) <= {"redlock.alias", "redlock.node", "redlock.outcome"}
            assert "name-of" not in repr(point)
    assert len(telemetry.points("redlock.wait.duration")) == 1


# -- templates ------------------------------------------------------------------------------------


def by_template(points: list[Any]) -> dict[str, Any]:
    """Points by their template; "" is that of those without the attribute."""
    return {point.attributes.get("redlock.template", ""): point for point in points}


def test_a_template_is_an_attribute_of_metrics_and_spans(telemetry):
    """A hundred names of one template make one point; what has none has no attribute."""
    for number in range(100):
        with redlock.named("invoice:{pk}", pk=number):
            pass
    with redlock("name"), redlock.named("invoice:{pk}", pk=7):
        assert redlock.named("invoice:{pk}", pk=7).try_acquire() is None
    for metric, outcome in (("wait", "acquired"), ("hold", "released")):
        points = telemetry.points(f"redlock.{metric}.duration")
        points = [each for each in points if each.attributes["redlock.outcome"] == outcome]
        assert {key: each.count for key, each in by_template(points).items()} == {
            "": 1,
            "invoice:{pk}": 101,
        }
    (refusals,) = telemetry.points("redlock.refusals")
    assert dict(refusals.attributes) == {
        "redlock.alias": "default",
        "redlock.template": "invoice:{pk}",
    }
    assert not any("redlock.template" in each.attributes for each in node_points(telemetry))
    spans = [dict(span.attributes or {}) for span in telemetry.spans()]
    assert {span.get("redlock.template") for span in spans} == {"invoice:{pk}", None}
    assert [span for span in spans if "redlock.template" not in span] == [
        span for span in spans if span["redlock.names"] == ("name",)
    ]


def node_points(telemetry: Telemetry) -> list[Any]:
    """The points of requests to nodes."""
    return telemetry.points("redlock.node.duration")


def test_losses_and_outages_have_the_template(telemetry, patient_nodes):
    """The counters that somebody is woken by."""
    lock = redlock.named("invoice:{pk}", pk=1)
    lease = lock.acquire()
    redlock.revoke("invoice:1")
    with pytest.raises(LeaseLost):
        lease.extend()
    for index in range(3):
        patient_nodes.kill(index)
    with pytest.raises(NodesUnavailable):
        lock.acquire()
    for name in ("losses", "unavailable"):
        (point,) = telemetry.points(f"redlock.{name}")
        assert (point.value, point.attributes["redlock.template"]) == (1, "invoice:{pk}")


def test_the_gauges_have_the_template(telemetry):
    """What is held, for how long, and who waits; what has none is told as before."""

    def hold_for_a_moment() -> None:
        with redlock.using(wait=60).named("invoice:{pk}", pk=1):
            pass

    def seen(name: str) -> dict[str, float]:
        points = telemetry.points(f"redlock.{name}")
        return {key: each.value for key, each in by_template(points).items()}

    waiting = threading.Thread(target=hold_for_a_moment)
    with (
        redlock("name") as plain,
        redlock.named("invoice:{pk}", pk=1) as first,
        redlock.named("invoice:{pk}", pk=2),
    ):
        assert seen("held") == {"": 1, "invoice:{pk}": 2}
        least = held_for(plain), held_for(first)
        oldest = seen("oldest_hold")
        assert least[0] <= oldest[""] <= held_for(plain)
        assert least[1] <= oldest["invoice:{pk}"] <= held_for(first)
        waiting.start()
        eventually(lambda: seen("waiting") == {"": 0, "invoice:{pk}": 1})
    waiting.join()
    assert seen("held") == seen("waiting") == {"": 0}


def test_a_message_of_a_task_has_the_template(telemetry):
    """The key of its task."""
    skipped = TaskEvent(TaskOutcome.SKIPPED, "default", "account:7", "reports.sync", "an-id")
    assert events.wanted_of_tasks(skipped.outcome)
    events.tell_of_task(skipped._replace(template="account:{account}"))
    (point,) = telemetry.points("redlock.task.messages")
    assert point.attributes["redlock.template"] == "account:{account}"


# -- spans ----------------------------------------------------------------------------------------


def test_a_span_is_made_of_waiting(telemetry):
    """The span ends when the lock is had, has begun when it was asked for, and says what it got."""
    first = release_under_a_waiter(redlock("name", renew=False).acquire(), 0.1)
    with telemetry.tracers.get_tracer("test").start_as_current_span("caller"):
        second = redlock("name").acquire(wait=20)
        second.release()
    first.join()
    _, span, caller = telemetry.spans()
    assert (span.name, caller.name) == ("redlock.acquire", "caller")
    assert span.parent is not None
    assert caller.context is not None
    assert span.parent.span_id == caller.context.span_id
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0.1e9 <= span.end_time - span.start_time < 20e9
    facts = dict(span.attributes or {})
    votes = [facts.pop(f"redlock.votes.{answer}") for answer in ("yes", "no", "unknown")]
    assert votes[0] >= 3
    assert sum(votes) == 5
    assert facts == {
        "redlock.alias": "default",
        "redlock.names": ("name",),
        "redlock.outcome": "acquired",
        "redlock.fence": second.fence,
    }


# -- without ------------------------------------------------------------------------------------


def listening() -> tuple[bool, bool]:
    """Whether somebody is told of locks, and of nodes."""
    return bool(events._listeners[events.EventKind.ACQUIRED]), bool(events.node_watchers)


@contextmanager
def sdk_for(*kinds: str) -> Iterator[Telemetry]:
    """An SDK that the process is set up with, for a while."""
    sdk = Telemetry()
    providers = {
        "metrics": ("get_meter_provider", sdk.meters),
        "trace": ("get_tracer_provider", sdk.tracers),
    }
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            name, provider = providers[kind]
            patch.setattr(f"opentelemetry.{kind}.{name}", lambda provider=provider: provider)
        try:
            yield sdk
        finally:
            otel.uninstrument()
            sdk.meters.shutdown()
    otel.instrument()


@pytest.mark.parametrize("kinds", [("metrics",), ("trace",), ("trace", "metrics")])
def test_nobody_listens_until_there_is_an_sdk(kinds):
    """With the API alone an event is not even made; an SDK that comes later says so itself."""
    otel.instrument()
    with redlock("name"):
        assert listening() == (False, False)
    with sdk_for(*kinds):
        otel.instrument()
        assert listening() == (True, "metrics" in kinds)
        otel.uninstrument()
        assert listening() == (False, False)


SCRIPT = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
if "without" in sys.argv:
    sys.modules["opentelemetry"] = None
if "sdk" in sys.argv:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    metrics.set_meter_provider(MeterProvider())
import django
django.setup()
from django_redlock import events, redlock
with redlock("name"):
    pass
if "later" in sys.argv:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    reader.collect()
print("django_redlock.otel" in sys.modules, events.wanted(events.EventKind.ACQUIRED))
"""


def said(script: str, *arguments: str) -> str:
    """What a process prints."""
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    return subprocess.check_output(command, text=True)


@pytest.mark.slow
def test_the_app_switches_it_on_where_it_is_installed():
    """With an SDK, Django's start is enough, or its first look; without one, nothing listens."""
    assert said(SCRIPT, "sdk") == "True True\n"
    assert said(SCRIPT, "later") == "True True\n"
    assert said(SCRIPT) == "True False\n"
    assert said(SCRIPT, "without") == "False False\n"


def test_a_span_has_the_slot_of_a_limited_lock(telemetry):
    """A number below the limit; one without a limit has none, and metrics have none."""
    with redlock("openai", limit=2) as lease, redlock("plain"):
        pass
    found = {
        dict(span.attributes or {})["redlock.names"]: dict(span.attributes or {}).get(
            "redlock.slot"
        )
        for span in telemetry.spans()
    }
    assert found == {("openai",): lease.slot, ("plain",): None}
    for name in ("redlock.wait.duration", "redlock.hold.duration"):
        assert all("redlock.slot" not in each.attributes for each in telemetry.points(name))
