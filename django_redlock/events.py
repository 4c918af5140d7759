"""What happens to locks, told to whoever listens: plain hooks, and one line of log an event.

    subscribe(listener)    ``listener(event)`` for everything that happens to a lock
    watch_nodes(watcher)   ``watcher(figure)`` for every answer of a node, or the lack of one
    expect(arrival)        ``arrival()`` before a lock tells anybody, to subscribe when it is time

The signals, the metrics and the log are such listeners. An event that nobody is told of is never
made: those who could tell ask ``wanted`` first.

Listeners run where the event happens: in the thread or task that holds the lock, or in the
watchdog. What a listener raises is logged and goes no further: it must neither cost a holder the
lock nor end the watchdog. Only an ``Exception``, though: Ctrl-C, an exit and a cancellation are
meant for the program. (A time limit whose signal handler raises an ``Exception`` looks like the
listener's own error while a listener runs. Listeners should be quick for this reason, too.)
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from .concurrency.forking import call_in_child
from .core.errors import RedlockError, why_not
from .core.protocol import Answer, Vote

logger: Final = logging.getLogger("django_redlock")


class EventKind(enum.StrEnum):
    """What can happen to a lock."""

    ACQUIRED = "acquired"
    REFUSED = "refused"  # somebody has it, or a handle was adopted too late
    UNAVAILABLE = "unavailable"  # no majority could be asked: nobody knows
    EXTENDED = "extended"
    UNKNOWN = "not renewed"  # it stands until its deadline; told once, until a renewal succeeds
    RELEASED = "released"
    GIVEN = "given away"
    LOST = "lost"


Kind = EventKind  # their names in earlier versions


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


class VoteCount(NamedTuple):
    """Votes, counted. Nodes that a majority made it needless to wait for count as lost."""

    yes: int
    no: int
    lost: int

    @classmethod
    def of(cls, votes: Sequence[Vote]) -> VoteCount:
        """Count votes."""
        answers = [vote.answer for vote in votes]
        return cls(*(answers.count(answer) for answer in (Answer.YES, Answer.NO, Answer.UNKNOWN)))


class EventLease(Protocol):
    """The lease of an event: a ``Lease``, of which listeners may use this."""

    name: str | tuple[str, ...]
    fence: int

    @property
    def lost(self) -> bool:
        """Whether it is lost."""

    def remaining(self) -> float:
        """Seconds until its deadline."""


class Event(NamedTuple):
    """Something that happened to a lock. Holds nothing that must stay secret.

    Attributes:
        kind: what.
        alias: of the nodes.
        name: the lock's name, or a tuple of names.
        seconds: for which it was waited; from EXTENDED on, for which it has been held.
        fence: the fencing token; None where there is no lease.
        votes: what the nodes said to the question that decided.
        lease: the lease; None where there is none.
        error: why not, or why no longer; None where nothing went wrong.
    """

    kind: EventKind
    alias: str
    name: str | tuple[str, ...]
    seconds: float
    fence: int | None = None
    votes: VoteCount = VoteCount(0, 0, 0)
    lease: EventLease | None = None
    error: RedlockError | None = None


class NodeTiming(NamedTuple):
    """How a node served one question.

    Attributes:
        alias, node: which node; ``node`` is ``host:port/db``.
        seconds: from sending the question to reading the answer; None when it gave no vote.
        why: why it gave none, or "".
    """

    alias: str
    node: str
    seconds: float | None
    why: str = ""


Tally, Figure = VoteCount, NodeTiming  # as above

T = TypeVar("T")
Listener: TypeAlias = Callable[[Event], object]
Watcher: TypeAlias = Callable[[NodeTiming], object]
Arrival: TypeAlias = Callable[[], object]

# Tuples that are replaced, never changed: whoever is being told is told to the end.
_listeners: dict[EventKind, tuple[Listener, ...]] = dict.fromkeys(EventKind, ())
_watchers: tuple[Watcher, ...] = ()
_arrivals: tuple[Arrival, ...] = ()
_changing = threading.RLock()


# -- listening ----------------------------------------------------------------------------------


def subscribe(listener: Listener, kinds: Iterable[EventKind] = tuple(EventKind)) -> None:
    """Call ``listener`` with every event of these kinds; once, however often it is subscribed."""
    with _changing:
        for kind in kinds:
            _listeners[kind] = _with(_listeners[kind], listener)


def unsubscribe(listener: Listener, kinds: Iterable[EventKind] = tuple(EventKind)) -> None:
    """Call it no more."""
    with _changing:
        for kind in kinds:
            _listeners[kind] = _without(_listeners[kind], listener)


def watch_nodes(watcher: Watcher) -> None:
    """Call ``watcher`` with a figure for every question put to a node."""
    global _watchers  # noqa: PLW0603 - the state of this module
    with _changing:
        _watchers = _with(_watchers, watcher)


def unwatch_nodes(watcher: Watcher) -> None:
    """Call it no more."""
    global _watchers  # noqa: PLW0603 - the state of this module
    with _changing:
        _watchers = _without(_watchers, watcher)


def before_event(arrival: Arrival) -> None:
    """Call ``arrival`` whenever a lock asks who listens: it may subscribe. It must be quick."""
    global _arrivals  # noqa: PLW0603 - the state of this module
    with _changing:
        _arrivals = _with(_arrivals, arrival)


def expect_no_more(arrival: Arrival) -> None:
    """Call it no more."""
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
    """Whether anybody is to be told; only then is an event worth making."""
    for arrival in _arrivals:
        try:
            arrival()
        except Exception:  # theirs; see the module's docstring
            logger.exception("a listener failed: %r", arrival)
    return bool(_listeners[kind]) or logger.isEnabledFor(LEVELS[kind])


def nodes_watched() -> bool:
    """Whether anybody wants figures of nodes."""
    return bool(_watchers)


def tell(event: Event, *, quiet: bool = False) -> None:
    """Tell the log, unless this is to be ``quiet``, and every listener."""
    for listener in _listeners[event.kind] if quiet else (_log, *_listeners[event.kind]):
        _call(listener, event)


def tell_of_node(figure: NodeTiming) -> None:
    """Tell every watcher."""
    for watcher in _watchers:
        _call(watcher, figure)


def _call(listener: Callable[[Any], object], told: Event | NodeTiming) -> None:
    try:
        listener(told)
    except Exception:  # theirs; see the module's docstring
        logger.exception("a listener failed: %r", listener)


# -- the log ------------------------------------------------------------------------------------


def log_fields(alias: str, name: str | tuple[str, ...], **facts: object) -> dict[str, object]:
    """The fields of a log record, as all records of this logger have them."""
    told: dict[str, object] = {"alias": alias, "name": name, **facts}
    return {f"redlock_{key}": value for key, value in told.items()}


def _log(event: Event) -> None:
    level = LEVELS[event.kind]
    if not logger.isEnabledFor(level):
        return
    fence = "" if event.fence is None else f" fence={event.fence}"
    # With %r, for what a node says of a holder may have line breaks in it.
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
        ),
    )
