"""What several plays of a cell showed, and whether that is what must be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .cells import Cell
from .play import Played

SPARED = 20  # of so many plays one may show something else, where the lock breaks by a fault


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
