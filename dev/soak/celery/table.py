"""The figures of several plays beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .rules import History, figures, keys_without_a_run, lost, overlaps, stuck

NAMES = {"ours": "django-redlock", "once": "celery-once", "singleton": "celery-singleton"}
HEADS = ("", "bodies at once", "stuck keys", "lost messages", "keys without a run")
TITLE = "Messages through workers that are killed"


def name_of(candidate: str, *, early: bool) -> str:
    """Return what a row is called."""
    return f"{NAMES[candidate]}, acknowledged {'early' if early else 'late'}"


def row(history: History) -> list[str]:
    """Return the cells of one play."""
    counts = (
        len(list(overlaps(history))),
        len(stuck(history)),
        len(lost(history)),
        len(keys_without_a_run(history)),
    )
    return [str(count) for count in counts]


def told(history: History) -> str:
    """Return what has happened, as one sentence."""
    return ", ".join(f"{number:,} {what}" for what, number in figures(history).items())


def plain(rows: Mapping[str, Sequence[str]]) -> str:
    """Return the table as aligned text; a row with one cell is a reason why there are no more."""
    whole = [HEADS, *((name, *cells) for name, cells in rows.items())]
    full = [line for line in whole if len(line) == len(HEADS)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    widths[0] = max(len(line[0]) for line in whole)
    lines = []
    for line in whole:
        cells = [line[0].ljust(widths[0])]
        if len(line) == len(HEADS):
            cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        else:
            cells += line[1:]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def show(rows: Mapping[str, Sequence[str]]) -> None:
    """Print the table."""
    print(f"{TITLE}\n\n{plain(rows)}")
