"""What listeners are told: kinds of events, and what happened to a lock, a node or a task."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .core.errors import RedlockError
from .core.protocol import Answer, Vote
from .core.reasons import Reason, code_of, describe


class EventKind(enum.StrEnum):
    """The kinds of events of a lock."""

    ACQUIRED = "acquired"
    REFUSED = "refused"  # the name is taken, or a handle was adopted too late
    UNAVAILABLE = "unavailable"  # no majority could be asked: it is unknown
    EXTENDED = "extended"
    UNKNOWN = "not renewed"  # it lasts until its deadline; told once, until a renewal succeeds
    RELEASED = "released"
    GIVEN = "given away"
    LOST = "lost"


class VoteCount(NamedTuple):
    """The votes of an event, counted.

    Attributes:
        yes, no: how many nodes voted so.
        unknown: how many votes are unknown, also since a majority made it needless to wait.
    """

    yes: int
    no: int
    unknown: int

    @classmethod
    def of(cls, votes: Sequence[Vote]) -> VoteCount:
        """Count votes."""
        answers = [vote.answer for vote in votes]
        return cls(*(answers.count(answer) for answer in (Answer.YES, Answer.NO, Answer.UNKNOWN)))


class EventLease(Protocol):
    """The lease of an event: the part of a ``Lease`` that listeners may use."""

    name: str | tuple[str, ...]
    fence: int

    @property
    def lost(self) -> bool:
        """Whether it is lost."""

    def remaining(self) -> float:
        """Return the seconds until its deadline."""


class Event(NamedTuple):
    """Something that happened to a lock; it contains no secret.

    Attributes:
        kind: what happened.
        alias: the alias of the nodes.
        name: the lock's name, or a tuple of names.
        seconds: how long the caller waited for the lock; from EXTENDED on, how long it has been
            held.
        fence: the fencing token, an integer; None without a lease.
        votes: the counted votes on the request that decided.
        lease: the lease; None if there is none.
        error: why there is no lease, or no longer; None if nothing went wrong.
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
    """How long a node took for one request.

    Attributes:
        alias, node: which node; ``node`` is ``host:port/db``.
        seconds: from sending the request to reading the reply; None if there is no vote.
        reason: why there is none.
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
        outcome: what became of it.
        alias: the alias of the nodes.
        name: what the task locks, a name or a tuple of names.
        task: the name of the task.
        task_id: the message's task id; "" for a call without a message.
        other_id: of a duplicate, the task id of the message that waits or runs; else "".
        seconds: of a deferred message, until it comes back; else 0.
        error: why it is skipped or deferred: a ``LockTaken`` or a ``NodesUnavailable``; else None.
    """

    outcome: TaskOutcome
    alias: str
    name: str | tuple[str, ...]
    task: str
    task_id: str
    other_id: str = ""
    seconds: float = 0.0
    error: RedlockError | None = None
