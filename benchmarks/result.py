"""What a part of the bench hands over: a table for people, figures for the goals."""

from __future__ import annotations

from dataclasses import dataclass, field

from .turns import Spread

Cell = Spread | float | int | str | None


@dataclass
class Result:
    """One part's outcome.

    Attributes:
        title: what was measured.
        note: how to read it.
        rows: of cells by column; all rows have the same columns.
        figures: by name, those that a goal may be set for.
        missing: who was not measured, and why.
        versions: of the libraries that were.
        milliseconds: of one lock by client, unpinned: the table of the README.
    """

    title: str
    note: str = ""
    rows: list[dict[str, Cell]] = field(default_factory=list)
    figures: dict[str, Spread | None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    milliseconds: list[dict[str, str]] = field(default_factory=list)
