"""Very many clients that repeat their requests, while workers are killed and nodes die and hang.

    python -m dev.soak.idempotency                      this package, on each database
    python -m dev.soak.idempotency --nodes-down         without any node
    python -m dev.soak.idempotency --with NAME ...      the same site with other ways

Prints what must not have happened, and the figures.
Histories and logs stay in a folder of their own, whose name is printed, if something is wrong.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dev.benchmarks.peers import PeerUnavailable
from dev.soak import verdict
from dev.soak.verdict import Played
from tests.support.databases import KINDS, why_not

from .candidates import CANDIDATES, OURS
from .rig import Play, perform
from .rules import RULES, History, figures, judge

SHOWN = 5  # of each rule
WIDTH = 160  # of their texts
LEAST = {"workers killed": 5, "broken connections": 5, "replays": 10}  # of each play
AMONG_NODES = {"nodes killed": 1, "nodes hung": 1}


def main(arguments: Sequence[str] | None = None) -> int:
    """Play it, and say how it went."""
    parser = verdict.parser("dev.soak.idempotency", __doc__)
    parser.add_argument("--clients", type=int, default=500, help="each has one key")
    parser.add_argument("--databases", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--with", nargs="+", choices=CANDIDATES, default=[OURS], dest="candidates")
    parser.add_argument("--nodes-down", action="store_true", help="all of them, all the time")
    parser.add_argument("--kill", type=float, default=1.0, help="a worker every so many seconds")
    parser.add_argument("--seed", type=int, help="of all that is random, but for the machine")
    chosen = parser.parse_args(arguments)
    fixed = {"clients": chosen.clients, "kill": chosen.kill, "nodes_down": chosen.nodes_down}
    fixed |= {} if chosen.seed is None else {"seed": chosen.seed}
    plays = [
        Play(candidate, kind, **fixed)
        for candidate in chosen.candidates
        for kind in chosen.databases
    ]
    folder = Path(tempfile.mkdtemp(prefix="redlock-idempotency-"))
    columns: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    played: list[Played] = []
    for number, play in enumerate(plays):
        name = f"{play.candidate}, {play.kind}"
        if why_not(play.kind):
            print(f"{name}: not played: {why_not(play.kind)}", flush=True)
            continue
        began = time.monotonic()
        try:
            history = perform(play, folder / str(number))
        except PeerUnavailable as error:
            print(f"{name}: not played: {error}", flush=True)
            continue
        columns[name] = figures(history) | {"seconds": round(time.monotonic() - began)}
        print(f"{name} (seed {play.seed}): {columns[name]['seconds']} s", flush=True)
        wrong += complain(history)
        least = LEAST | (AMONG_NODES if play.candidate == OURS and not play.nodes_down else {})
        played += [
            Played(columns[name][what], count, f"{what} ({name})") for what, count in least.items()
        ]
    show(columns)
    if wrong:
        print(f"histories and logs: {folder}")
    else:
        shutil.rmtree(folder)
    return verdict.end(wrong, *(played or [Played(0, 1, "plays")]))


def complain(history: History) -> list[str]:
    """Print what must not have happened, rule by rule, and return it."""
    complaints = judge(history)
    for rule in RULES:
        found = [each.text for each in complaints if each.rule == rule]
        if found:
            print(f"  {rule}: {len(found)}")
        for text in found[:SHOWN]:
            print(f"    {text[:WIDTH]}")
    return [f"{each.rule}: {each.text}" for each in complaints]


def show(columns: Mapping[str, Mapping[str, int]]) -> None:
    """Print the figures of all plays beside each other."""
    if not columns:
        return
    heads = list(next(iter(columns.values())))
    lines = [["", *columns]]
    lines += [[head, *(str(column[head]) for column in columns.values())] for head in heads]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *cells in lines:
        row = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  ".join([first.ljust(widths[0]), *row]))


if __name__ == "__main__":
    sys.exit(main())
