"""A picture of a play, as SVG: time runs down, each client has a lane, each event a row of words.

A row is as high as its words need. A time in which nothing happens is cut short, and the cut says
how long it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from . import history
from .checker import Break
from .drawing import LINE, Sheet, box, line
from .history import Event
from .play import Played
from .stage import MUSEUM

CLOCK, LANE, BAR, GAP, CUT = 42, 26, 14, 7, 22  # px: where the times end; and of what is drawn
IDLE, LONG = 0.25, 110  # seconds without an event that are cut short; characters of an error
OVER: Final = "is over"
WORDS: Final = {
    history.ASKS: "{client} asks for {lock}",
    history.HOLDS: "{client} has {lock}",
    history.REFUSED: "{client} does not get it",
    history.READS: "{client} reads {value}",
    history.WRITES: "{client} writes {value}",
    history.RELEASES: "{client} releases {own}",
    history.LOST: "{client} learns that it has lost {own}",
    history.FAILS: "{client} fails: {why}",
    history.STOPPED: "{client} is stopped",
    history.GOES_ON: "{client} goes on",
    history.KILLED: "{client} is killed",
    history.HANGS: "{client} hangs: its work does not go on",
    history.CHANGED: "{words}",
    history.FINAL: "writes that were done: {writes}; the number in the end: {value}",
}
LEGEND: Final = "blue: believes to hold {lock}; red: {many} at once; hatched: stopped"


# -- what is said ----------------------------------------------------------------------------------


class Row(NamedTuple):
    """One event in words.

    Attributes:
        lane: the name of a client, or ``MUSEUM``, which is the lane of the servers; "": none.
        kind: the kind of the event, or ``OVER``.
        alarm: what is wrong here; "": nothing.
    """

    at: float
    lane: str
    kind: str
    words: str
    alarm: str = ""


def rows(played: Played) -> list[Row]:
    """Return the rows of a play, in the order of their times."""
    events, findings, alarms = played.events, played.findings, _alarms(played)
    writes = sum(event.kind == history.WRITES and event.more["done"] for event in events)
    found = []
    before: dict[str, Event] = {}
    for event in events:
        words = _words(event, before.get(event.client), findings.limit, writes)
        if words:
            lane = "" if event.kind == history.FINAL else event.client
            found.append(Row(event.at, lane, event.kind, words, " ".join(alarms[event.at])))
        before[event.client] = event
    ended = {(event.client, event.at) for event in events}
    for client, _, end, _ in findings.holds:
        if (client, end) not in ended and end < events[-1].at:
            found.append(Row(end, client, OVER, f"the time of {client} is over"))
    return sorted(found, key=lambda row: row.at)


def _lock(limit: int, article: str = "a") -> str:
    """What a client asks for."""
    return "the lock" if limit == 1 else f"{article} slot"


def _words(event: Event, before: Event | None, limit: int, writes: int) -> str:
    """Return an event in words; "": it says no more than the client's event before it."""
    more = event.more
    if event.kind == history.LOST and before and before.kind == history.WRITES:
        return ""  # the refused write has said so
    if event.kind == history.FINAL and limit > 1:
        return ""  # it guards no number
    if event.kind == history.WRITES and not more["done"]:
        return f"the row refuses the {more['value']} of {event.client}"
    lock, own = _lock(limit), _lock(limit, "its")
    words = WORDS.get(event.kind, "").format(
        client=event.client, lock=lock, own=own, writes=writes, **more
    )
    if event.kind == history.HOLDS and more["until"] is not None:
        words += f" for {max(0.0, more['until'] - event.at):.2f}\N{NO-BREAK SPACE}s"
    if event.kind == history.HOLDS and more["fence"] is not None:
        words += f", fence {more['fence']}"
    if event.kind == history.STOPPED and before and before.kind == history.POINT:
        words += f": {before.more['where']}"
    return words if len(words) <= LONG else f"{words[:LONG]}…"


