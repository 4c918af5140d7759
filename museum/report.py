"""What the museum prints and writes: a table, a list of what is wrong, JSON, Markdown, pictures."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django_redlock.inspection.rows import Span, Table

from .cells import Cell
from .checker import Break, Findings
from .play import Played
from .timeline import draw

NONE: Final = "-"
FIGURES: Final[dict[Break, Callable[[Findings], float]]] = {
    Break.TWO: lambda found: len(found.overlaps),
    Break.STUCK: lambda found: round(found.stuck, 1),
    Break.LOST: lambda found: found.lost,
    Break.FENCES: lambda found: found.fences,
    Break.STARVED: lambda found: found.passed,
}
HEADS: Final = {
    Break.TWO: "two",
    Break.STUCK: "stuck",
    Break.LOST: "lost",
    Break.FENCES: "fences",
    Break.STARVED: "passed",
}
MEANING: Final = (
    "two: how often two clients held the lock at once; stuck: seconds for which nobody could have"
    " it; lost: lost updates; fences: out of order; passed: who came later and got the lock first"
)
SPARED: Final = 20  # of so many plays one may show something else, where the lock breaks by a fault


@dataclass(frozen=True)
class Tally:
    """A cell and its plays.

    Attributes:
        plays: those that took place.
        absent: why it was not played; "": it was.
    """

    cell: Cell
    plays: Sequence[Played]
    absent: str = ""

    @property
    def expected(self) -> int:
        """How many plays showed what they must."""
        return sum(each.is_expected for each in self.plays)

    @property
    def needed(self) -> int:
        """How many plays must show it: of a lock that holds all, of one that breaks 19 of 20."""
        count = len(self.plays)
        return count - count // SPARED if self.cell.breaks else count

    @property
    def is_well(self) -> bool:
        """Whether enough plays showed what they must."""
        return self.expected >= self.needed

    @property
    def complaint(self) -> str:
        """What was not as expected; "": nothing."""
        if self.is_well:
            return ""
        wrong = Counter(_seen(each) for each in self.plays if not each.is_expected)
        count = len(self.plays)
        if count == 1:
            (only,) = self.plays
            saw = _seen(only) if only.error else f"saw {_seen(only)}"
            return f"{self.cell.key}: expected {named(self.cell.breaks)}, {saw}"
        listed = "; ".join(f"{saw} ({times})" for saw, times in wrong.most_common())
        expected = f"{named(self.cell.breaks)} in {self.needed} of {count} plays"
        return f"{self.cell.key}: expected {expected}, saw it in {self.expected}; else {listed}"

    @property
    def shown(self) -> Played | None:
        """The play whose picture is drawn: the first one that is as it must be, or the first."""
        drawable = [each for each in self.plays if each.events]
        return next(iter(sorted(drawable, key=lambda each: not each.is_expected)), None)


def named(breaks: Iterable[str]) -> str:
    """Name what is broken."""
    return ", ".join(sorted(breaks)) or "nothing"


def _seen(played: Played) -> str:
    return f"could not be played: {played.error}" if played.error else named(played.seen)


def tallies(cells: Sequence[Cell], played: Iterable[Played]) -> list[Tally]:
    """Return a tally for each cell, in this order."""
    by_cell: dict[str, list[Played]] = {cell.key: [] for cell in cells}
    for each in played:
        by_cell[each.cell.key].append(each)
    return [
        Tally(
            cell,
            [each for each in by_cell[cell.key] if not each.absent],
            next((each.error for each in by_cell[cell.key] if each.absent), ""),
        )
        for cell in cells
    ]


def table(found: Sequence[Tally]) -> Table:
    """Return the table for a terminal: a row for each cell."""
    heads = ("cell", "what happens", *HEADS.values(), "expected")
    return Table(heads, [_row(each) for each in found], folded=(1,))


def _row(tally: Tally) -> list[Span]:
    cells = [Span(figure, "bad" if figure != NONE else "") for figure in _figures(tally)]
    mood = "quiet" if tally.absent else "good" if tally.is_well else "bad"
    words = tally.cell.run.words
    return [Span(tally.cell.key), Span(words), *cells, Span(_verdict(tally), mood)]


def _figures(tally: Tally) -> list[str]:
    """How much of each break was seen, from the least to the most that a play showed."""
    return [_range(kind, tally.plays) for kind in Break]


def _range(kind: Break, plays: Sequence[Played]) -> str:
    found = [FIGURES[kind](each.findings) if kind in each.seen else 0 for each in plays]
    if not any(found):
        return NONE
    low, high = f"{min(found):g}", f"{max(found):g}"
    return low if low == high else f"{low} to {high}"


def _verdict(tally: Tally) -> str:
    if tally.absent:
        return "not played"
    if len(tally.plays) == 1:
        return "yes" if tally.is_well else "no"
    return f"{tally.expected} of {len(tally.plays)}"


def complaints(found: Sequence[Tally]) -> list[str]:
    """Return what was not as expected, a sentence each."""
    return [each.complaint for each in found if each.complaint]


def absences(found: Sequence[Tally]) -> list[str]:
    """Return what was not played, and why."""
    return [f"{each.cell.key} was not played: {each.absent}" for each in found if each.absent]


def document(found: Sequence[Tally], *, seed: int, runs: int) -> dict[str, Any]:
    """Return the document of ``--json``."""
    return {
        "seed": seed,
        "runs": runs,
        "python": platform.python_version(),
        "cells": [_cell(each) for each in found],
        "not_as_expected": complaints(found),
        "not_played": absences(found),
    }


def _cell(tally: Tally) -> dict[str, Any]:
    cell = tally.cell
    return {
        "cell": cell.key,
        "recipe": cell.exhibit.key,
        "title": cell.exhibit.title,
        "fault": cell.run.fault,
        "what_happens": cell.run.words,
        "expected": sorted(cell.breaks),
        "why": cell.why,
        "as_expected": tally.expected,
        "needed": tally.needed,
        "absent": tally.absent,
        "plays": [_play(each) for each in tally.plays],
    }


def _play(played: Played) -> dict[str, Any]:
    found = played.findings
    return {
        "seen": sorted(played.seen),
        "two_holders": len(found.overlaps),
        "stuck_seconds": round(found.stuck, 3),
        "lost_updates": found.lost,
        "fences_out_of_order": found.fences,
        "overtaken": found.passed,
        "error": played.error,
    }


def markdown(found: Sequence[Tally], command: str) -> str:
    """Return the table as a page includes it, with the command that made it."""
    heads = ["Lock", "What happens", "Two holders at once", "Stuck, s", "Lost updates"]
    heads += ["Fences out of order", "Overtaken", "As expected"]
    rows = [heads, ["---", "---", *["---:"] * (len(heads) - 2)]]
    for each in found:
        cell = each.cell
        rows.append([cell.exhibit.title, cell.run.words, *_figures(each), _verdict(each)])
    lines = [f"<!-- Generated by `{command}`. -->", ""]
    lines += [f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in rows]
    return "\n".join([*lines, ""])


def picture(cell: Cell) -> str:
    """Return the name of the file with the picture of a cell."""
    return f"{cell.key.replace('/', '.')}.svg"


def write_pictures(found: Sequence[Tally], folder: Path) -> int:
    """Draw each cell that was played; return how many."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [(each.cell, each.shown) for each in found]
    for cell, played in drawn:
        if played is not None:
            (folder / picture(cell)).write_text(draw(played), encoding="utf-8")
    return sum(played is not None for _, played in drawn)


def told(played: Played) -> str:
    """Say in one sentence what a play showed."""
    if played.error:
        return f"{played.cell.key}: {played.error}"
    as_expected = "as expected" if played.is_expected else "NOT as expected"
    return f"{played.cell.key}: {named(played.seen)}, {as_expected}"
