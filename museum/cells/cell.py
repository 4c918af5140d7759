"""A recipe in a run, and what must be seen there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from museum.checker import Break
from museum.exhibits import Exhibit
from museum.runs import Run


@dataclass(frozen=True)
class Cell:
    """One cell of the table.

    Attributes:
        breaks: what must be seen: exactly these; none means that the lock holds.
        why: how it comes to that, for people.
    """

    exhibit: Exhibit
    run: Run
    breaks: frozenset[Break]
    why: str

    @property
    def key(self) -> str:
        """Its name in commands and pictures."""
        return f"{self.exhibit.key}/{self.run.key}"


def holds(exhibit: Exhibit, *runs: Run, why: str = "") -> Iterable[Cell]:
    """Return cells in which nothing breaks."""
    return [Cell(exhibit, run, frozenset(), why) for run in runs]


def breaks(exhibit: Exhibit, run: Run, *seen: Break, why: str) -> Cell:
    """Return a cell in which the lock breaks, in these ways and no other."""
    return Cell(exhibit, run, frozenset(seen), why)
