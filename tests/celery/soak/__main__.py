"""Very many messages for few keys through workers that are killed, and nodes that die and hang.

    python -m tests.celery.soak                 this package; the exit code is 1 if a rule is broken
    python -m tests.celery.soak --others        and celery-once and celery-singleton beside it

Prints the figures, what must not have happened, and the table. Histories and logs stay in a folder
of their own, whose name is printed, if something is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import PeerUnavailable

from . import table
from .rig import Play, perform
from .rules import RULES, SHOWN, History, judge


def main() -> int:
    """Play it, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0, help="in which they are sent")
    parser.add_argument("--seed", type=int, help="of all that is random, but for the machine")
    parser.add_argument("--others", action="store_true", help="also the other packages")
    parser.add_argument("--early", action="store_true", help="also acknowledged before the run")
    chosen = parser.parse_args()
    fixed = {"messages": chosen.messages, "keys": chosen.keys, "seconds": chosen.seconds}
    if chosen.seed is not None:
        fixed["seed"] = chosen.seed
    candidates = tuple(table.NAMES) if chosen.others else ("ours",)
    plays = [
        Play(candidate, early=early, **fixed)
        for early in ((False, True) if chosen.early else (False,))
        for candidate in candidates
    ]
    folder, rows, failed = Path(tempfile.mkdtemp(prefix="redlock-soak-")), {}, False
    for number, play in enumerate(plays):
        name = table.name_of(play.candidate, early=play.early)
        try:
            history = perform(play, folder / str(number))
        except PeerUnavailable as error:
            rows[name] = [f"not played: {error}"]
            continue
        rows[name] = table.row(history)
        print(f"{name} (seed {play.seed}): {table.told(history)}", flush=True)
        if play.candidate == "ours" and not play.early:
            failed = complain(history)
    table.show(rows)
    if failed:
        print(f"histories and logs: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def complain(history: History) -> bool:
    """Print what must not have happened; return whether anything has."""
    complaints = judge(history)
    for rule in RULES:
        found = [each.text for each in complaints if each.rule == rule]
        print(f"{rule}: {len(found) or 'never'}")
        for text in found[:SHOWN]:
            print(f"    {text}")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
