"""The cells of the museum of locks: what is done to a lock, and what must be seen then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .markdown import code, table

if TYPE_CHECKING:
    from dev.museum.cell import Cell


def cells(*keys: str) -> str:
    """Return the table of some cells, in this order.

    Args:
        keys: of cells, as ``setnx-del/killed``.

    Raises:
        ValueError: there is no such cell.
    """
    from dev.museum.table import CELLS  # only the page of the museum needs it

    known = {cell.key: cell for cell in CELLS}
    if missing := set(keys) - known.keys():
        msg = f"the museum has no cell {', '.join(sorted(missing))}"
        raise ValueError(msg)
    chosen = [known[key] for key in keys]
    several = len({cell.lock for cell in chosen}) > 1
    rows = [(_happens(cell, several=several), _seen(cell), code(cell.key)) for cell in chosen]
    return table(("What happens", "What is seen", "Cell"), rows)


def _happens(cell: Cell, *, several: bool) -> str:
    words = cell.fault.words
    return f"{cell.lock.title}: {words}" if several else words[:1].upper() + words[1:]


def _seen(cell: Cell) -> str:
    from dev.museum.checker import Break

    seen = ", ".join(each for each in Break if each in cell.breaks)
    what = f"**{seen}**" if seen else "holds"
    return f"{what}. {cell.why}" if cell.why else what
