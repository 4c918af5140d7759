"""The tables of the pages, as data."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Table(NamedTuple):
    """A table of a page: its header and its rows, cell by cell."""

    page: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> list[str]:
        """The cells below a header."""
        return [row[self.header.index(name)] for row in self.rows]


def cells(line: str) -> tuple[str, ...]:
    r"""The cells of a line; ``\|`` is a character."""
    parts = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return tuple(part.strip().replace("\\|", "|") for part in parts)


@cache
def tables(page: str) -> tuple[Table, ...]:
    """All tables of a page, in order."""
    lines = (ROOT / page).read_text().splitlines()
    found = []
    for number, line in enumerate(lines):
        if number and re.fullmatch(r"(\| *:?-+:? *)+\|", line):
            rows = []
            for row in lines[number + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append(cells(row))
            found.append(Table(page, cells(lines[number - 1]), tuple(rows)))
    return tuple(found)


def table(page: str, *header: str) -> Table:
    """The one table of a page whose header begins so."""
    (found,) = [each for each in tables(page) if each.header[: len(header)] == header]
    return found


def codes(cell: str) -> list[str]:
    """What a cell has in code style."""
    return re.findall(r"`([^`]+)`", cell)


def first_codes(found: Table) -> list[str]:
    """What the first cells of a table's rows have in code style, in order."""
    return [code for row in found.rows for code in codes(row[0])]
