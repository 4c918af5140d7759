"""The pages in pieces: prose, tables, code and what is made of the code, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
INCLUDED: Final = frozenset({"museum-table.md", "performance-figures.md"})
FENCE: Final = re.compile(r"^ *(`{3,}|:{3,})(.*)$")
COMMENT: Final = "-->"  # the end of a line that is generated, and of its arguments
# Directives whose body is prose.
PROSE_INSIDE: Final = frozenset({"{warning}", "{note}", "{tip}", "{important}", "{admonition}"})
CODE: Final = re.compile(r"`[^`]*`")
LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
SIGNS: Final = re.compile(
    r"^ *([-*] |\d+\. |#+ |: |> )|[*_]{1,2}(?=\S)|(?<=\S)\*{1,2}", re.MULTILINE
)
WORD: Final = re.compile(r"\w[\w'’.,:/–-]*")  # noqa: RUF001 - signs of prose


class Piece(NamedTuple):
    """Some lines of a page: "prose", "table", "code" or "generated"; the number of the first."""

    kind: str
    line: int
    text: str


def pages() -> list[Path]:
    """Return the pages of the site, and the README."""
    found = [*DOCS.glob("*.md"), *DOCS.glob("[!_]*/*.md")]
    ours = [each for each in found if each.parent.name != "dev" and each.name not in INCLUDED]
    return [ROOT / "README.md", *sorted(ours)]


def pieces(text: str) -> Iterator[Piece]:
    """Yield the pieces of a page, in order; a blank line ends a piece of prose."""
    kind, begun, lines = "", 0, list[str]()
    fence = ""
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        found, fence = _kind(line, fence)
        if found != kind or (kind == "prose" and _begins(line)):
            if lines:
                yield Piece(kind, begun, "\n".join(lines))
            kind, begun, lines = found, number, []
        if found:
            lines.append(line)
    if lines:
        yield Piece(kind, begun, "\n".join(lines))


def _kind(line: str, fence: str) -> tuple[str, str]:
    """Return the kind of a line, "" of a blank one, and the fence that is open after it."""
    mark = FENCE.match(line)
    if fence == COMMENT or (not fence and line.lstrip().startswith("<!-- generated:")):
        return "generated", "" if line.endswith(COMMENT) else COMMENT
    if fence:
        closes = mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not mark[2]
        return "code", "" if closes else fence
    opens = mark and not (mark[1][0] == ":" and mark[2].split(" ")[0] in {"", *PROSE_INSIDE})
    if mark and opens:
        return "code", mark[1]
    if mark or not line.strip() or re.match(r"^%|^\(.+\)=$|^ *<!-- (?!generated:)", line):
        return "", ""
    return ("table" if line.lstrip().startswith("|") else "prose"), ""


def _begins(line: str) -> bool:
    """Whether a line of prose begins a paragraph of its own: a heading, an item of a list."""
    return bool(re.match(r" *([-*] |\d+\. |#|: )", line))


def plain(text: str) -> str:
    """Return prose without its signs: code is one word, a link its text."""
    text = LINK.sub(r"\1", CODE.sub("CODE", text))
    return SIGNS.sub("", text)


def words(text: str) -> int:
    """Count words."""
    return len(WORD.findall(text))
