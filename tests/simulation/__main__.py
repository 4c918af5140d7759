"""``python -m tests.simulation``: play worlds, hunt mutants, or write the docs' page."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .checker import Violation
from .kinds import EVERYWHERE, play, quiet
from .mutants import MUTANTS, hunt
from .page import page


def honest(first: int, worlds: int, only: str | None) -> int:
    """Play worlds with the real code; how many broke a promise."""
    broken = 0
    for seed in range(first, first + worlds):
        try:
            play(seed, EVERYWHERE[only] if only else None)
        except Violation as violation:
            broken += 1
            print(violation, file=sys.stderr)
    print(f"{worlds} worlds of the real code, {broken} broke a promise")
    return broken


def table(first: int, worlds: int, only: str | None) -> int:
    """Print in how many worlds each mutant is caught; how many got away."""
    free = 0
    print(f"{'mutant':30} {'profile':24} worlds")
    for mutant in MUTANTS:
        if only in (None, mutant.name):
            start = time.perf_counter()
            found = hunt(mutant, worlds=max(worlds, mutant.worlds), first=first)
            free += found is None
            needed, how = (found[0], str(found[1]).partition("\n")[0]) if found else ("-", "")
            print(
                f"{mutant.name:30} {mutant.profile:24} {needed:>5} of {mutant.worlds:<5}"
                f"{time.perf_counter() - start:6.2f} s  {how}",
                flush=True,
            )
    return free


def main() -> int:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--worlds", type=int, default=300, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--profile", choices=list(EVERYWHERE), help="only these worlds")
    parser.add_argument("--mutant", choices=[each.name for each in MUTANTS], help="only this one")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the page of the docs")
    options = parser.parse_args()
    quiet()
    if options.table:
        options.table.write_text(page())
        return 0
    wrong, worlds = 0, options.worlds
    if options.mutant is None:
        wrong = honest(options.seed, worlds, options.profile)
    if options.profile is None:
        wrong += table(options.seed, worlds, options.mutant)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
