"""A picture of a play, as SVG: time runs down, each client has a lane, each event a row of words.

A row is as high as its words need, so no label overlaps another one on whatever screen; a time in
which nothing happens is cut short, and the cut says how long it was. The picture has a ground of
its own, and colours for light and dark, because a page that shows it as an image lends it neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree.ElementTree import Element

from django_redlock.core.reasons import printable

from . import history
from .checker import Span
from .history import Event
from .lettering import LINE, SMALL, TEXT, width, wrapped
from .play import Played
from .sheet import Sheet
from .story import FOLD, SERVERS, Row, rows

WIDTH: Final = 390
EDGE: Final = 10
CLOCK: Final = 42  # where the times end
LANE, OF_SERVERS, BAR = 26, 52, 14
MOST_LANES: Final = 6
GAP: Final = 7  # between two rows
IDLE: Final = 0.25  # seconds without an event; a longer time is cut short
CUT: Final = 22  # its height
BASE: Final = LINE - 4  # from the top of a line of text down to where its letters stand
ANSWERS: Final = frozenset({history.HOLDS, history.REFUSED, history.FAILS, history.KILLED})
STIRS: Final = frozenset({history.GOES_ON, history.KILLED})
LEGEND: Final = {
    "asks": "asks",
    "hold": "believes to hold the lock",
    "two": "two at once",
    "stop": "stopped",
    "cross": "killed",
}


def draw(played: Played) -> str:
    """Return the picture of a play."""
    return _Picture(played).svg()


class _Picture:
    """What is drawn so far, from the top down."""

    def __init__(self, played: Played) -> None:
        self.played = played
        self.rows = rows(played.events, played.findings, played.seen)
        self.sheet = Sheet(played.cell.key.replace("/", "-"), *self._about())
        self.lanes = self._lanes()
        self.times: list[tuple[float, float]] = []  # and their y
        self.y = float(EDGE)

    def svg(self) -> str:
        """Draw everything: bars are measured by the rows, and lie under them."""
        self._head()
        top, bars = self.y, self.sheet.group()
        self._rows()
        self._bars(bars, top)
        self._legend()
        return self.sheet.svg(WIDTH, round(self.y + EDGE))

    # -- what is said -------------------------------------------------------------------------

    def _about(self) -> tuple[str, str]:
        """Its title and all that it says, for those who do not see it."""
        cell, start = self.played.cell, self.played.events[0].at
        seen = ", ".join(sorted(self.played.seen)) or "nothing is broken"
        told = [f"{row.at - start:.2f} s: {row.words}. {row.alarm}".strip() for row in self.rows]
        title = printable(f"{cell.exhibit.title}: {cell.run.words}")
        return title, " ".join([f"Seen: {seen}.", *told])

    def _head(self) -> None:
        cell = self.played.cell
        self._paragraph(cell.exhibit.title, "bold")
        self._paragraph(cell.run.words)
        self.y += 6
        for who, x in self.lanes.items():
            room = OF_SERVERS if who == SERVERS else LANE
            name = who if width(who, SMALL) <= room else f"{who[:1]}…"
            self.sheet.text(complex(x, self.y + BASE), name, SMALL, anchor="middle")
        self.y += LINE + 2

    def _paragraph(self, words: str, kind: str = "", left: float = EDGE) -> None:
        is_bold = kind in {"bold", "alarm"}
        for line in wrapped(printable(words), WIDTH - EDGE - left, TEXT, is_bold=is_bold):
            self.sheet.text(complex(left, self.y + BASE), line, TEXT, kind)
            self.y += LINE

    # -- rows ---------------------------------------------------------------------------------

    def _lanes(self) -> dict[str, float]:
        """Where the middle of each lane is; clients beyond the last one are in none."""
        names = sorted({row.who for row in self.rows} - {"", SERVERS})[: MOST_LANES - 1]
        if any(row.who == SERVERS for row in self.rows):
            names.append(SERVERS)
        lanes, x = {}, float(CLOCK + 4)
        for name in names:
            room = OF_SERVERS if name == SERVERS else LANE
            lanes[name] = x + room / 2
            x += room
        self.left = x + 6
        return lanes

    def _rows(self) -> None:
        start = before = self.rows[0].at
        for row in self.rows:
            if row.at - before > IDLE and row.what != history.FINAL:
                self._cut(row.at - before)
            before = row.at
            y = self.y + LINE / 2
            self.times.append((row.at, y))
            if row.who:
                clock = complex(CLOCK, y + 4)
                self.sheet.text(clock, f"{row.at - start:.2f}", SMALL, "muted", "end")
            if row.who in self.lanes:
                self._sign(row, complex(self.lanes[row.who], y))
            self._paragraph(row.words, "muted" if row.what == FOLD else "", self.left)
            self._paragraph(row.alarm, "alarm", self.left)
            self.y += GAP

    def _sign(self, row: Row, at: complex) -> None:
        """Mark an event in its lane."""
        if row.what == history.KILLED:
            self.sheet.cross(at)
        elif row.who == SERVERS:
            self.sheet.box("dot", at - (5 + 5j), 10 + 10j)
        elif row.alarm:
            self.sheet.dot(at, 4.5, "dot wrong")
        else:
            self.sheet.dot(at, 4)

    def _cut(self, seconds: float) -> None:
        """Mark a time in which nothing happened."""
        left = complex(CLOCK + 4, self.y + CUT / 2 - GAP / 2 + 4)
        right = complex(self.left - 6, left.imag - 8)
        self.sheet.stroke("cut", left, right)
        for side in (-4j, 4j):
            self.sheet.stroke("rule", left + side, right + side)
        words = complex(self.left, left.imag)
        self.sheet.text(words, f"{seconds:.1f} s later", SMALL, "muted")
        self.y += CUT

    # -- lanes and what is in them ------------------------------------------------------------

    def _at(self, at: float) -> float:
        """The y of a time: that of the last row until then."""
        return max((y for time, y in self.times if time <= at), default=self.times[0][1])

    def _bars(self, into: Element, top: float) -> None:
        for x in self.lanes.values():
            self.sheet.stroke("lane", complex(x, top), complex(x, self.y - GAP), into)
        for who, span in _spans(self.played.events, history.ASKS, ANSWERS):
            if x := self.lanes.get(printable(who), 0.0):
                start, end = complex(x, self._at(span.start)), complex(x, self._at(span.end))
                self.sheet.stroke("asks", start, end, into)
        findings = self.played.findings
        for hold in findings.holds:
            self._bar(into, "hold", hold.who, Span(hold.start, hold.end))
        for two in findings.overlaps:
            for who in (two.first, two.second):
                self._bar(into, "two", who, Span(two.start, two.end))
        for who, span in _spans(self.played.events, history.STOPPED, STIRS):
            self._bar(into, "stop", who, span)

    def _bar(self, into: Element, kind: str, who: str, span: Span) -> None:
        top, bottom = self._at(span.start), self._at(span.end)
        if (x := self.lanes.get(printable(who), 0.0)) and bottom > top:
            size = complex(BAR, bottom - top)
            self.sheet.box(kind, complex(x - BAR / 2, top), size, into, hatched=kind == "stop")

    # -- the end ------------------------------------------------------------------------------

    def _legend(self) -> None:
        """Say what the signs mean that are there, and how it came to what is seen."""
        at, drawn = complex(EDGE, self.y + 4), self.sheet.kinds()
        for kind, words in LEGEND.items():
            if kind not in drawn:
                continue
            room = BAR + 6 + width(words, SMALL) + 12
            if at.real > EDGE and at.real + room > WIDTH:
                at = complex(EDGE, at.imag + LINE + 3)
            self._swatch(kind, at + complex(BAR / 2, LINE / 2))
            self.sheet.text(at + complex(BAR + 6, BASE), words, SMALL)
            at += room
        self.y = at.imag + LINE + 6
        self._paragraph(self.played.cell.why)

    def _swatch(self, kind: str, at: complex) -> None:
        if kind == "asks":
            self.sheet.stroke(kind, at - 8j, at + 8j)
        elif kind == "cross":
            self.sheet.cross(at, 5)
        else:
            corner = at - complex(BAR / 2, 6)
            self.sheet.box(kind, corner, complex(BAR, 12), hatched=kind == "stop")


def _spans(events: Sequence[Event], begin: str, ends: frozenset[str]) -> Iterator[tuple[str, Span]]:
    """From when until when each client did something: asked, or was stopped."""
    since: dict[str, float] = {}
    for event in events:
        if event.what == begin:
            since.setdefault(event.who, event.at)
        elif event.what in ends and event.who in since:
            yield event.who, Span(since.pop(event.who), event.at)
    for who, start in since.items():
        yield who, Span(start, events[-1].at)
