"""What happens to locks, nodes and tasks, and who listens: hooks, and a line of log for each event.

    subscribe(listener)    ``listener(event)`` for everything that happens to a lock
    watch_nodes(watcher)   ``watcher(timing)`` for every reply of a node, or the lack of one
    watch_tasks(watcher)   ``watcher(event)`` for every message of a task that does not run as sent

The signals, the metrics and the log are such listeners. An event without a listener is never made:
its source asks ``wanted`` first.

Listeners are plain functions, which run where the event happens: in the thread or task that holds
the lock, or in the watchdog. A loss that the watchdog finds is told in a thread of its own. An
``Exception`` of a listener is logged and goes no further: it must neither cost a holder the lock
nor end the watchdog. Ctrl-C, an exit and a cancellation do go further: they are meant for the
program. (A time limit whose signal handler raises an ``Exception`` looks like the listener's own
error while a listener runs. Listeners should be quick for this reason, too.)
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from .core.errors import RedlockError, why_not
from .core.protocol import Answer, Vote
from .core.reasons import Reason, code_of, describe
from .interruption import aloud

logger: Final = logging.getLogger("django_redlock")


# -- what is told -------------------------------------------------------------------------------


class EventKind(enum.StrEnum):
    """The kinds of events of a lock."""

    ACQUIRED = "acquired"
    REFUSED = "refused"  # the name is taken, or a handle was adopted too late
    DONE = "done"  # to ``once``: its work was done before, so there is nothing to do
    UNAVAILABLE = "unavailable"  # no majority could be asked: it is unknown
    EXTENDED = "extended"
    UNKNOWN = "not renewed"  # it lasts until its deadline; told once, until a renewal succeeds
    RELEASED = "released"
    GIVEN = "given away"
    LOST = "lost"


class VoteCount(NamedTuple):
    """The votes of an event, counted.

    Attributes:
        yes, no: the number of nodes that voted so.
        unknown: the number of votes that are unknown, also since a majority made it needless to
            wait.
    """

    yes: int
    no: int
    unknown: int

    @classmethod
    def of(cls, votes: Sequence[Vote]) -> VoteCount:
        """Count votes."""
        answers = [vote.answer for vote in votes]
        return cls(*map(answers.count, (Answer.YES, Answer.NO, Answer.UNKNOWN)))


class EventLease(Protocol):
    """The lease of an event: the part of a ``Lease`` that listeners may use."""

    name: str | tuple[str, ...]
    fence: int

    @property
    def slot(self) -> int | None:
        """Which of the slots of a limited lock it is, from 0; None if the lock has no limit."""

    @property
    def limit(self) -> int | None:
        """How many may hold the lock at a time; None: it has no limit."""

    @property
    def lost(self) -> bool:
        """Whether it is lost."""

    def remaining(self) -> float:
        """Return the seconds until its deadline."""


class Event(NamedTuple):
    """Something that happened to a lock; it contains no secret.

    Attributes:
        kind: the kind of event.
        alias: the alias of the nodes.
        name: the lock's name, or a tuple of names.
        seconds: for which the caller waited for the lock; from EXTENDED on, for which the lease
            has been held.
        fence: the fencing token, an integer; None without a lease.
        votes: the counted votes on the request that decided.
        lease: the lease; None if there is none.
        error: the reason why there is no lease, or no longer; None if nothing went wrong.
        template: the template of the name, as in ``"invoice:{pk}"``; "" where there is none.
            Several are one text, with commas.
    """

    kind: EventKind
    alias: str
    name: str | tuple[str, ...]
    seconds: float
    fence: int | None = None
    votes: VoteCount = VoteCount(0, 0, 0)
    lease: EventLease | None = None
    error: RedlockError | None = None
    template: str = ""


class NodeTiming(NamedTuple):
    """How long a node took for one request.

    Attributes:
        alias: the alias of the node.
        node: the node, as ``host:port/db``.
        seconds: the seconds from sending the request to reading the reply; None: there is no vote.
        reason: the reason why there is none.
    """

    alias: str
    node: str
    seconds: float | None
    reason: Reason | None = None

    @property
    def code(self) -> str:
        """The reason's code, for programs; "" without one."""
        return code_of(self.reason)

    @property
    def why(self) -> str:
        """The reason as a sentence, for people; "" without one."""
        return describe(self.reason)


class TaskOutcome(enum.StrEnum):
    """What became of a task's message that did not run as it was sent."""

    SKIPPED = "skipped"  # the key is held: the message ends as a success, without a run
    DEFERRED = "deferred"  # it was sent again and comes back later
    DUPLICATE = "duplicate"  # not sent: another message for the key waits or runs
    FINISHED_BEFORE = "finished_before"  # a copy of a message that has finished does not run


class TaskEvent(NamedTuple):
    """What became of a message; it contains no secret, and no argument beside those in the name.

    Attributes:
        outcome: the outcome.
        alias: the alias of the nodes.
        name: the lock's name, or a tuple of names.
        task: the name of the task.
        task_id: the message's task id; "" for a call without a message.
        other_id: the task id of the message that waits or runs, of a duplicate; else "".
        seconds: the seconds until a deferred message comes back; else 0.
        error: the ``LockTaken`` or ``NodesUnavailable`` by which the message is skipped or
            deferred; else None.
        template: the key of the task, from which the name was made.
    """

    outcome: TaskOutcome
    alias: str
    name: str | tuple[str, ...]
    task: str
    task_id: str
    other_id: str = ""
    seconds: float = 0.0
    error: RedlockError | None = None
    template: str = ""


