"""Tell what happens to locks: plain hooks, and a line of log for each event.

    subscribe(listener)    ``listener(event)`` for everything that happens to a lock
    watch_nodes(watcher)   ``watcher(timing)`` for every reply of a node, or the lack of one
    watch_tasks(watcher)   ``watcher(event)`` for every message of a task that does not run as sent
    before_event(arrival)  ``arrival()`` before a lock tells an event: it may subscribe listeners

The signals, the metrics and the log are such listeners. An event without a listener is never made:
its source asks ``wanted`` first.

Listeners run where the event happens: in the thread or task that holds the lock, or in the
watchdog. An ``Exception`` of a listener is logged and goes no further: it must neither cost a
holder the lock nor end the watchdog. Ctrl-C, an exit and a cancellation do go further: they are
meant for the program. (A time limit whose signal handler raises an ``Exception`` looks like the
listener's own error while a listener runs. Listeners should be quick for this reason, too.)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

from .concurrency.forking import call_in_child
from .core.errors import why_not
from .event_types import Event, EventKind, EventLease, NodeTiming, TaskEvent, TaskOutcome, VoteCount

__all__ = [
    "LEVELS",
    "Event",
    "EventKind",
    "EventLease",
    "NodeTiming",
    "TaskEvent",
    "TaskOutcome",
    "VoteCount",
    "before_event",
    "expect_no_more",
    "log_fields",
    "node_watchers",
    "subscribe",
    "tell",
    "tell_of_node",
    "tell_of_task",
    "unsubscribe",
    "unwatch_nodes",
    "unwatch_tasks",
    "wanted",
    "wanted_of_tasks",
    "watch_nodes",
    "watch_tasks",
]

logger: Final = logging.getLogger("django_redlock")

LEVELS: Final = {
    EventKind.ACQUIRED: logging.DEBUG,
    EventKind.REFUSED: logging.INFO,
    EventKind.UNAVAILABLE: logging.WARNING,
    EventKind.EXTENDED: logging.DEBUG,
    EventKind.UNKNOWN: logging.WARNING,
    EventKind.RELEASED: logging.DEBUG,
    EventKind.GIVEN: logging.DEBUG,
    EventKind.LOST: logging.WARNING,
}

T = TypeVar("T")
Listener: TypeAlias = Callable[[Event], object]
Watcher: TypeAlias = Callable[[NodeTiming], object]
TaskWatcher: TypeAlias = Callable[[TaskEvent], object]
Arrival: TypeAlias = Callable[[], object]

# Tuples that are replaced, never changed: a call that is telling listeners tells them all.
_listeners: dict[EventKind, tuple[Listener, ...]] = dict.fromkeys(EventKind, ())
node_watchers: tuple[Watcher, ...] = ()
_task_watchers: dict[TaskOutcome, tuple[TaskWatcher, ...]] = dict.fromkeys(TaskOutcome, ())
_arrivals: tuple[Arrival, ...] = ()
_changing = threading.RLock()


# -- listening ----------------------------------------------------------------------------------


def subscribe(listener: Listener, kinds: Iterable[EventKind] = tuple(EventKind)) -> None:
    """Call ``listener`` with every event of these kinds; subscribing twice is subscribing once."""
    with _changing:
        for kind in kinds:
            _listeners[kind] = _with(_listeners[kind], listener)


def unsubscribe(listener: Listener, kinds: Iterable[EventKind] = tuple(EventKind)) -> None:
    """Call ``listener`` no more."""
    with _changing:
        for kind in kinds:
            _listeners[kind] = _without(_listeners[kind], listener)


def watch_nodes(watcher: Watcher) -> None:
    """Call ``watcher`` with a ``NodeTiming`` for every request that a node is sent."""
    global node_watchers  # noqa: PLW0603 - the state of this module
    with _changing:
        node_watchers = _with(node_watchers, watcher)


def unwatch_nodes(watcher: Watcher) -> None:
    """Call ``watcher`` no more."""
    global node_watchers  # noqa: PLW0603 - the state of this module
    with _changing:
        node_watchers = _without(node_watchers, watcher)


def watch_tasks(watcher: TaskWatcher, outcomes: Iterable[TaskOutcome] = tuple(TaskOutcome)) -> None:
    """Call ``watcher`` with a ``TaskEvent`` for every message of which this becomes."""
    with _changing:
        for outcome in outcomes:
            _task_watchers[outcome] = _with(_task_watchers[outcome], watcher)


def unwatch_tasks(
    watcher: TaskWatcher, outcomes: Iterable[TaskOutcome] = tuple(TaskOutcome)
) -> None:
    """Call ``watcher`` no more."""
    with _changing:
        for outcome in outcomes:
            _task_watchers[outcome] = _without(_task_watchers[outcome], watcher)


def before_event(arrival: Arrival) -> None:
    """Call ``arrival`` before a lock looks for listeners: it may subscribe. It must be quick."""
    global _arrivals  # noqa: PLW0603 - the state of this module
    with _changing:
        _arrivals = _with(_arrivals, arrival)


def expect_no_more(arrival: Arrival) -> None:
    """Call ``arrival`` no more."""
    global _arrivals  # noqa: PLW0603 - the state of this module
    with _changing:
        _arrivals = _without(_arrivals, arrival)


def _with(all_: tuple[T, ...], one: T) -> tuple[T, ...]:
    return all_ if one in all_ else (*all_, one)


def _without(all_: tuple[T, ...], one: T) -> tuple[T, ...]:
    return tuple(each for each in all_ if each != one)


def _after_fork() -> None:
    global _changing  # noqa: PLW0603 - the state of this module
    _changing = threading.RLock()


call_in_child(_after_fork)


# -- telling ------------------------------------------------------------------------------------


def wanted(kind: EventKind) -> bool:
    """Return True if an event of this kind has a listener, or is logged."""
    for arrival in _arrivals:
        _arrive(arrival)
    return bool(_listeners[kind]) or logger.isEnabledFor(LEVELS[kind])


def wanted_of_tasks(outcome: TaskOutcome) -> bool:
    """Return True if this outcome of a message has a watcher."""
    for arrival in _arrivals:
        _arrive(arrival)
    return bool(_task_watchers[outcome])


def _arrive(arrival: Arrival) -> None:
    try:
        arrival()
    except Exception:  # theirs; see the module's docstring
        logger.exception("a listener failed: %r", arrival)


def tell(event: Event, *, quiet: bool = False) -> None:
    """Log the event, unless ``quiet``, and call its listeners with it."""
    for listener in _listeners[event.kind] if quiet else (_log, *_listeners[event.kind]):
        _call(listener, event)


def tell_of_node(timing: NodeTiming) -> None:
    """Call every watcher with the timing of a request."""
    for watcher in node_watchers:
        _call(watcher, timing)


def tell_of_task(event: TaskEvent) -> None:
    """Call the watchers of this outcome with the event."""
    for watcher in _task_watchers[event.outcome]:
        _call(watcher, event)


def _call(listener: Callable[[Any], object], told: Event | NodeTiming | TaskEvent) -> None:
    try:
        listener(told)
    except Exception:  # theirs; see the module's docstring
        logger.exception("a listener failed: %r", listener)


# -- the log ------------------------------------------------------------------------------------


def log_fields(alias: str, name: str | tuple[str, ...], **facts: object) -> dict[str, object]:
    """Return the extra fields of a log record, as all records of this logger have them."""
    told: dict[str, object] = {"alias": alias, "name": name, **facts}
    return {f"redlock_{key}": value for key, value in told.items()}


def _log(event: Event) -> None:
    level = LEVELS[event.kind]
    if not logger.isEnabledFor(level):
        return
    fence = "" if event.fence is None else f" fence={event.fence}"
    # With %r, for a node's text about a holder may have line breaks in it.
    why = ""
    if event.error is not None:
        why = f" why={'; '.join([event.error.reason, *why_not(event.error.votes)])!r}"
    logger.log(
        level,
        "lock %s: alias=%r name=%r%s seconds=%.6f votes=%d/%d/%d%s",
        event.kind.value,
        event.alias,
        event.name,
        fence,
        event.seconds,
        *event.votes,
        why,
        extra=log_fields(
            event.alias,
            event.name,
            event=event.kind.value,
            fence=event.fence,
            seconds=event.seconds,
            votes=event.votes._asdict(),
            code="" if event.error is None else event.error.code,
        ),
    )
