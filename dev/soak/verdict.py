"""How a soak ends: it passed, it failed, or too little was played to say which.

A soak writes down what happens, and is judged by that when its time is over. A slow machine plays
less in this time. So each soak states the least that it must have played, and less than that is
*inconclusive*: neither passed nor failed.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Collection
from typing import Final, NamedTuple

PASSED, FAILED, INCONCLUSIVE = 0, 1, 3  # exit statuses; 2 means wrong arguments
STATUSES: Final = "The exit status is 0 if it passed, 1 if it failed, 3 if it is inconclusive."
TOO_LITTLE: Final = "inconclusive: "
SHOWN: Final = 20  # of what is wrong
LONGEST: Final = 200  # characters of a line about it


class Played(NamedTuple):
    """How much of something was played, and the least that must have been.

    As a sentence: "18 of 100 kills".
    """

    done: int
    least: int
    what: str

    def __str__(self) -> str:
        return f"{self.done:,} of {self.least:,} {self.what}"


def parser(module: str, text: str | None) -> ArgumentParser:
    """Return a parser whose help has the first line of a docstring, and the exit statuses."""
    about = (text or "").partition("\n")[0]
    return ArgumentParser(prog=f"python -m {module}", description=about, epilog=STATUSES)


def missing(*played: Played) -> str:
    """Return a sentence about what was played too little; "" if it was enough."""
    return ", ".join(str(each) for each in played if each.done < each.least)


def end(wrong: Collection[object], *played: Played) -> int:
    """Print the verdict as the last line, and return the exit status.

    What is wrong is wrong, however little was played.

    Args:
        wrong: what must not have happened.
        played: how much was played, of each thing of which a least is stated.
    """
    for each in [*wrong][:SHOWN]:
        print(f"    {str(each)[:LONGEST]}")
    if wrong:
        print(f"FAILED: {len(wrong)} wrong", flush=True)
        return FAILED
    if few := missing(*played):
        print(f"{TOO_LITTLE}{few}", flush=True)
        return INCONCLUSIVE
    print("passed: " + ", ".join(f"{each.done:,} {each.what}" for each in played), flush=True)
    return PASSED
