r"""Match names against patterns as shells and the servers' ``KEYS`` have them.

    *          any characters, or none; ``:`` and ``/`` are characters like others
    ?          one character
    [abc]      one of these; [a-z] one from a range, [!abc] or [^abc] one of all others
    \*         the character itself; so \?, \[, \] and \\

A ``[`` without its ``]`` means itself, and so does a ``\`` before any other character.
Parsing takes a time that grows with the length, and matching never backtracks over a ``*``, so no
pattern is slow: users write patterns.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from django_redlock.core import names
from django_redlock.core.reasons import Sentence

LONGEST: Final = 2 * names.LONGEST  # characters: each one of a name may need a backslash
SPECIAL: Final = "*?[]\\"


class Parsed(NamedTuple):
    """A parsed pattern.

    Attributes:
        is_pattern: whether it has a wildcard; else it means one name.
        name: that name, without the backslashes; of a pattern, the text as it is.
        regex: matches the names that the pattern means.
    """

    is_pattern: bool
    name: str
    regex: re.Pattern[str]

    def matches(self, name: str) -> bool:
        """Return True if the pattern means this name."""
        return self.regex.fullmatch(name) is not None


def parse(text: str, *, ignore_case: bool = False) -> Parsed:
    """Parse a text as a pattern; every text is one that is not too long.

    Raises:
        ValueError: it is longer than ``LONGEST``.
    """
    if len(text) > LONGEST:
        begin = text[: names.READABLE]
        raise ValueError(
            Sentence(
                "the pattern {begin!r}… is longer than {most} characters", begin=begin, most=LONGEST
            )
        )
    parts: list[str | None] = []  # regular expressions of one character each; None is a "*"
    plain, is_pattern, at = "", False, 0
    closed = True  # whether a "]" may follow: where one "[" has none, no later "[" has one
    while at < len(text):
        char, after = text[at], text[at + 1 : at + 2]
        length = 1
        part: str | None = re.escape(char)
        if char == "\\" and after and after in SPECIAL:
            length, part, char = 2, re.escape(after), after
        elif char == "*":
            is_pattern, part = True, None
        elif char == "?":
            is_pattern, part = True, "."
        elif char == "[" and closed:
            found = _one_of(text, at)
            closed = found is not None
            if found:
                is_pattern, (part, length) = True, found
        plain += char
        if part is not None or parts[-1:] != [None]:
            parts.append(part)
        at += length
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    return Parsed(is_pattern, text if is_pattern else plain, re.compile(_join(parts), flags))


def _one_of(text: str, start: int) -> tuple[str, int] | None:
    """Return the regular expression and the length of the ``[…]`` at ``start``, or None."""
    at = start + 1
    negated = text[at : at + 1] in {"!", "^"}
    at += negated
    chars: list[str] = []
    first = at
    while at < len(text) and (text[at] != "]" or at == first):
        at += text[at] == "\\" and at + 1 < len(text)
        chars.append(text[at])
        if text[at + 1 : at + 2] == "-" and text[at + 2 : at + 3] not in {"", "]"}:
            at += 2
            at += text[at] == "\\" and at + 1 < len(text)
            low, high = sorted((chars.pop(), text[at]))
            chars.append(f"{re.escape(low)}-{re.escape(high)}")
        else:
            chars[-1] = re.escape(chars[-1])
        at += 1
    if at >= len(text):
        return None
    return f"[{'^' if negated else ''}{''.join(chars)}]", at + 1 - start


def _join(parts: list[str | None]) -> str:
    """Join the parts into one regular expression that never backtracks over a ``*``."""
    pieces: list[str] = []
    piece = ""
    for part in parts:
        if part is None:
            pieces.append(piece)
            piece = ""
        else:
            piece += part
    if not pieces:
        return piece
    first, *middle = pieces
    return first + "".join(f"(?>.*?{each})" for each in middle) + f".*{piece}"
