"""Markdown, and what docstrings and notes become in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
NOTES: Final = ROOT / "docs" / "notes.toml"
ROLE: Final = re.compile(r":\w+(?::\w+)?:`~?([^`]+)`")
LITERAL: Final = re.compile(r"``(.+?)``")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar in a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_cell(each) for each in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """Return a text in code style."""
    return f"`{text}`"


def of_docstring(text: str) -> str:
    """Return the prose of a docstring as Markdown, on one line."""
    return LITERAL.sub(r"`\1`", ROLE.sub(r"`\1`", " ".join(text.split())))


@cache
def _notes() -> dict[str, Any]:
    return tomllib.loads(NOTES.read_text(encoding="utf-8"))


def notes(*path: str) -> dict[str, str]:
    """Return the notes of one table of the file."""
    found: Any = _notes()
    for each in path:
        found = found[each]
    return {key: value for key, value in found.items() if isinstance(value, str)}


def noted(things: Iterable[str], *path: str, all_of_them: bool = True) -> dict[str, str]:
    """Return the note of each thing; "" where it needs none.

    Raises:
        ValueError: a note is about nothing; or, if all of them need one, a thing has none.
    """
    known, wanted = notes(*path), list(things)
    superfluous = known.keys() - set(wanted)
    missing = set(wanted) - known.keys() if all_of_them else set()
    if superfluous or missing:
        msg = (
            f"{NOTES.name}, [{'.'.join(path)}]: no note for {sorted(missing)}, and nothing that "
            f"{sorted(superfluous)} is about"
        )
        raise ValueError(msg)
    return {each: known.get(each, "") for each in wanted}
