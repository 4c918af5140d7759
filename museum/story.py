"""A history in words: a row for each event, in order, and what is wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from django_redlock.core.reasons import printable

from . import history
from .checker import Break, Findings
from .history import Event

SERVERS = "servers"
DIRECTOR = "museum"  # who writes down what is done to servers
FOLD = "fold"
OVER = "is over"
MANY = 44  # rows, and more are folded
AROUND = 7  # rows that are shown before and after what is wrong
LONG = 110  # characters of an error
SLOW = 0.3  # seconds of a release that are worth a row


@dataclass(frozen=True)
class Row:
    """One event in words.

    Attributes:
        who: in whose lane it is: a client's, or that of the servers; "": in none.
        what: of ``history``, or FOLD or OVER.
        alarm: what is wrong here; "": nothing.
    """

    at: float
    who: str
    what: str
    words: str
    alarm: str = ""


def rows(events: Sequence[Event], findings: Findings, seen: frozenset[Break]) -> list[Row]:
    """Return the rows of a history; ``seen`` is what is broken in it."""
    told = sorted([*_told(events, findings), *_ends(events, findings)], key=lambda row: row.at)
    if Break.STUCK in seen:
        told = _with_stuck(told, findings)
    if Break.STARVED in seen:
        told = _with_starved(told, findings)
    return _folded(told) if len(told) > MANY else told


def _told(events: Sequence[Event], findings: Findings) -> Iterator[Row]:
    """What clients, faults and the checker say, event by event."""
    alarms = _Alarms(findings)
    tellers: dict[str, Callable[[Event], str]] = {
        history.ASKS: lambda event: f"{event.who} asks for the lock",
        history.HOLDS: _holds(findings),
        history.REFUSED: lambda event: f"{event.who} does not get it",
        history.READS: lambda event: f"{event.who} reads {event.more['value']}",
        history.WRITES: _writes,
        history.RELEASES: lambda event: f"{event.who} releases the lock",
        history.RELEASED: lambda event: f"{event.who} has released it",
        history.LOST: lambda event: f"{event.who} learns that it has lost the lock",
        history.FAILS: lambda event: f"{event.who} fails: {_short(event.more['why'])}",
        history.STOPPED: _stopped(alarms.before),
        history.GOES_ON: lambda event: f"{event.who} goes on",
        history.KILLED: lambda event: f"{event.who} is killed",
        history.HANGS: lambda event: f"{event.who} hangs: its work does not go on",
        history.CHANGED: lambda event: event.more["words"],
        history.FINAL: _final(events),
    }
    for event in events:
        alarm = alarms.of(event)
        if _is_worth_a_row(event, alarms.before):
            is_final = event.what == history.FINAL
            who = "" if is_final else SERVERS if event.who == DIRECTOR else event.who
            teller = tellers.get(event.what, _plainly)
            yield Row(event.at, printable(who), event.what, printable(teller(event)), alarm)
        alarms.before[event.who] = event


def _plainly(event: Event) -> str:
    return f"{event.who} {event.what}"


def _is_worth_a_row(event: Event, before: dict[str, Event]) -> bool:
    """Whether it says more than the event of the same client before it."""
    last = before.get(event.who)
    if event.what == history.POINT:  # where it is stopped
        return False
    if event.what == history.RELEASED:
        return last is None or event.at - last.at > SLOW
    if event.what == history.LOST:  # a refused write has said so
        return last is None or last.what != history.WRITES
    return True


def _holds(findings: Findings) -> Callable[[Event], str]:
    begun = {(hold.who, hold.start) for hold in findings.holds}

    def say(event: Event) -> str:
        until, fence = event.more.get("until"), event.more.get("fence")
        has = "has the lock" if (event.who, event.at) in begun else "prolongs it:"
        ttl = "" if until is None else f" {max(0.0, until - event.at):.2f} s"
        if ttl and has.endswith("lock"):
            ttl = f" for{ttl}"
        return f"{event.who} {has}{ttl}{'' if fence is None else f', fence {fence}'}"

    return say


def _stopped(before: dict[str, Event]) -> Callable[[Event], str]:
    """Say where in its recipe a client is stopped, if it did so itself."""

    def say(event: Event) -> str:
        last = before.get(event.who)
        where = f": {last.more['where']}" if last and last.what == history.POINT else ""
        return f"{event.who} is stopped{where}"

    return say


def _writes(event: Event) -> str:
    value = event.more["value"]
    if event.more["done"]:
        return f"{event.who} writes {value}"
    return f"the row refuses the {value} of {event.who}"


def _final(events: Sequence[Event]) -> Callable[[Event], str]:
    done = sum(event.what == history.WRITES and event.more["done"] for event in events)

    def say(event: Event) -> str:
        times = "write" if done == 1 else "writes"
        return f"the number is {event.more['value']}, after {done} {times}"

    return say


def _short(text: str) -> str:
    return text if len(text) <= LONG else f"{text[: LONG - 1]}…"


class _Alarms:
    """What is wrong at an event: two holders, a lost update, a fence that is too low."""

    def __init__(self, findings: Findings) -> None:
        self.before: dict[str, Event] = {}
        self._two = {(each.second, each.start): each.first for each in findings.overlaps}
        self._begun = {(hold.who, hold.start) for hold in findings.holds}
        self._loses = findings.lost > 0
        self._value = 0
        self._fence: int | None = None

    def of(self, event: Event) -> str:
        if event.what == history.WRITES and event.more["done"]:
            return self._written(event.more["value"])
        if event.what != history.HOLDS or (event.who, event.at) not in self._begun:
            return ""
        wrong = []
        if other := self._two.get((event.who, event.at)):
            wrong.append(f"Two holders at once: {printable(other)} and {printable(event.who)}.")
        fence, before = event.more.get("fence"), self._fence
        if fence is not None:
            if before is not None and fence <= before:
                wrong.append(f"The fence is not higher than {before}.")
            self._fence = fence
        return " ".join(wrong)

    def _written(self, value: int) -> str:
        lost, self._value = self._value - value + 1, value
        if not self._loses or lost < 1:
            return ""
        return "An update is lost." if lost == 1 else f"{lost} updates are lost."


def _ends(events: Sequence[Event], findings: Findings) -> Iterator[Row]:
    """Holds that end by themselves, while their client does something else."""
    ended = {(event.who, event.at) for event in events}
    for who, _, end, _ in findings.holds:
        if (who, end) not in ended and end < events[-1].at:
            yield Row(end, printable(who), OVER, f"the time of {printable(who)} is over")


def _with_stuck(told: list[Row], findings: Findings) -> list[Row]:
    """Say where nobody could have the lock, at the end of that time."""
    last = max(place for place, row in enumerate(told) if row.at <= findings.idle.end)
    wrong = f"{told[last].alarm} Nobody could have the lock for {findings.stuck:.1f} s.".strip()
    return [*told[:last], replace(told[last], alarm=wrong), *told[last + 1 :]]


def _with_starved(told: list[Row], findings: Findings) -> list[Row]:
    """Say where somebody was refused whom others had overtaken."""
    last = max(place for place, row in enumerate(told) if row.what == history.REFUSED)
    wrong = f"{findings.passed} who came later got the lock before."
    return [*told[:last], replace(told[last], alarm=wrong), *told[last + 1 :]]


def _folded(told: list[Row]) -> list[Row]:
    """Keep the beginning, the end, and what is around the first of each thing that is wrong."""
    wrong = {row.alarm.partition(":")[0]: place for place, row in reversed([*enumerate(told)])}
    wrong.pop("", None)
    kept = {*range(2 * AROUND), len(told) - 1} if not wrong else {*range(3), len(told) - 1}
    for place in wrong.values():
        kept |= {*range(place - AROUND, place + AROUND + 1)}
    found: list[Row] = []
    for is_kept, group in groupby(enumerate(told), lambda placed: placed[0] in kept):
        some = [row for _, row in group]
        if is_kept or len(some) == 1:
            found += some
        else:
            found.append(Row(some[0].at, "", FOLD, f"… {len(some)} more events …"))
    return found
