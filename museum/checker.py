"""What a history shows. Sorting its events takes O(n log n), and the rest is one pass over them."""

from __future__ import annotations

import enum
from bisect import bisect, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from . import history
from .history import Event

ENDS = {history.RELEASES, history.KILLED, history.HANGS, history.LOST}


class Break(enum.StrEnum):
    """A way in which a lock is broken."""

    TWO = "two holders"
    STUCK = "stuck"
    LOST = "lost updates"
    FENCES = "fences out of order"
    STARVED = "starved"


UNFAIR: Final = 3  # so many clients that came later: one that is refused after them has starved


class Hold(NamedTuple):
    """From when until when a client held the lock, as far as it knew."""

    who: str
    start: float
    end: float
    fence: int | None = None


class Overlap(NamedTuple):
    """Two clients held the lock at once."""

    first: str
    second: str
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
        holds: in the order in which they began.
        overlaps: times at which two clients held the lock.
        idle: the longest time for which somebody asked and nobody held the lock.
        lost: how many writes that the store took are not in its final value.
        fences: how many holds have a fence that is not higher than the one before.
        passed: how many got the lock who asked later than one who waited, and did not get it.
    """

    holds: list[Hold] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    idle: Span = NO_TIME
    lost: int = 0
    fences: int = 0
    passed: int = 0

    @property
    def stuck(self) -> float:
        """For how many seconds somebody asked and nobody held the lock."""
        return self.idle.end - self.idle.start

    def breaks(self, patience: float) -> frozenset[Break]:
        """Return what is broken; nobody should be stuck for longer than ``patience`` seconds."""
        seen = {
            Break.TWO: len(self.overlaps) > 0,
            Break.STUCK: self.stuck > patience,
            Break.LOST: self.lost > 0,
            Break.FENCES: self.fences > 0,
            Break.STARVED: self.passed >= UNFAIR,
        }
        return frozenset(each for each, is_seen in seen.items() if is_seen)


def judge(events: Sequence[Event]) -> Findings:
    """Return what a history shows; its events are in order."""
    holds = sorted(_holds(events), key=lambda hold: (hold.start, hold.end))
    fences = [hold.fence for hold in holds if hold.fence is not None]
    return Findings(
        holds=holds,
        overlaps=list(_overlaps(holds)),
        idle=_idle(events, holds),
        lost=_lost(events),
        fences=sum(later <= earlier for earlier, later in pairwise(fences)),
        passed=_passed(events),
    )


def _holds(events: Sequence[Event]) -> Iterator[Hold]:
    """A hold ends when its client releases it, ends or hangs, learns of a loss, or by itself."""
    held: dict[str, Hold] = {}
    last = events[-1].at if events else 0.0
    for event in events:
        hold = held.get(event.who)
        if event.what == history.HOLDS:
            until = event.more.get("until")
            end = last if until is None else max(event.at, until)
            if hold is not None and hold.end >= event.at:  # it was prolonged
                held[event.who] = hold._replace(end=end)
                continue
            if hold is not None:
                yield hold
            held[event.who] = Hold(event.who, event.at, end, event.more.get("fence"))
        elif hold is not None and event.what in ENDS:
            yield hold._replace(end=min(hold.end, event.at))
            del held[event.who]
    yield from held.values()


def _overlaps(holds: Sequence[Hold]) -> Iterator[Overlap]:
    """Each hold that begins before the longest of the earlier ones has ended.

    A hold that was over when its client heard of it overlaps nothing.
    """
    longest: Hold | None = None
    for hold in holds:
        if hold.start == hold.end:
            continue
        if longest is not None and hold.start < longest.end:
            end = min(hold.end, longest.end)
            yield Overlap(longest.who, hold.who, hold.start, end)
        if longest is None or hold.end > longest.end:
            longest = hold


def _idle(events: Sequence[Event], holds: Sequence[Hold]) -> Span:
    """The longest time for which somebody asked while nobody held."""
    lasting = [hold for hold in holds if hold.start < hold.end]
    changes = [(hold.start, 1, 0) for hold in lasting]
    changes += [(hold.end, -1, 0) for hold in lasting]
    asking: set[str] = set()
    for event in events:
        if event.what == history.ASKS and event.who not in asking:
            asking.add(event.who)
            changes.append((event.at, 0, 1))
        elif event.who in asking and event.what in (
            history.HOLDS, history.REFUSED, history.FAILS, history.KILLED,
        ):  # fmt: skip
            asking.remove(event.who)
            changes.append((event.at, 0, -1))
    if events:
        changes += [(events[-1].at, 0, -1) for _ in asking]
    longest, since, held, asks = NO_TIME, None, 0, 0
    for at, more_held, more_asks in sorted(changes):
        if since is not None and at - since > longest.end - longest.start:
            longest = Span(since, at)
        held, asks = held + more_held, asks + more_asks
        if held or not asks:
            since = None
        elif since is None:
            since = at
    return longest


def _lost(events: Sequence[Event]) -> int:
    """Each write adds one to what its client has read; what is missing in the end was lost."""
    done = sum(event.what == history.WRITES and event.more["done"] for event in events)
    final = [event.more["value"] for event in events if event.what == history.FINAL]
    return max(0, done - final[-1]) if final else 0


def _passed(events: Sequence[Event]) -> int:
    """The most clients that came later and got the lock, while one waited and was then refused."""
    asked: dict[str, int] = {}  # the number of the event; of those who wait
    served: list[int] = []  # the same of those who have got the lock, in order
    most = 0
    for number, event in enumerate(events):
        if event.what == history.ASKS:
            asked[event.who] = number
        elif event.what == history.HOLDS and event.who in asked:
            insort(served, asked.pop(event.who))
        elif event.what == history.REFUSED and event.who in asked:
            most = max(most, len(served) - bisect(served, asked.pop(event.who)))
    return most
