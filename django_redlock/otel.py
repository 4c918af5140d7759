"""Metrics and spans by the OpenTelemetry API (``pip install 'django-redlock[otel]'``).

    redlock.wait.duration   seconds from asking for a lock to having it, or not
    redlock.hold.duration   seconds from asking for a lock to the end of the lease
    redlock.refusals        the name was taken
    redlock.unavailable     no majority could be asked
    redlock.losses          a holder lost its lease
    redlock.unknown         a renewal failed: the lease lasts, but only until its deadline
    redlock.node.duration   seconds of one request to one node
    redlock.node.failures   requests to a node that brought no vote
    redlock.task.messages   messages of tasks that were skipped, deferred, duplicates, or copies
    redlock.held            leases that this process holds now
    redlock.waiting         threads and tasks of this process that wait for a name now
    redlock.oldest_hold     seconds since this process asked for the lease that it holds for longest

The name of a lock is no attribute of a metric: there is no end to names. Spans have it. Its
template is one, where there is one, and the name of a task.

A span ``redlock.acquire`` is made when the wait is over, with its beginning in the past. That needs
no hook around the wait, and its parent is the span of the caller, because the event is told in the
caller's thread or task.

The API alone does nothing; an SDK makes it work. So the instruments listen only where there is one:
an event without a listener is not made, and a node that nobody watches is asked faster. An SDK that
is set up later than this module asks the gauges, and from then on the instruments listen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from django_redlock.leases.renewal import watchdog

from . import __version__, events
from .backend import backends
from .events import Event, EventKind, NodeTiming, TaskEvent
from .extras import needs

with needs(__name__, "opentelemetry", "django-redlock[otel]"):
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.trace import Status, StatusCode

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

Locks: TypeAlias = tuple[str, str]  # of an alias and a template
SCOPE: Final = "django_redlock"
FAST: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
SLOW: Final = (*FAST, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
ENTRIES: Final = {
    EventKind.ACQUIRED: "acquired",
    EventKind.REFUSED: "refused",
    EventKind.DONE: "done",
    EventKind.UNAVAILABLE: "unavailable",
}
ENDINGS: Final = {EventKind.RELEASED: "released", EventKind.GIVEN: "given", EventKind.LOST: "lost"}


class Instruments:
    """The metrics and spans of one meter and one tracer."""

    def __init__(
        self, meter_provider: MeterProvider | None, tracer_provider: TracerProvider | None
    ) -> None:
        self._providers = meter_provider, tracer_provider
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        self._wait = _seconds(meter, "redlock.wait.duration", "Asking for a lock", SLOW)
        self._hold = _seconds(meter, "redlock.hold.duration", "Having a lock", SLOW)
        self._node = _seconds(meter, "redlock.node.duration", "A request to a node", FAST)
        self._counters = {
            EventKind.REFUSED: meter.create_counter(
                "redlock.refusals", "{refusal}", "Locks whose name was taken"
            ),
            EventKind.UNAVAILABLE: meter.create_counter(
                "redlock.unavailable", "{attempt}", "Locks that no majority could be asked for"
            ),
            EventKind.LOST: meter.create_counter(
                "redlock.losses", "{loss}", "Leases that were lost while they were held"
            ),
            EventKind.UNKNOWN: meter.create_counter(
                "redlock.unknown", "{lease}", "Leases that last, but could not be renewed"
            ),
        }
        self._failures = meter.create_counter(
            "redlock.node.failures", "{failure}", "Requests to a node that brought no vote"
        )
        self._messages = meter.create_counter(
            "redlock.task.messages", "{message}", "Messages that did not run as they were sent"
        )
        self._gauge(meter, "redlock.held", "{lease}", "Leases that the process holds", _count_held)
        self._gauge(meter, "redlock.waiting", "{waiter}", "Waiters of the process", _count_waiting)
        self._gauge(meter, "redlock.oldest_hold", "s", "The oldest hold of the process", _oldest)

    @property
    def meters(self) -> MeterProvider:
        """The provider of the meter, which may be set later."""
        given = self._providers[0]
        return metrics.get_meter_provider() if given is None else given

    def _gauge(
        self,
        meter: Meter,
        name: str,
        unit: str,
        text: str,
        values: Callable[[], dict[Locks, float]],
    ) -> None:
        """Have an SDK ask for the values by alias and template, whenever it exports them.

        Of two instruments with one name an SDK may ask the first alone: it tells for its successor.
        """

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            live = _instruments
            if live is None or live.meters is not self.meters:
                return []
            live.listen()
            found = values()
            return [Observation(value, which(*each)) for each, value in found.items()]

        meter.create_observable_gauge(name, [observe], unit, text)

    def listen(self) -> None:
        """Subscribe to what an SDK exports; again does no harm."""
        measures, tracers = _works(self.meters), self._providers[1]
        if measures or _works(trace.get_tracer_provider() if tracers is None else tracers):
            events.subscribe(self._on_event, [*ENTRIES, *ENDINGS, EventKind.UNKNOWN])
        if measures:
            events.watch_nodes(self._on_timing)
            events.watch_tasks(self._on_task)

    def stop(self) -> None:
        """Stop listening."""
        events.unsubscribe(self._on_event)
        events.unwatch_nodes(self._on_timing)
        events.unwatch_tasks(self._on_task)

    def _on_event(self, event: Event) -> None:
        locks = which(event.alias, event.template)
        if event.kind in self._counters:
            self._counters[event.kind].add(1, locks)
        if event.kind in ENTRIES:
            self._wait.record(event.seconds, locks | {"redlock.outcome": ENTRIES[event.kind]})
            self._span(event)
        elif event.kind in ENDINGS:
            self._hold.record(event.seconds, locks | {"redlock.outcome": ENDINGS[event.kind]})

    def _span(self, event: Event) -> None:
        now = time.time_ns()
        span = self._tracer.start_span("redlock.acquire", start_time=now - int(event.seconds * 1e9))
        if span.is_recording():
            names = [event.name] if isinstance(event.name, str) else list(event.name)
            span.set_attributes(
                which(event.alias, event.template)
                | {
                    "redlock.names": names,
                    "redlock.outcome": ENTRIES[event.kind],
                    **{f"redlock.votes.{key}": n for key, n in event.votes._asdict().items()},
                }
            )
            if event.fence is not None:
                span.set_attribute("redlock.fence", event.fence)
            if event.lease is not None and event.lease.slot is not None:
                span.set_attribute("redlock.slot", event.lease.slot)
            if event.kind is EventKind.UNAVAILABLE:  # a refusal is a result, and no error
                span.set_attribute("error.type", type(event.error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, getattr(event.error, "reason", None)))
        span.end(now)

    def _on_timing(self, timing: NodeTiming) -> None:
        node = {"redlock.alias": timing.alias, "redlock.node": timing.node}
        if timing.seconds is None:
            self._failures.add(1, node | {"error.type": timing.code or "_OTHER"})
        else:
            self._node.record(timing.seconds, node)

    def _on_task(self, event: TaskEvent) -> None:
        task = {"redlock.task": event.task, "redlock.outcome": event.outcome.value}
        self._messages.add(1, which(event.alias, event.template) | task)


def which(alias: str, template: str) -> dict[str, str]:
    """Return the attributes of the locks of an alias, and of a template where there is one."""
    if not template:
        return {"redlock.alias": alias}
    return {"redlock.alias": alias, "redlock.template": template}


def _seconds(meter: Meter, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
    advice = {"explicit_bucket_boundaries_advisory": bounds}
    try:
        return meter.create_histogram(name, "s", text, **advice)
    except TypeError:  # an API from before 1.30 must not keep Django from starting
        return meter.create_histogram(name, "s", text)


def _count_held() -> dict[Locks, float]:
    """Return the leases; what has no template is told of each alias, also if it is none."""
    counts = Counter((lease.backend.alias, lease.template) for lease in watchdog.held())
    return {locks: counts[locks] for locks in {*((alias, "") for alias in backends), *counts}}


def _count_waiting() -> dict[Locks, float]:
    found: dict[Locks, float] = {}
    for alias, backend in backends.copy().items():
        found[alias, ""] = 0
        found |= {(alias, template): n for template, n in backend.group.waiting().items()}
    return found


def _oldest() -> dict[Locks, float]:
    """Return the seconds; locks of which none is held have none."""
    found: dict[Locks, float] = {}
    for lease in watchdog.held():
        locks = lease.backend.alias, lease.template
        held_for = lease.backend.policy.clock() - lease.grant.since
        found[locks] = max(held_for, found.get(locks, 0.0))
    return found


def _works(provider: MeterProvider | TracerProvider) -> bool:
    """Return True if the provider is an SDK's: the API's own providers discard everything."""
    return not type(provider).__module__.startswith(
        ("opentelemetry.metrics", "opentelemetry.trace")
    )


_instruments: Instruments | None = None


def instrument(
    meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> None:
    """Measure locks from now on; the app calls it when Django starts.

    Call it again where the process's own tracer provider is set later, as in a hook of a worker.

    Args:
        meter_provider, tracer_provider: those of OpenTelemetry. None: the process's own.
    """
    global _instruments  # noqa: PLW0603 - the state of this module
    uninstrument()
    _instruments = Instruments(meter_provider, tracer_provider)
    _instruments.listen()


def uninstrument() -> None:
    """Stop measuring."""
    global _instruments
    stopped, _instruments = _instruments, None  # the gauges tell no more from here on
    if stopped is not None:
        stopped.stop()
