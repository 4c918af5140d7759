"""Play one fault very often: `make soak ARGS="NAME …"`; without a name, the list of them.

    python -m dev.soak
    python -m dev.soak leader --kills 10 --stops 10
    python -m dev.soak leader --help

What follows the name is for the module of the soak. `make nightly` plays most soaks, and less of
each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
NEWEST: Final = f"{ROOT}/.venv-newest/bin/python"  # of `make newest`
WRONG: Final = 2  # the exit status


class Soak(NamedTuple):
    """What is played.

    Attributes:
        words: the module, and its first arguments.
        plays: what it plays without further arguments.
        is_newest: whether it needs Django's own tasks, and so a newer Python than the oldest.
    """

    words: str
    plays: str
    is_newest: bool = False


SOAKS: Final = {
    "worlds": Soak(
        "dev.soak.simulation.worlds", "200,000 simulated worlds, on all cores, resumable"
    ),
    "healing": Soak(
        "dev.soak.faults.healing", "100,000 releases at the moment when a renewal heals the lease"
    ),
    "busy": Soak(
        "dev.soak.faults.busy", "500 fresh processes beside busy loops: no healthy node is silent"
    ),
    "celery": Soak(
        "dev.soak.celery", "10,000 messages through workers that are killed; --others: theirs"
    ),
    "crowd": Soak(
        "dev.soak.faults.crowding",
        "50 processes for the slots of a name; they and nodes are struck",
    ),
    "fencing": Soak(
        "dev.soak.fencing.counters",
        "10,000 additions on each database, by processes that are killed",
    ),
    "handles": Soak(
        "dev.soak.faults.handles", "ten minutes of leases handed over beside heals and deaths"
    ),
    "idempotency": Soak(
        "dev.soak.idempotency", "500 clients that repeat requests to workers that are killed"
    ),
    "interrupts": Soak(
        "dev.soak.faults.signals", "2,000 interruptions at random moments of locks on real nodes"
    ),
    "leader": Soak(
        "dev.soak.faults.leading",
        "100 leaders that are killed, 100 that are stopped: one at a time",
    ),
    "once": Soak(
        "dev.soak.faults.doing_once", "1,000 names, each done once by 20 processes that are killed"
    ),
    "revoke": Soak(
        "dev.soak.faults.revoking", "200 leases taken away, beside nodes that die and hang"
    ),
    "run": Soak(
        "dev.soak.django.plays_of_run", "100 commands under redlock_run, each struck by a fault"
    ),
    "tasks": Soak(
        "dev.soak.tasks.storm", "2,000 of Django's tasks, by workers that are killed", True
    ),
    "backends": Soak(
        "pytest -s dev/soak/tasks/test_backends.py",
        "other people's backends of Django's tasks, each with its own worker",
        True,
    ),
    "views": Soak(
        "dev.soak.views.double_submits",
        "1,000 double submits to each of gunicorn, uvicorn and REST framework",
    ),
}


def command(name: str) -> list[str]:
    """Return the command of a soak; the newest Python runs it where it must, and is there."""
    soak = SOAKS[name]
    is_there = soak.is_newest and Path(NEWEST).exists()
    return [NEWEST if is_there else sys.executable, "-m", *soak.words.split()]


def main(arguments: Sequence[str]) -> int:
    """Become the soak that is named; print the list without a name."""
    name, *others = arguments or [""]
    if name in SOAKS:
        program, *words = command(name)
        os.chdir(ROOT)
        os.execv(program, [program, *words, *others])  # noqa: S606 - the table has the program
    for each, soak in SOAKS.items():
        print(f"  {each:12} {soak.plays}")
    if name:
        print(f"There is no soak {name!r}.", file=sys.stderr)
    return WRONG if name else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
