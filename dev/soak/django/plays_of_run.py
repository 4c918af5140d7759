"""Commands that ignore SIGTERM under `redlock_run`, each struck by a fault at a random moment.

Half of them were started by a shell that waits for them.

    make soak ARGS=run               100 plays
    make soak ARGS="run --plays 20"

The last sign of life of each command must be from before the last deadline that its lease can have.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import django_redlock
from dev.soak import verdict
from dev.soak.verdict import Played
from django_redlock.management import guardian
from django_redlock.testing import EmbeddedNodes
from tests.django.test_run import SETTINGS, is_gone, last_sign, stubborn

IN_TIME, NOT_BEGUN = "ended in time", "not begun"
ROOT = Path(django_redlock.__file__).parents[1]
TTL, AT_ONCE = 6.0, 10
FAULTS = ("parent killed", "parent stopped", "key deleted", "nodes away")
LONGEST = 60.0  # seconds for a command to begin or to end


class Play:
    """One command, and what strikes it."""

    def __init__(self, home: Path, number: int, environment: dict[str, str]) -> None:
        self.file, self.name = home / str(number), f"play:{number}"
        self.struck = 0.0
        run = [sys.executable, "-m", "django", "redlock_run", self.name, "--ttl", str(TTL), "--"]
        command = stubborn(self.file)
        below = ["sh", "-c", f"trap '' TERM; {shlex.join(command)} & wait"]
        self.process = subprocess.Popen(
            [*run, *random.choice([command, below])],
            env=environment,
            stderr=subprocess.DEVNULL,
        )

    def pid(self) -> int:
        """The command's process id; 0 before it has begun."""
        text = self.file.read_text() if self.file.exists() else ""
        return int(text.split()[0]) if "\n" in text else 0

    def strike(self, fault: str, nodes: EmbeddedNodes) -> None:
        """Let it happen; "nodes away" is for all plays, and comes last."""
        if fault == "parent killed":
            self.process.kill()
        elif fault == "parent stopped":
            self.process.send_signal(signal.SIGSTOP)
        elif fault == "key deleted":
            for node in nodes:
                with node.client() as client:
                    client.delete(f"redlock:lock:{self.name}")
        self.struck = guardian.now()

    def verdict(self) -> str:
        """Return how it ended: in time, or not; or that this machine was too slow to begin it."""
        if not self.pid():
            return NOT_BEGUN
        end = time.monotonic() + LONGEST
        while not is_gone(self.pid()):
            if time.monotonic() > end:
                return "never ended"
            time.sleep(0.01)
        last = last_sign(self.file)
        return IN_TIME if last < self.struck + TTL else f"{last - self.struck - TTL} s late"

    def close(self) -> None:
        """End what is left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


def series(home: Path, first: int, nodes: EmbeddedNodes, environment: dict[str, str]) -> Counter:
    """Play as many as run at once."""
    plays = [Play(home, first + number, environment) for number in range(AT_ONCE)]
    try:
        end = time.monotonic() + LONGEST
        while not all(play.pid() for play in plays) and time.monotonic() < end:
            time.sleep(0.05)
        faults = [random.choice(FAULTS) for _ in plays]
        for play, fault in zip(plays, faults, strict=True):
            if fault != "nodes away":
                time.sleep(random.uniform(0, TTL / AT_ONCE))
                play.strike(fault, nodes)
        for number in range(3):
            nodes.pause(number)
        try:
            for play, fault in zip(plays, faults, strict=True):
                if fault == "nodes away":
                    play.strike(fault, nodes)
            return Counter(
                f"{fault}: {play.verdict()}" for play, fault in zip(plays, faults, strict=True)
            )
        finally:
            for number in range(3):
                nodes.resume(number)
    finally:
        for play in plays:
            play.close()


def main() -> int:
    """Play, print what became of the commands, and judge: none may be alive too long."""
    parser = verdict.parser("dev.soak.django.plays_of_run", __doc__)
    parser.add_argument("--plays", type=int, default=100)
    count = parser.parse_args().plays
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, EmbeddedNodes(5) as nodes:
        home = Path(folder)
        alias = nodes.settings(NODE_TIMEOUT=0.5, TTL=TTL, MAX_TTL=10, RESTART_GUARD=False)
        (home / "settings_of_run.py").write_text(SETTINGS.format(alias=alias))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([folder, str(ROOT)]),
            "DJANGO_SETTINGS_MODULE": "settings_of_run",
        }
        for first in range(0, count, AT_ONCE):
            found += series(home, first, nodes, environment)
    for what, times in sorted(found.items()):
        print(f"{times:5d}  {what}")
    wrong = [
        f"{times} times {what}" for what, times in found.items()
        if not what.endswith((IN_TIME, NOT_BEGUN))
    ]  # fmt: skip
    played = sum(times for what, times in found.items() if not what.endswith(NOT_BEGUN))
    return verdict.end(wrong, Played(played, count, "commands"))


if __name__ == "__main__":
    sys.exit(main())
