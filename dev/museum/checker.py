"""What a history shows: who held the lock when, and what was broken.

A client *holds* the lock from when its library said so, until the time that the library named, or
until the client released the lock, learned of a loss, hung, or was killed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from . import history
from .history import Event

ENDS: Final = {history.RELEASES, history.KILLED, history.HANGS, history.LOST}
REPLIES: Final = {history.HOLDS, history.REFUSED, history.FAILS, history.KILLED}
UNFAIR: Final = 3  # clients that came later: a client that is refused after so many has starved


class Break(enum.StrEnum):
    """A way in which a lock is broken."""

    TWO = "two holders"
    MANY = "too many holders"  # of a lock that several may hold at once
    STUCK = "stuck"
    LOST = "lost updates"
    FENCES = "fences out of order"
    STARVED = "starved"


class Hold(NamedTuple):
    """From when until when a client held the lock, as far as it knew."""

    client: str
    start: float
    end: float
    fence: int | None = None


class Overlap(NamedTuple):
    """Two clients held the lock at once; of a limited lock, one more than may."""

    clients: Sequence[str]
    start: float
    end: float


class Span(NamedTuple):
    """A stretch of time."""

    start: float
    end: float


NO_TIME: Final = Span(0.0, 0.0)


@dataclass(frozen=True)
class Findings:
    """What was seen.

    Attributes:
        holds: all holds, in the order in which they began.
        limit: the number of clients that may hold the lock at once.
        overlaps: the times at which more did.
        idle: the longest time for which a client asked, and fewer than may held the lock.
        lost: the number of writes that were done and are not in the final value.
        fences: the number of holds whose fence is not higher than the one before.
        passed: the most clients that got the lock and had asked later than one that was refused.
    """

    holds: Sequence[Hold] = ()
    limit: int = 1
    overlaps: Sequence[Overlap] = ()
    idle: Span = NO_TIME
    lost: int = 0
    fences: int = 0
    passed: int = 0

    @property
    def stuck(self) -> float:
        """The seconds of ``idle``."""
        return self.idle.end - self.idle.start

    def breaks(self, patience: float) -> frozenset[Break]:
        """Return what is broken; nobody should be stuck for longer than ``patience`` seconds."""
        seen = {
            Break.TWO: self.limit == 1 and len(self.overlaps) > 0,
            Break.MANY: self.limit > 1 and len(self.overlaps) > 0,
            Break.STUCK: self.stuck > patience,
            Break.LOST: self.lost > 0,
            Break.FENCES: self.fences > 0,
            Break.STARVED: self.passed >= UNFAIR,
        }
        return frozenset(each for each, is_seen in seen.items() if is_seen)


def judge(events: Sequence[Event], limit: int = 1) -> Findings:
    """Return what a history shows; its events are in order, and so many may hold at once."""
    holds = sorted(_holds(events), key=lambda hold: (hold.start, hold.end))
    lasting = [hold for hold in holds if hold.start < hold.end]  # not over when it was heard of
    fences = [hold.fence for hold in holds if hold.fence is not None]
    return Findings(
        holds=holds,
        limit=limit,
        overlaps=list(_overlaps(lasting, limit)),
        idle=max(_idle(events, lasting, limit), key=lambda span: span.end - span.start),
        lost=_lost(events),
        fences=sum(later <= earlier for earlier, later in pairwise(fences)),
        passed=_passed(events),
    )


def _holds(events: Sequence[Event]) -> Iterator[Hold]:
    held: dict[str, Hold] = {}
    for event in events:
        hold = held.get(event.client)
        if event.kind == history.HOLDS:
            if hold is not None:
                yield hold
            until = event.more.get("until")
            end = events[-1].at if until is None else max(event.at, until)
            held[event.client] = Hold(event.client, event.at, end, event.more.get("fence"))
        elif hold is not None and event.kind in ENDS:
            yield hold._replace(end=min(hold.end, event.at))
            del held[event.client]
    yield from held.values()


def _overlaps(holds: Sequence[Hold], limit: int) -> Iterator[Overlap]:
    """Each hold that begins before the first of the ``limit`` longest earlier ones has ended."""
    longest: list[Hold] = []
    for hold in holds:
        end = min((each.end for each in longest), default=0.0)
        if len(longest) == limit and hold.start < end:
            clients = [*sorted(each.client for each in longest), hold.client]
            yield Overlap(clients, hold.start, min(hold.end, end))
        longest = sorted([*longest, hold], key=lambda each: each.end)[-limit:]


def _idle(events: Sequence[Event], holds: Sequence[Hold], limit: int) -> Iterator[Span]:
    """The times for which a client asked while one more could hold; an empty one at least."""
    changes = [change for hold in holds for change in ((hold.start, 1, 0), (hold.end, -1, 0))]
    waiting: set[str] = set()
    for event in events:
        if event.kind == history.ASKS and event.client not in waiting:
            waiting.add(event.client)
            changes.append((event.at, 0, 1))
        elif event.kind in REPLIES and event.client in waiting:
            waiting.remove(event.client)
            changes.append((event.at, 0, -1))
    held = asking = 0
    since = None
    for at, more_held, more_asking in [*sorted(changes), (events[-1].at, 0, 0)]:
        if since is not None:
            yield Span(since, at)
        held, asking = held + more_held, asking + more_asking
        is_idle = asking > 0 and held < limit
        since = (at if since is None else since) if is_idle else None
    yield Span(events[-1].at, events[-1].at)


def _lost(events: Sequence[Event]) -> int:
    """Each write adds one to what its client has read; what is missing in the end was lost."""
    done = sum(event.kind == history.WRITES and event.more["done"] for event in events)
    final = [event.more["value"] for event in events if event.kind == history.FINAL]
    return max(0, done - final[-1]) if final else 0


def _passed(events: Sequence[Event]) -> int:
    asked: dict[str, int] = {}  # of each client, the number of the event in which it asked last
    served: list[int] = []  # the same numbers of those that got the lock
    most = 0
    for number, event in enumerate(events):
        if event.kind == history.ASKS:
            asked[event.client] = number
        elif event.kind == history.HOLDS:
            served.append(asked[event.client])
        elif event.kind == history.REFUSED:
            most = max(most, sum(each > asked[event.client] for each in served))
    return most
