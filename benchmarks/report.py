"""The same results three times: for a terminal, as JSON, as Markdown for the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from .answers import answer
from .goals import Verdict
from .result import Cell, Result
from .turns import Spread, number

WIDTH = 120  # of a file or a pipe
LOAD = "load of the machine before"
PINNED = """\
Client and nodes are pinned to processors of their own, except for hand-over and for what says \
*unpinned*."""
DETAILS = "% Below: what the answers come from."  # performance.md includes both halves
BEGIN, END = "<!-- figures of make bench -->", "<!-- end of the figures -->"


def text(cell: Cell) -> str:
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
            "reached": text(verdict.reached),
            "goal": verdict.goal.text,
            "verdict": verdict.text,
        }
        for verdict in verdicts
    ]


# -- for a terminal -------------------------------------------------------------------------------


def show(results: Sequence[Result], verdicts: Sequence[Verdict]) -> None:
    """Print every table, then the answers, the goals last."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for result in results:
        rows = [{head: text(cell) for head, cell in row.items()} for row in result.rows]
        console.print(_table(result.title, rows))
        if result.note:
            console.print(result.note)
        for who, why in result.missing.items():
            console.print(f"not measured: {who} ({why})")
        console.print()
    if verdicts:
        for row in answer(results):
            console.print(f"{row['question']} {row['answer']}", markup=False, highlight=False)
        console.print(_table("Goals", goal_rows(verdicts)))


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    table = Table(title=title)
    for head in rows[0] if rows else ():
        justify: JustifyMethod = "right" if _numeric(rows, head) else "left"
        table.add_column(head, justify=justify, overflow="fold")
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
                "goal": verdict.goal.text,
                "verdict": verdict.text,
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
    short = any(result.milliseconds for result in results)
    answers = answer(results)
    parts = [
        "% Written by `make bench-figures`; the text around it is in performance.md.",
        *([_markdown(answers)] if answers else []),
        DETAILS,
        "Median over the turns, and the quartiles in brackets. " + _about(about),
        *(["## A lock in milliseconds", milliseconds(about, results)] if short else []),
        *(["## Goals", PINNED, _markdown(goal_rows(verdicts))] if verdicts else []),
    ]
    for result in results:
        rows = [{head: text(cell) for head, cell in row.items()} for row in result.rows]
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


def milliseconds(about: Mapping[str, str], results: Sequence[Result]) -> str:
    """The table of the README, and the sentence about it; the page has the same.

    Raises:
        ValueError: nothing of it was measured.
    """
    rows = [row for result in results for row in result.milliseconds]
    if not rows:
        raise ValueError("the short table needs the part `unpinned`")
    return (
        f"{_markdown(rows)}\n\n"
        f"Acquire and release, {about['nodes']} and the client on one machine, by "
        "`make bench-figures`."
    )


def into_readme(readme: Path, short: str) -> None:
    """Replace the short table of the README."""
    before, rest = readme.read_text().split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}\n{short}\n{END}{after}")
