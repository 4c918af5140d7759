"""Play the cells, print what was seen, and say what was not as expected.

The exit status is 0 when each cell showed what it must, 1 when one did not, 2 when the arguments
are wrong, and 130 after a Ctrl-C. A cell whose lock cannot be installed here is listed, and is no
failure.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from django.core.management.base import OutputWrapper

from django_redlock.inspection.rows import Paragraph, Span, Table
from django_redlock.management.printing import printed, write

from . import report
from .cells import CELLS, SHORT, Cell
from .play import Played, play_all
from .report import Tally, tallies

INTERRUPTED = 130


def main(words: Sequence[str] | None = None, cells: Sequence[Cell] = CELLS) -> int:
    """Run the command."""
    options = read_options(words, cells)
    try:
        played = list(_with_progress(options))
    except KeyboardInterrupt:
        print("interrupted: all processes are ended", file=sys.stderr)
        return INTERRUPTED
    found = tallies(options.cells, played)
    _write(options, found)
    return int(bool(report.complaints(found)))


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _with_progress(options: argparse.Namespace) -> Iterator[Played]:
    """Play, and say on stderr how far that is."""
    total = len(options.cells) * options.runs
    for count, played in enumerate(play_all(options.cells, options.runs, options.seed), start=1):
        print(f"[{count}/{total}] {report.told(played)}", file=sys.stderr, flush=True)
        yield played


def _write(options: argparse.Namespace, found: Sequence[Tally]) -> None:
    """Print it, and write it wherever that was asked for."""
    output = OutputWrapper(sys.stdout)
    if options.json:
        document = report.document(found, seed=options.seed, runs=options.runs)
        write(output, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        _print(output, found)
    if options.markdown:
        command = shlex.join(["python", "-m", "museum", *options.words])
        options.markdown.write_text(report.markdown(found, command), encoding="utf-8")
    if options.pictures:
        count = report.write_pictures(found, options.pictures)
        print(f"{count} pictures are in {options.pictures}", file=sys.stderr)


def _print(output: OutputWrapper, found: Sequence[Tally]) -> None:
    """Print the table, what was not played, and what was not as expected."""
    wrong = report.complaints(found)
    page: list[Paragraph | Table] = [report.table(found), (Span(report.MEANING, "quiet"),), ()]
    page += [(Span(sentence, "quiet"),) for sentence in report.absences(found)]
    page += [(Span(sentence, "bad"),) for sentence in wrong]
    if not wrong:
        page.append((Span("Every lock did as expected.", "good"),))
    write(output, printed(page, output))


# -- arguments ------------------------------------------------------------------------------------


def read_options(words: Sequence[str] | None, cells: Sequence[Cell]) -> argparse.Namespace:
    """Return what is asked for, with the chosen ``cells``."""
    parser = argparse.ArgumentParser(
        prog="python -m museum",
        description="Locks that people copy, each under the faults that break it, and this one.",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="KEY", default=[],
        help="these recipes, faults and cells (setnx-del, paused, setnx-del/killed)",
    )  # fmt: skip
    parser.add_argument("--short", action="store_true", help="a few cells, in a minute")
    parser.add_argument(
        "--runs", type=_positive, default=1, metavar="N", help="play each cell so many times"
    )
    parser.add_argument(
        "--breaking", action="store_true", help="only the cells in which a lock breaks"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides the order")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument(
        "--pictures", type=Path, metavar="FOLDER", help="draw what happened in each cell, as SVG"
    )
    options = parser.parse_args(words)
    options.words = list(sys.argv[1:] if words is None else words)
    if options.short and options.only:
        parser.error("--short has cells of its own: leave out --only, or --short")
    for what, path in (("--markdown", options.markdown), ("--pictures", options.pictures)):
        if path and not path.resolve().parent.is_dir():
            parser.error(f"{what} {path}: there is no folder {path.resolve().parent}")
    keys = SHORT if options.short else options.only
    for key in keys:
        if not _chosen(cells, key):
            parser.error(f"--only {key}: there is no such recipe, fault or cell.\n{_there(cells)}")
    chosen = (cell for cell in cells if not keys or any(_chosen([cell], k) for k in keys))
    options.cells = [cell for cell in chosen if cell.breaks or not options.breaking]
    if not options.cells:
        parser.error(f"--breaking: no lock breaks in {' '.join(keys)}")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _chosen(cells: Sequence[Cell], key: str) -> list[Cell]:
    """The cells that a key means."""
    return [cell for cell in cells if key in (cell.key, cell.exhibit.key, cell.run.fault)]


def _there(cells: Sequence[Cell]) -> str:
    """What there is."""
    kinds = {
        "recipes": [cell.exhibit.key for cell in cells],
        "faults": [cell.run.fault for cell in cells],
        "cells": [cell.key for cell in cells],
    }
    return "\n".join(f"{kind}: {', '.join(dict.fromkeys(keys))}" for kind, keys in kinds.items())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(main())
