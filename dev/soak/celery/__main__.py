"""Very many messages for few keys through workers that are killed, and nodes that die and hang.

    python -m dev.soak.celery                 this package, which must break no rule
    python -m dev.soak.celery --others        and celery-once and celery-singleton beside it

Prints the figures, what must not have happened, and the table. Histories and logs stay in a folder
of their own, whose name is printed, if something is wrong.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from dev.benchmarks.peers import PeerUnavailable
from dev.soak import verdict
from dev.soak.verdict import Played

from . import table
from .rig import Play, perform
from .rules import RULES, SHOWN, History, figures, judge

# Of what must survive; the messages are counted as well.
LEAST = {"bodies killed": 3, "completion records": 1, "nodes killed": 2, "nodes hung": 2}


def main() -> int:
    """Play it, and say how it went."""
    parser = verdict.parser("dev.soak.celery", __doc__)
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
    folder, rows = Path(tempfile.mkdtemp(prefix="redlock-soak-")), {}
    wrong: list[str] = []
    played: list[Played] = []
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
            wrong = complain(history)
            least = LEAST | {"messages": play.messages}
            played = [Played(figures(history)[what], count, what) for what, count in least.items()]
    table.show(rows)
    if wrong:
        print(f"histories and logs: {folder}")
    else:
        shutil.rmtree(folder)
    return verdict.end(wrong, *played)


def complain(history: History) -> list[str]:
    """Print what must not have happened, rule by rule, and return it."""
    complaints = judge(history)
    for rule in RULES:
        found = [each.text for each in complaints if each.rule == rule]
        print(f"{rule}: {len(found) or 'never'}")
        for text in found[:SHOWN]:
            print(f"    {text}")
    return [f"{each.rule}: {each.text}" for each in complaints]


if __name__ == "__main__":
    sys.exit(main())
