"""Metrics and spans by the OpenTelemetry API (``pip install 'django-redlock[otel]'``).

    redlock.wait.duration   seconds from asking for a lock to having it, or not
    redlock.hold.duration   seconds from asking to the end of the lease
    redlock.refusals        somebody else had the name
    redlock.unavailable     no majority could be asked
    redlock.losses          a holder lost its lease
    redlock.node.duration   seconds of one question to one node
    redlock.node.failures   questions that a node gave no vote on

The name of a lock is no attribute of a metric: there is no end to names. Spans have it.

A span ``redlock.acquire`` is made when its end is known, with the beginning in the past. That
needs no hook around the waiting, and its parent is the span of the caller all the same, because
the event is told in the caller's thread or task.

The API alone does nothing; an SDK makes it work, and may be set up after us. The figures of the
nodes are many, so they are asked for when the first lock meets an SDK, and not before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics, trace
from opentelemetry.trace import Status, StatusCode

from . import __version__, events
from .events import Event, Figure, Kind

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter, MeterProvider
    from opentelemetry.trace import TracerProvider

SCOPE: Final = "django_redlock"
FAST: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
SLOW: Final = (*FAST, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
ENTRIES: Final = {
    Kind.ACQUIRED: "acquired",
    Kind.REFUSED: "refused",
    Kind.UNAVAILABLE: "unavailable",
}
ENDINGS: Final = {Kind.RELEASED: "released", Kind.GIVEN: "given", Kind.LOST: "lost"}


class Instruments:
    """What measures, on one meter and one tracer."""

    def __init__(
        self, meter_provider: MeterProvider | None, tracer_provider: TracerProvider | None
    ) -> None:
        self._meter_provider = meter_provider
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        self._wait = _seconds(meter, "redlock.wait.duration", "Asking for a lock", SLOW)
        self._hold = _seconds(meter, "redlock.hold.duration", "Having a lock", SLOW)
        self._node = _seconds(meter, "redlock.node.duration", "A question to a node", FAST)
        self._counters = {
            Kind.REFUSED: meter.create_counter(
                "redlock.refusals", "{refusal}", "Locks that somebody else had"
            ),
            Kind.UNAVAILABLE: meter.create_counter(
                "redlock.unavailable", "{attempt}", "Locks that no majority could be asked for"
            ),
            Kind.LOST: meter.create_counter(
                "redlock.losses", "{loss}", "Leases that were lost while they were held"
            ),
        }
        self._failures = meter.create_counter(
            "redlock.node.failures", "{failure}", "Questions that a node gave no vote on"
        )
        self._watching = False

    def start(self) -> None:
        """Begin to listen."""
        events.subscribe(self._on_event, [*ENTRIES, *ENDINGS])
        self._watch_nodes()

    def stop(self) -> None:
        """Listen no more."""
        events.unsubscribe(self._on_event)
        events.unwatch_nodes(self._on_figure)

    def _watch_nodes(self) -> None:
        if not self._watching and _works(self._meter_provider):
            self._watching = True
            events.watch_nodes(self._on_figure)

    def _on_event(self, event: Event) -> None:
        if not self._watching:
            self._watch_nodes()
        if event.kind in self._counters:
            self._counters[event.kind].add(1, {"redlock.alias": event.alias})
        if event.kind in ENTRIES:
            outcome = {"redlock.alias": event.alias, "redlock.outcome": ENTRIES[event.kind]}
            self._wait.record(event.seconds, outcome)
            self._span(event)
        else:
            outcome = {"redlock.alias": event.alias, "redlock.outcome": ENDINGS[event.kind]}
            self._hold.record(event.seconds, outcome)

    def _span(self, event: Event) -> None:
        now = time.time_ns()
        span = self._tracer.start_span("redlock.acquire", start_time=now - int(event.seconds * 1e9))
        if span.is_recording():
            names = [event.name] if isinstance(event.name, str) else list(event.name)
            span.set_attributes(
                {
                    "redlock.alias": event.alias,
                    "redlock.names": names,
                    "redlock.outcome": ENTRIES[event.kind],
                    **{f"redlock.votes.{key}": n for key, n in event.votes._asdict().items()},
                }
            )
            if event.fence is not None:
                span.set_attribute("redlock.fence", event.fence)
            if event.kind is Kind.UNAVAILABLE:  # a refusal is an answer, and no error
                span.set_attribute("error.type", type(event.error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, getattr(event.error, "reason", None)))
        span.end(now)

    def _on_figure(self, figure: Figure) -> None:
        which = {"redlock.alias": figure.alias, "redlock.node": figure.node}
        if figure.seconds is None:
            self._failures.add(1, which)
        else:
            self._node.record(figure.seconds, which)


def _seconds(meter: Meter, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
    advice = {"explicit_bucket_boundaries_advisory": bounds}
    try:
        return meter.create_histogram(name, "s", text, **advice)
    except TypeError:  # somebody else's API, from before 1.30: must not keep Django from starting
        return meter.create_histogram(name, "s", text)


def _works(provider: MeterProvider | None) -> bool:
    """Whether anybody gets what is measured: the API's own providers throw it away."""
    provider = metrics.get_meter_provider() if provider is None else provider
    return not type(provider).__module__.startswith("opentelemetry.metrics")


_instruments: Instruments | None = None


def instrument(
    meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> None:
    """Measure locks from now on; the app does it when Django starts.

    Args:
        meter_provider, tracer_provider: None: those that the process is set up with, now or
            later.
    """
    global _instruments  # noqa: PLW0603 - the state of this module
    uninstrument()
    _instruments = Instruments(meter_provider, tracer_provider)
    _instruments.start()


def uninstrument() -> None:
    """Measure nothing any more."""
    global _instruments  # noqa: PLW0603 - the state of this module
    if _instruments is not None:
        _instruments.stop()
        _instruments = None
