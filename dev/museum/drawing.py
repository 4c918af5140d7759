"""A sheet of paper for pictures as SVG: words in lines that fit, boxes, lines, arrows.

A sheet is as wide as a telephone, and as high as what is on it. It has a ground of its own, and
colours for light and dark, because a page that shows it as an image lends it neither. Fonts are
those of the reader's machine, so words are measured by the widest of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

WIDTH, EDGE, LINE = 390, 10, 17  # px: of the sheet, of its margin, of a line of words
ABOVE = 13  # px: from the top of a line to its foot
# Hundredths of the size of the letters, in DejaVu Sans, which is wider than other fonts of systems.
_WIDE: Final = {
    28: "'", 32: " ,.IJijl", 36: "-/:;\\f|", 41: "!()[]rt", 46: '"', 50: "*_`sz", 56: "?Lc",
    61: "FPTYaekovxy", 65: "0123456789$EKSbdghnpqu{}", 70: "ABCRVXZ", 75: "DGHNU", 82: "&OQw",
    86: "#+<=>M^~", 97: "%m", 100: "@W",
}  # fmt: skip
_HUNDREDTHS: Final = {letter: wide for wide, letters in _WIDE.items() for letter in letters}
SIZES: Final = {"small": 12, "code": 12}  # px; else 13
STYLE: Final = """
.museum{--ground:#ffffff;--ink:#1d2127;--muted:#565d68;--lane:#c6ccd5;--hold:#3d78d8;--red:#b3261e;
--hatch:#3a3f47;--edge:#d5d9e0}
@media (prefers-color-scheme:dark){.museum{--ground:#15181d;--ink:#e8eaed;--muted:#a9b0bb;
--lane:#474e59;--hold:#4f8df0;--red:#ff8a80;--hatch:#d3d7de;--edge:#363c45}}
.museum text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.museum .muted{fill:var(--muted)}.museum .alarm{fill:var(--red);font-weight:600}
.museum .bold{font-weight:600}.museum .end{text-anchor:end}.museum .middle{text-anchor:middle}
.museum .ground{fill:var(--ground);stroke:var(--edge)}.museum .lane{stroke:var(--lane)}
.museum .hold{fill:var(--hold)}.museum .two{fill:var(--red)}
.museum .hatch,.museum .stop{stroke:var(--hatch)}.museum .stop{fill:url(#hatch)}
.museum .dot{fill:var(--ink);stroke:var(--ground)}
.museum .wrong{fill:var(--ground);stroke:var(--red);stroke-width:3}
.museum .cut{stroke:var(--edge);stroke-width:7}
"""
_SVG: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" class="museum" role="img" aria-labelledby="title desc" \
width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<title id="title">{title}</title>
<desc id="desc">{desc}</desc>
<style>{style}</style>
<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" \
patternTransform="rotate(45)"><line class="hatch" y2="6" stroke-width="2"/></pattern></defs>
<rect class="ground" rx="8" x="0.5" y="0.5" width="{inner_width}" height="{inner_height}"/>
{body}
</svg>
"""


class Sheet:
    """What is drawn so far, from the top down to ``y``: ``under`` lies under ``over``."""

    def __init__(self) -> None:
        self.y = float(EDGE)
        self.under: list[str] = []
        self.over: list[str] = []

    def svg(self, title: str, desc: str, style: str = "") -> str:
        """Return what is drawn, as a file.

        Args:
            title: what it shows.
            desc: the same as it, in words, for those who do not see it.
            style: more classes.
        """
        height = round(self.y + EDGE)
        return _SVG.format(
            width=WIDTH,
            height=height,
            inner_width=WIDTH - 1,
            inner_height=height - 1,
            title=_escaped(title),
            desc=_escaped(desc),
            style=STYLE + style,
            body="\n".join([*self.under, *self.over]),
        )

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Write words in one line, whose foot is at ``y``."""
        self.over.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{_escaped(words)}</text>')

    def paragraph(
        self, words: str, kind: str = "", left: float = EDGE, right: float = WIDTH - EDGE
    ) -> None:
        """Write words in lines that fit."""
        for line in lines(words, kind, right - left):
            x = (left + right) / 2 if "middle" in kind.split() else left
            self.text(x, self.y + ABOVE, line, kind)
            self.y += LINE


def lines(words: str, kind: str, room: float) -> Iterator[str]:
    """Break words into lines that have room."""
    line = ""
    for word in words.split(" "):
        longer = f"{line} {word}" if line else word
        if line and width(longer, kind) > room:
            yield line
            longer = word
        line = longer
    if line:
        yield line


def width(words: str, kind: str = "") -> float:
    """Return how many px some words may take."""
    kinds = kind.split()
    size = min(SIZES.get(each, 13) for each in [*kinds, ""])
    if "code" in kinds:
        return 0.602 * size * len(words)
    hundredths = sum(_HUNDREDTHS.get(letter, 100) for letter in words)
    return hundredths / 100 * size * (1.12 if {"bold", "alarm"} & set(kinds) else 1)


def box(kind: str, x: float, y: float, width: float, height: float) -> str:
    """Return a rectangle."""
    size = f'width="{width:g}" height="{height:g}"'
    return f'<rect class="{kind}" rx="3" x="{x:g}" y="{y:g}" {size}/>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line."""
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _escaped(text: str) -> str:
    return escape("".join(filter(str.isprintable, text.replace("\N{NO-BREAK SPACE}", " "))))
