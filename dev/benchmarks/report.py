"""The same results for a terminal and as Markdown, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .measure import Cell, Result, Spread

Rows = Sequence[Mapping[str, Cell]]

LOAD = "load of the machine before"
PINNED = """\
Client and nodes are pinned to processors of their own, except for hand-over and for what says \
*unpinned*."""
COMMAND = '`make bench ARGS="--figures ."`'
WRITTEN = f"% Written by {COMMAND}; the text around it is in performance.md."
PAGE = "docs/explanation/performance-figures.md"
DETAILS = "% Below: what the answers come from."  # performance.md includes both halves

# What users ask, and the answer, with a figure's name where its median belongs.
ANSWERS = {
    "How long does a lock take?": """\
To acquire and release a free name on five nodes: {unpinned: threads, ms} ms by a thread, \
{unpinned: asyncio, ms} ms by a task, in the median. With 1 ms each way between client and nodes, \
to acquire takes {1 ms away: threads, round trips to acquire} round trips.""",
    "How many a second?": """\
One process: {unpinned: 1 thread: locks per second} by one thread, \
{unpinned: 8 threads: locks per second} by eight threads, \
{unpinned: 1000 tasks, as it is: locks per second} by 1,000 tasks of one event loop, \
{unpinned: 1000 tasks, all settings: locks per second} with the settings for thousands of locks.""",
    "What does a hung node cost?": """\
With one node of five hung a lock takes {one node hung ÷ all well, threads} times as long as with \
all well by a thread, {one node hung ÷ all well, asyncio} times by a task. A process in that \
node's queue waits at most {queue's node hung: longest wait, s more} s longer.""",
    "How long does a waiter wait?": """\
For its turn: of 8 processes that hold a name for 5 ms each, one waits {8 waiters: wait, p50, ms} \
ms in the median, 35 of them for the seven others, and 99 of 100 waits take at most \
{8 waiters: wait, p99, ms} ms. From a release to the next one's return it takes \
{8 waiters: release to the next one's return, ms} ms.""",
}


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 100 or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def text(cell: Cell) -> str:
    """A cell as text; a spread is its median, and the quartiles in brackets."""
    if cell is None:
        return "–"
    if isinstance(cell, Spread):
        if cell.low == cell.high:
            return number(cell.median)
        return f"{number(cell.median)} ({number(cell.low)}–{number(cell.high)})"
    return cell if isinstance(cell, str) else number(cell)


def answers(results: Sequence[Result]) -> Rows:
    """A row for each question of which some figure was measured; a dash for what was not."""
    figures = {name: each.reached for result in results for name, each in result.figures.items()}

    def found(name: re.Match[str]) -> str:
        spread = figures.get(name[1])
        return "–" if spread is None else number(spread.median)

    return [
        {"question": question, "answer": re.sub(r"\{(.+?)\}", found, answer)}
        for question, answer in ANSWERS.items()
        if any(figures.get(name) for name in re.findall(r"\{(.+?)\}", answer))
    ]


def goals(results: Sequence[Result]) -> Rows:
    """The figures that have a goal."""
    return [
        {"figure": name, "reached": each.reached, "goal": each.goal, "verdict": each.verdict}
        for result in results
        for name, each in result.figures.items()
        if each.most is not None or each.least is not None
    ]


def page(about: Mapping[str, str], results: Sequence[Result], *, wide: bool = False) -> str:
    """The answers, and the tables that they come from; ``wide``: in columns, for a terminal."""
    versions = {name: each for result in results for name, each in result.versions.items()}
    told = "; ".join(f"{what}: {value}" for what, value in {**about, **versions}.items())
    parts = [] if wide else [WRITTEN]
    parts += [table(rows, wide=wide)] if (rows := answers(results)) else []
    parts += [] if wide else [DETAILS]
    parts += [f"Median over the turns, and the quartiles in brackets. {told}."]
    if any(result.short for result in results):
        parts += ["## A lock in milliseconds", milliseconds(about, results)]
    if rows := goals(results):
        parts += ["## Goals", PINNED, table(rows, wide=wide)]
    for result in results:
        parts += [f"## {result.title}", *([result.note] if result.note else [])]
        parts += [table(result.rows, wide=wide)]
        parts += [f"Not measured: {who} ({why})." for who, why in result.missing.items()]
    return "\n\n".join(parts) + "\n"


def table(rows: Rows, *, wide: bool = False) -> str:
    """A table in Markdown; numbers stand on the right."""
    lines = [
        list(rows[0]) if rows else [],
        *([text(cell) for cell in row.values()] for row in rows),
    ]
    columns = list(zip(*lines, strict=True))
    right = [all(re.match(r"[\d–-]", cell) for cell in column[1:]) for column in columns]
    widths = [max(map(len, column)) if wide else 0 for column in columns]
    lines = [
        [each.rjust(width) if end else each.ljust(width) for each, width, end in cells]
        for cells in (zip(line, widths, right, strict=True) for line in lines)
    ]
    rule = [
        ("-" * max(3, width - end)) + ":" * end for width, end in zip(widths, right, strict=True)
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))


def milliseconds(about: Mapping[str, str], results: Sequence[Result]) -> str:
    """The table of a lock in milliseconds, and the sentence about it.

    Raises:
        ValueError: nothing of it was measured.
    """
    rows = [row for result in results for row in result.short]
    if not rows:
        raise ValueError("the short table needs the part `unpinned`")
    where = f"Acquire and release, {about['nodes']} and the client on one machine"
    return f"{table(rows)}\n\n{where}, by {COMMAND}."


def as_json(about: Mapping[str, str], results: Mapping[str, Result]) -> dict[str, Any]:
    """Everything, with the numbers as they were measured; a spread is a list of three."""
    return {
        "about": dict(about),
        "goals": goals(list(results.values())),
        "parts": {name: asdict(result) for name, result in results.items()},
    }