LEVELS: Final = {
    EventKind.ACQUIRED: logging.DEBUG,
    EventKind.REFUSED: logging.INFO,
    EventKind.DONE: logging.DEBUG,
    EventKind.UNAVAILABLE: logging.WARNING,
    EventKind.EXTENDED: logging.DEBUG,
    EventKind.UNKNOWN: logging.WARNING,
    EventKind.RELEASED: logging.DEBUG,
    EventKind.GIVEN: logging.DEBUG,
    EventKind.LOST: logging.WARNING,
}

# -- listening ----------------------------------------------------------------------------------

Listener: TypeAlias = Callable[[Event], object]
Watcher: TypeAlias = Callable[[NodeTiming], object]
TaskWatcher: TypeAlias = Callable[[TaskEvent], object]

# Dictionaries without values: a listener is added, or removed, in one step, which needs no lock. An
# event is told to a tuple of them, made in one step as well.
_listeners: Final[dict[EventKind | TaskOutcome, dict[Callable[[Any], object], None]]] = {
    kind: {} for kind in (*EventKind, *TaskOutcome)
}
node_watchers: Final[dict[Watcher, None]] = {}


def subscribe(
    listener: Listener, kinds: Iterable[EventKind | TaskOutcome] = tuple(EventKind)
) -> None:
    """Call ``listener`` with every event of these kinds; subscribing twice is subscribing once."""
    for kind in kinds:
        _listeners[kind].setdefault(listener)


def unsubscribe(
    listener: Listener, kinds: Iterable[EventKind | TaskOutcome] = tuple(EventKind)
) -> None:
    """Call ``listener`` no more."""
    for kind in kinds:
        _listeners[kind].pop(listener, None)


def watch_nodes(watcher: Watcher) -> None:
    """Call ``watcher`` with a ``NodeTiming`` for every request that a node is sent."""
    node_watchers.setdefault(watcher)


def unwatch_nodes(watcher: Watcher) -> None:
    """Call ``watcher`` no more."""
    node_watchers.pop(watcher, None)


def watch_tasks(watcher: TaskWatcher, outcomes: Iterable[TaskOutcome] = tuple(TaskOutcome)) -> None:
    """Call ``watcher`` with a ``TaskEvent`` for every message of which this becomes."""
    for outcome in outcomes:
        _listeners[outcome].setdefault(watcher)


def unwatch_tasks(
    watcher: TaskWatcher, outcomes: Iterable[TaskOutcome] = tuple(TaskOutcome)
) -> None:
    """Call ``watcher`` no more."""
    for outcome in outcomes:
        _listeners[outcome].pop(watcher, None)


# -- telling ------------------------------------------------------------------------------------


def wanted(kind: EventKind) -> bool:
    """Return True if an event of this kind has a listener, or is logged."""
    return bool(_listeners[kind]) or logger.isEnabledFor(LEVELS[kind])


def wanted_of_tasks(outcome: TaskOutcome) -> bool:
    """Return True if this outcome of a message has a watcher."""
    return bool(_listeners[outcome])


def tell(event: Event, *, quiet: bool = False) -> None:
    """Log the event, unless ``quiet``, and call its listeners with it."""
    listeners = tuple(_listeners[event.kind])
    for listener in listeners if quiet else (_log, *listeners):
        _call(listener, event)


def tell_of_node(timing: NodeTiming) -> None:
    """Call every watcher with the timing of a request."""
    for watcher in tuple(node_watchers):
        aloud(_call, watcher, timing)  # in the middle of a request


def tell_of_task(event: TaskEvent) -> None:
    """Call the watchers of this outcome with the event."""
    for watcher in tuple(_listeners[event.outcome]):
        _call(watcher, event)


def _call(listener: Callable[[Any], object], event: Event | NodeTiming | TaskEvent) -> None:
    try:
        listener(event)
    except Exception:  # theirs; see the module's docstring
        logger.exception("a listener failed: %r", listener)


# -- the log ------------------------------------------------------------------------------------


def log_fields(alias: str, name: str | tuple[str, ...], **facts: object) -> dict[str, object]:
    """Return the extra fields of a log record, as all records of this logger have them."""
    fields: dict[str, object] = {"alias": alias, "name": name, **facts}
    return {f"redlock_{key}": value for key, value in fields.items()}


def _log(event: Event) -> None:
    level = LEVELS[event.kind]
    if not logger.isEnabledFor(level):
        return
    fence = "" if event.fence is None else f" fence={event.fence}"
    slot, limit = (event.lease.slot, event.lease.limit) if event.lease else (None, None)
    if slot is not None:
        fence = f" slot={slot} of {limit}{fence}"
    # With %r, for a node's text about a holder may have line breaks in it.
    why = ""
    if event.error is not None and event.kind is not EventKind.DONE:
        reason, said = event.error.reason, why_not(event.error.votes)
        why = f" why={'; '.join([reason, *(each for each in said if reason not in each)])!r}"
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
            template=event.template,
            slot=slot,
            limit=limit,
            fence=event.fence,
            seconds=event.seconds,
            votes=event.votes._asdict(),
            code="" if event.error is None else event.error.code,
        ),
    )
