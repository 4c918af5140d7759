"""A picture of a play, as SVG: time runs down, each client has a lane, each event a row of words.

A row is as high as its words need, so no label overlaps another one on whatever screen; a time in
which nothing happens is cut short, and the cut says how long it was. The reader's fonts are not
known: the widths of words are those of DejaVu Sans, which is among the widest. The picture has a
ground of its own, and colours for light and dark, because a page that shows it as an image lends it
neither.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from django_redlock.core.reasons import printable

from . import history
from .checker import Span
from .history import Event
from .play import Played
from .story import FOLD, SERVERS, Row, rows

TEXT: Final = 13  # px; a phone shows a picture at its own size, or larger
SMALL: Final = 12
LINE: Final = 17
NARROW, SLIM, WIDE = set("ijlI|!'.,:;` "), set('frt()[]{}-/\\"J'), set("mwMWQ@%—…&")
BOLD: Final = 1.13
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


# -- words -----------------------------------------------------------------------------------------


def width(words: str, size: float, *, is_bold: bool = False) -> float:
    """Return how wide words may be, in px."""
    return sum(map(_em, words)) * size * (BOLD if is_bold else 1.0)


def _em(letter: str) -> float:
    if letter in NARROW:
        return 0.34
    if letter in SLIM:
        return 0.46
    if letter in WIDE or unicodedata.east_asian_width(letter) in "WF":
        return 1.04
    if ord(letter) > 0x250:  # noqa: PLR2004 - beyond Latin: as wide as any
        return 1.04
    return 0.77 if letter.isupper() else 0.64


def wrapped(words: str, room: float, size: float, *, is_bold: bool = False) -> list[str]:
    """Return words in lines that fit; a word that is too long by itself is broken.

    Seconds stay with their number.
    """
    lines: list[str] = []
    line = ""
    for word in filter(None, re.split(r" +(?!s\b)", words)):
        longer = f"{line} {word}".lstrip()
        if width(longer, size, is_bold=is_bold) <= room:
            line = longer
            continue
        if line:
            lines.append(line)
        *parts, line = _pieces(word, room, size * (BOLD if is_bold else 1.0))
        lines += parts
    return [*lines, line] if line else lines


def _pieces(word: str, room: float, size: float) -> list[str]:
    pieces = [""]
    for letter in word:
        if pieces[-1] and width(pieces[-1] + letter, size) > room:
            pieces.append("")
        pieces[-1] += letter
    return pieces


# -- a sheet of SVG --------------------------------------------------------------------------------

STYLE: Final = """
.museum{--ground:#ffffff;--ink:#1d2127;--muted:#565d68;--lane:#c6ccd5;--hold:#3d78d8;--red:#b3261e;
--hatch:#3a3f47;--edge:#d5d9e0}
@media (prefers-color-scheme:dark){.museum{--ground:#15181d;--ink:#e8eaed;--muted:#a9b0bb;
--lane:#474e59;--hold:#4f8df0;--red:#ff8a80;--hatch:#d3d7de;--edge:#363c45}}
.museum text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.museum .muted{fill:var(--muted)}.museum .alarm{fill:var(--red);font-weight:600}
.museum .bold{font-weight:600}
.museum .ground{fill:var(--ground);stroke:var(--edge)}.museum .lane{stroke:var(--lane)}
.museum .hold{fill:var(--hold)}.museum .two{fill:var(--red)}
.museum .asks{stroke:var(--hold);stroke-width:2;stroke-dasharray:2 4}
.museum .hatch{stroke:var(--hatch);stroke-width:2}.museum .stop{stroke:var(--hatch)}
.museum .dot{fill:var(--ink);stroke:var(--ground)}
.museum .wrong{fill:var(--ground);stroke:var(--red);stroke-width:3}
.museum .cross{stroke:var(--ink);stroke-width:3;stroke-linecap:round}
.museum .cut{stroke:var(--ground);stroke-width:7}.museum .rule{stroke:var(--edge)}
"""


class Sheet:
    """What is drawn so far.

    Attributes:
        root: the element of the picture.
        hatch: the fill of a hatched box.
    """

    def __init__(self, slug: str, title: str, desc: str) -> None:
        self.root = Element("svg", {
            "xmlns": "http://www.w3.org/2000/svg", "class": "museum", "role": "img",
            "aria-labelledby": f"{slug}-title {slug}-desc",
        })  # fmt: skip
        for tag, words in (("title", title), ("desc", desc)):
            SubElement(self.root, tag, {"id": f"{slug}-{tag}"}).text = words
        SubElement(self.root, "style").text = STYLE
        self.hatch = f"fill:url(#{slug}-hatch)"
        pattern = SubElement(SubElement(self.root, "defs"), "pattern", {
            "id": f"{slug}-hatch", "width": "6", "height": "6", "patternUnits": "userSpaceOnUse",
            "patternTransform": "rotate(45)",
        })  # fmt: skip
        SubElement(pattern, "line", {"class": "hatch", "y2": "6"})
        self._ground = SubElement(self.root, "rect", {"class": "ground", "rx": "8"})

    def group(self) -> Element:
        """Return a group: what is put into it later lies under what is drawn from now on."""
        return SubElement(self.root, "g")

    def text(self, at: complex, words: str, size: int, kind: str = "", anchor: str = "") -> None:
        """Write a line of text."""
        how = {"x": f"{at.real:g}", "y": f"{at.imag:g}", "font-size": str(size)}
        how |= {"class": kind} if kind else {}
        how |= {"text-anchor": anchor} if anchor else {}
        SubElement(self.root, "text", how).text = words

    def stroke(self, kind: str, start: complex, end: complex, into: Element | None = None) -> None:
        """Draw a straight stroke."""
        ends = {"x1": start.real, "y1": start.imag, "x2": end.real, "y2": end.imag}
        how = {"class": kind} | {key: f"{value:g}" for key, value in ends.items()}
        SubElement(self.root if into is None else into, "line", how)

    def cross(self, at: complex, size: float = 6) -> None:
        """Draw a cross."""
        for slope in (1, -1):
            self.stroke("cross", at - complex(size, slope * size), at + complex(size, slope * size))

    def dot(self, at: complex, radius: float, kind: str = "dot") -> None:
        """Draw a dot."""
        place = {"cx": f"{at.real:g}", "cy": f"{at.imag:g}", "r": f"{radius:g}"}
        SubElement(self.root, "circle", {"class": kind, **place})

    def box(
        self,
        kind: str,
        at: complex,
        size: complex,
        into: Element | None = None,
        *,
        hatched: bool = False,
    ) -> None:
        """Draw a box whose upper left corner is ``at``."""
        sides = {"x": at.real, "y": at.imag, "width": size.real, "height": size.imag}
        how = {"class": kind, "rx": "3"} | {key: f"{value:g}" for key, value in sides.items()}
        how |= {"style": self.hatch} if hatched else {}
        SubElement(self.root if into is None else into, "rect", how)

    def kinds(self) -> set[str]:
        """Return the classes of all that is drawn."""
        return {kind for each in self.root.iter() for kind in each.get("class", "").split()}

    def svg(self, width: int, height: int) -> str:
        """Return it as text, so large."""
        for element, inset in ((self.root, 0), (self._ground, 1)):
            element.attrib |= {"width": str(width - inset), "height": str(height - inset)}
        self._ground.attrib |= {"x": "0.5", "y": "0.5"}
        self.root.set("viewBox", f"0 0 {width} {height}")
        indent(self.root)
        return tostring(self.root, encoding="unicode") + "\n"
