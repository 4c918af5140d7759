"""How wide words are, and where they are broken: a picture does not know the reader's fonts.

The widths are those of DejaVu Sans, which is among the widest; in other fonts words end earlier.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

TEXT: Final = 13  # px; a phone shows a picture at its own size, or larger
SMALL: Final = 12
LINE: Final = 17
NARROW, SLIM, WIDE = set("ijlI|!'.,:;` "), set('frt()[]{}-/\\"J'), set("mwMWQ@%—…&")
BOLD: Final = 1.13


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