def _alarms(played: Played) -> dict[float, list[str]]:
    """What is wrong, by the time of the event that shows it."""
    events, findings, seen = played.events, played.findings, played.seen
    found: dict[float, list[str]] = defaultdict(list)
    limit = findings.limit
    holders = "Two holders" if limit == 1 else f"{limit + 1} holders of {limit} slots"
    for overlap in findings.overlaps:
        names = f"{', '.join(overlap.clients[:-1])} and {overlap.clients[-1]}"
        found[overlap.start].append(f"{holders} at once: {names}.")
    if Break.STUCK in seen:
        last = max(event.at for event in events if event.at <= findings.idle.end)
        found[last].append(
            f"Nobody could have {_lock(limit)} for {findings.stuck:.1f}\N{NO-BREAK SPACE}s"
            f"{'' if limit == 1 else f', and fewer than {limit} were held'}."
        )
    if Break.STARVED in seen:
        last = max(event.at for event in events if event.kind == history.REFUSED)
        found[last].append(f"{findings.passed} who came later got the lock before.")
    value = fence = 0
    for event in events:
        if event.kind == history.WRITES and event.more["done"]:
            if Break.LOST in seen and event.more["value"] <= value:
                found[event.at].append("An update is lost.")
            value = event.more["value"]
        elif event.kind == history.HOLDS and event.more["fence"] is not None:
            if event.more["fence"] <= fence:
                found[event.at].append(f"The fence is not higher than {fence}.")
            fence = event.more["fence"]
    return found


# -- how it is drawn -------------------------------------------------------------------------------


def draw(played: Played) -> str:
    """Return the picture of a play."""
    return _Picture(played).draw()


class _Picture(Sheet):
    """The sheet of a play."""

    def __init__(self, played: Played) -> None:
        super().__init__()
        self.played, self.rows = played, rows(played)
        names = sorted({row.lane for row in self.rows} - {"", MUSEUM})
        names += [MUSEUM] * any(row.lane == MUSEUM for row in self.rows)
        self.lanes = {name: CLOCK + 17.0 + LANE * number for number, name in enumerate(names)}
        if MUSEUM in self.lanes:
            self.lanes[MUSEUM] += 12  # its name is longer
        self.left = max(self.lanes.values(), default=CLOCK) + LANE

    def draw(self) -> str:
        """Draw everything."""
        cell, start = self.played.cell, self.rows[0].at
        self.paragraph(cell.lock.title, "bold")
        self.paragraph(cell.fault.words)
        self.y += 6
        for name, x in self.lanes.items():
            self.text(x, self.y + 13, "servers" if name == MUSEUM else name, "middle")
        self.y += LINE + 2
        top = self.y
        self._rows(start)
        for x in self.lanes.values():
            self.under.insert(0, line("lane", x, top, x, self.y - GAP))
        limit = cell.lock.limit
        many = "two" if limit == 1 else "too many"
        self.paragraph(LEGEND.format(lock=_lock(limit), many=many), "muted")
        self.y += 6
        self.paragraph(cell.why)
        told = [f"{row.at - start:.2f} s: {row.words}. {row.alarm}".strip() for row in self.rows]
        seen = ", ".join(sorted(self.played.seen)) or "nothing is broken"
        return self.svg(
            f"{cell.lock.title}: {cell.fault.words}", " ".join([f"Seen: {seen}.", *told])
        )

    def _rows(self, start: float) -> None:
        middles: list[tuple[float, float]] = []  # the time of each row, and its y
        before = start
        for row in self.rows:
            if row.at - before > IDLE and row.kind != history.FINAL:
                y = self.y + 7
                self.over.append(line("cut", CLOCK + 4, y, self.left - 6, y))
                self.text(self.left, y + 4, f"{row.at - before:.1f} s later", "muted")
                self.y += CUT
            before, y = row.at, self.y + LINE / 2
            middles.append((row.at, y))
            if row.lane:
                self.text(CLOCK, y + 4, f"{row.at - start:.2f}", "muted end")
                kind = "dot wrong" if row.alarm else "dot"
                self.over.append(box(kind, self.lanes[row.lane] - 4, y - 4, 8, 8))
            self.paragraph(row.words, left=self.left)
            self.paragraph(row.alarm, "alarm", self.left)
            self.y += GAP
        for kind, client, *span in self._spans():
            top, bottom = (max(y for at, y in middles if at <= edge) for edge in span)
            if top < bottom:
                left = self.lanes[client] - BAR / 2
                self.under.append(box(kind, left, top, BAR, bottom - top))

    def _spans(self) -> Iterator[tuple[str, str, float, float]]:
        """What clients do for some time: hold the lock, two of them at once, stand still."""
        for client, start, end, _ in self.played.findings.holds:
            yield "hold", client, start, end
        for clients, start, end in self.played.findings.overlaps:
            for client in clients:
                yield "two", client, start, end
        since: dict[str, float] = {}
        for event in self.played.events:
            if event.kind == history.STOPPED:
                since[event.client] = event.at
            elif event.kind in {history.GOES_ON, history.KILLED} and event.client in since:
                yield "stop", event.client, since.pop(event.client), event.at
