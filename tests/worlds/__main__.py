"""``python -m tests.worlds``: play worlds, or hunt mutants and print how soon each is caught."""

from __future__ import annotations

import argparse
import sys
import time

from . import PROFILES, profile
from .checker import Violation
from .mutants import MUTANTS, hunt
from .world import play


def honest(first: int, worlds: int, only: str | None) -> int:
    """Play worlds with the real code; how many broke a promise."""
    broken = 0
    for seed in range(first, first + worlds):
        try:
            play(seed, profile(only) if only else None)
        except Violation as violation:
            broken += 1
            print(violation, file=sys.stderr)
    return broken


def table(first: int, worlds: int, only: str | None) -> int:
    """Print in how many worlds each mutant is caught; how many got away."""
    free = 0
    print(f"{'mutant':26} {'profile':10} worlds")
    for mutant in MUTANTS:
        if only in (None, mutant.name):
            start = time.perf_counter()
            found = hunt(mutant, worlds=max(worlds, mutant.worlds), first=first)
            free += found is None
            needed, how = (found[0], str(found[1]).partition("\n")[0]) if found else ("-", "")
            print(
                f"{mutant.name:26} {mutant.profile:10} {needed:>5} of {mutant.worlds:<5}"
                f"{time.perf_counter() - start:6.2f} s  {how}",
                flush=True,
            )
    return free


def main() -> int:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="python -m tests.worlds", description=__doc__)
    parser.add_argument("--worlds", type=int, default=300, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--profile", choices=[each.name for each in PROFILES], help="only these")
    parser.add_argument("--mutant", choices=[each.name for each in MUTANTS], help="only this one")
    options = parser.parse_args()
    wrong = 0
    if options.mutant is None:
        wrong = honest(options.seed, options.worlds, options.profile)
        print(f"{options.worlds} worlds of the real code, {wrong} broke a promise")
    if options.profile is None:
        wrong += table(options.seed, options.worlds, options.mutant)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
