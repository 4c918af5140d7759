"""The same results three times: for a terminal, as JSON, as Markdown for the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .goals import Verdict
from .results import Cell, Result
from .turns import Spread

LOAD = "load of the machine before"
BEGIN, END = "<!-- figures of make bench -->", "<!-- end of the figures -->"


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def words(cell: Cell) -> str:
    """A cell as text; a spread is its median, and the quartiles in brackets."""
    if cell is None:
        return "–"
    if isinstance(cell, Spread):
        if cell.low == cell.high:
            return number(cell.median)
        return f"{number(cell.median)} ({number(cell.low)}–{number(cell.high)})"
    return cell if isinstance(cell, str) else number(cell)


def goal_rows(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """The table of goals."""
    return [
        {
            "figure": verdict.goal.figure,
            "reached": words(verdict.reached),
            "goal": verdict.goal.words,
            "verdict": verdict.words,
        }
        for verdict in verdicts
    ]


# -- for a terminal -------------------------------------------------------------------------------


def show(results: Sequence[Result], verdicts: Sequence[Verdict]) -> None:
    """Print every table, the goals last."""
    console = Console()
    for result in results:
        rows = [{head: words(cell) for head, cell in row.items()} for row in result.rows]
        console.print(_table(result.title, rows))
        if result.note:
            console.print(result.note)
        for who, why in result.missing.items():
            console.print(f"not measured: {who} ({why})")
        console.print()
    console.print(_table("Goals", goal_rows(verdicts)))


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    table = Table(title=title)
    for head in rows[0] if rows else ():
        table.add_column(head, justify="right" if _numeric(rows, head) else "left")
    for row in rows:
        table.add_row(*row.values())
    return table


def _numeric(rows: Sequence[Mapping[str, str]], head: str) -> bool:
    return all(re.match(r"[\d–]", row[head]) for row in rows)


# -- as JSON --------------------------------------------------------------------------------------


def as_json(
    about: Mapping[str, str], results: Mapping[str, Result], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """Everything, with the numbers as they were measured."""
    return {
        "about": dict(about),
        "goals": [
            {
                "figure": verdict.goal.figure,
                "reached": _plain(verdict.reached),
                "goal": verdict.goal.words,
                "verdict": verdict.words,
            }
            for verdict in verdicts
        ],
        "parts": {
            name: asdict(result)
            | {
                "rows": [{k: _plain(v) for k, v in row.items()} for row in result.rows],
                "figures": {k: _plain(v) for k, v in result.figures.items()},
            }
            for name, result in results.items()
        },
    }


def _plain(cell: Cell) -> object:
    return cell._asdict() if isinstance(cell, Spread) else cell


# -- as Markdown ----------------------------------------------------------------------------------


def as_markdown(
    about: Mapping[str, str], results: Sequence[Result], verdicts: Sequence[Verdict]
) -> str:
    """The tables, for a page that includes them."""
    parts = [
        "% Written by `make bench-figures`; the text around it is in performance.md.",
        "Median over the turns, and the quartiles in brackets. " + _about(about),
        "## Goals",
        _markdown(goal_rows(verdicts)),
    ]
    for result in results:
        rows = [{head: words(cell) for head, cell in row.items()} for row in result.rows]
        parts += [f"## {result.title}", *([result.note] if result.note else []), _markdown(rows)]
        parts += [f"Not measured: {who} ({why})." for who, why in result.missing.items()]
    return "\n\n".join(parts) + "\n"


def _about(about: Mapping[str, str]) -> str:
    return "; ".join(f"{what}: {value}" for what, value in about.items()) + "."


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    heads = list(rows[0]) if rows else []
    rule = ["---:" if _numeric(rows, head) else "---" for head in heads]
    lines = [heads, rule, *([row[head] for head in heads] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def into_readme(readme: Path, about: Mapping[str, str], verdicts: Sequence[Verdict]) -> None:
    """Replace the short table of the README, which has the goals that were measured."""
    rows = [row for row in goal_rows(verdicts) if row["reached"] != "–"]
    how = f"Effort: {about['effort']}; {LOAD}: {about[LOAD]}."
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{_markdown(rows)}\n\n{how}\n{END}{after}")
