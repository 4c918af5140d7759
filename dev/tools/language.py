"""Warn of words and shapes that make pages hard to read: ``file:line: what, and what to write``.

    python -m dev.tools.language                            # all pages, with sums
    python -m dev.tools.language docs/how-to/locks.md       # these

A warning is no error: a sentence may be right as it is. The list has what came back most when
people read these pages, and what they said of it. A paragraph with ``<!-- language: off -->`` above
it is left alone.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from .prose import ROOT, pages, pieces, sentences

OFF: Final = "<!-- language: off -->"
LONG: Final = 30  # words
SHORT: Final = 3  # a heading of a paragraph, in bold
MANY: Final = 3  # joints
# What came back most, and what to write in its place.
WORDS: Final = {
    r"\b(?:is|are|was|be|been) told\b|\btells? (?:of|so|that)\b": "answered, reports, says",
    r"\b(?:is|are|was|were) (?:not )?to be had\b|\bbe had\b": "fails, is missing",
    r"\bof (?:which|these|those|whom)\b": "repeat the noun",
    r"\b(?:is|are) no \w+(?=[,.;:]|$)": "is not a …",
    r"\b(?:says?|means?|is|are) no (?:more|less)\b": "write what holds now",
    r"\ball the same\b|\bas ever\b|\bfor good\b|\bat the most\b": "leave it out, or name the limit",
    r"\bin vain\b|\bsomebody else's\b|\bit is so\b|\bso it is\b": "write what happens",
    r"\bwhat (?:that|this|it|has|was|becomes)\b": "name the thing",
    r"\bthose (?:of|that|who)\b|\bthat of\b": "repeat the noun",
    r"\bthe (?:former|latter|others|rest)\b|\bthe (?:same|other)(?=[,.;:]|$)": "repeat the noun",
    r"\b(?:neither|nor)\b": "two sentences, each with its verb",
    r"\bwherever|whatever|whichever|however it\b": "name the cases",
    r"\bunless .*\bunless\b|\bexcept .*\bexcept\b|\bnot .*\bunless\b": "one closing list",
    r"\b(?:play|plays|played)\b": "a test, a run",
    r"\bfloors?\b|\bhouse\b": "a layer",
    r"\bmostly\b|\brather\b|\bquite\b|\bsurely\b": "leave it out",
}
# A reader who comes from a search does not know what these stand for.
PRONOUN: Final = re.compile(
    r"(?:It|They|That|Those|He|She|Both|Neither|Others)\b(?! is why)"
    r"|(?:This|These|One|Another|Such)(?= (?:is|are|has|have|was|were|may|can|that|of|which)\b)"
)
JOINT: Final = re.compile(
    r"; |: (?=\w+ \w+ \w+)|, (?:and|but|so|or|which|who|because|since|where|as|if|unless|although) "
    r"| (?:unless|except|although|whereas) "
)
CLAUSE: Final = "one rule a sentence"


class Remark(NamedTuple):
    """One warning."""

    line: int
    what: str
    instead: str
    sentence: str


def remarks(text: str) -> Iterator[Remark]:
    """Yield the warnings about a page, by line."""
    lines = text.splitlines()
    for piece in pieces(text):
        if piece.kind != "prose" or (piece.line > 1 and lines[piece.line - 2].strip() == OFF):
            continue
        for line, sentence in sentences(piece):
            yield from _of_sentence(line, sentence)


def _of_sentence(line: int, sentence: str) -> Iterator[Remark]:
    count = len(sentence.split())
    for pattern, instead in WORDS.items():
        found = re.search(pattern, sentence, re.IGNORECASE)
        if found:
            yield Remark(line, f'"{found[0]}"', instead, sentence)
    if count > SHORT and (pronoun := PRONOUN.match(sentence)):
        yield Remark(line, f'begins with "{pronoun[0]}"', "repeat the noun", sentence)
    if count > LONG:
        yield Remark(line, f"{count} words", CLAUSE, sentence)
    elif len(JOINT.findall(sentence)) >= MANY:
        yield Remark(line, "three rules in one sentence", CLAUSE, sentence)


def main(paths: list[str]) -> None:
    """Print the warnings about these pages; without any, about all, with sums."""
    found: Counter[str] = Counter()
    for page in [Path(each).resolve() for each in paths] or pages():
        name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else str(page)
        for each in remarks(page.read_text(encoding="utf-8")):
            found[name] += 1
            print(f"{name}:{each.line}: {each.what}: {each.instead}")
    if not paths:
        print("\nWarnings, by page:")
        for name, number in found.most_common():
            print(f"{number:>6}  {name}")
        print(f"{found.total():>6}  in all")


if __name__ == "__main__":
    main(sys.argv[1:])
