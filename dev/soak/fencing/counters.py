"""Very many additions to counters by processes that are stopped and killed at random.

    python -m dev.soak.fencing.counters

adds on each database that can be started. A process writes a ledger in the transaction that adds.
So the sum is right if and only if each counter is what the
ledger says, however a process ended. Its journal tells what it knew: whatever was told to be done
is in the ledger, and what is in the ledger and was not told was under way when its process died.

Prints one line of JSON for each database.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter as Count
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dev.soak import verdict
from dev.soak.verdict import Played
from django_redlock.testing import EmbeddedNodes
from tests.fencing import outside
from tests.support.databases import KINDS, Settings, connected, database, why_not
from tests.support.waiting import in_time

from .counting import DONE, FAILED, HOLDS, ORDERS, STALE, Orders

TTL, MAX_TTL = 0.25, 60.0  # seconds
LONG = 0.04  # of the additions last for longer than a ttl
KILLED = 0.15  # of those that are stopped
AT_WORK = 0.7  # of those that are stopped hold a lock
END = 60.0  # seconds in which a process ends what it does
LIMIT = 600.0  # seconds for the additions; those that are left then are not played
LEAST = {"stops": 20, "kills": 2, "stale": 1}  # on each database


@dataclass(frozen=True)
class Play:
    """What is to be played.

    Attributes:
        additions: how many, at least.
        hot: how many of the counters half of the additions are for.
        fenced: whether processes claim their rows.
        faults: whether processes are stopped and killed.
        ttl: of the locks, in seconds.
        long: share of the additions that last for longer.
    """

    additions: int = 10_000
    counters: int = 10_000
    hot: int = 8
    processes: int = 8
    fenced: bool = True
    faults: bool = True
    ttl: float = TTL
    long: float = LONG
    seed: int = field(default_factory=lambda: random.randrange(1 << 30))


class Outcome(NamedTuple):
    """How it went.

    Attributes:
        figures: what happened, for people.
        wrong: what must not have happened.
    """

    figures: dict[str, Any]
    wrong: list[str]


class Crowd:
    """The processes, and what befalls them."""

    def __init__(self, play: Play, folder: Path, env: dict[str, str]) -> None:
        self.play, self.folder, self.env = play, folder, env
        self.draw = random.Random(play.seed)
        self.there: dict[str, subprocess.Popen[bytes]] = {}
        self.started = self.stops = self.kills = 0
        self.failed: list[str] = []

    def start(self) -> None:
        """Start one more, with a name and a journal that no other has."""
        self.started += 1
        name = f"p{self.started}"
        orders = Orders(
            process=name,
            journal=str(self.folder / f"{name}.journal"),
            stop=str(self.folder / "stop"),
            seed=f"{self.play.seed} {name}",
            counters=self.play.counters,
            hot=self.play.hot,
            fenced=self.play.fenced,
            ttl=self.play.ttl,
            long=self.play.long,
        )
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dev.soak.fencing.counting"],
                cwd=outside.ROOT,
                env=self.env | {ORDERS: json.dumps(orders._asdict())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.there[name] = process

    def befall(self) -> None:
        """Stop one of them for longer than its lease lasts; some do not go on."""
        name = self.draw.choice(self.at_work() or list(self.there))
        victim = self.there[name]
        os.kill(victim.pid, signal.SIGSTOP)
        self.stops += 1
        time.sleep(self.play.ttl * self.draw.uniform(1.2, 3))
        if self.draw.random() < KILLED:
            victim.kill()
            victim.wait()
            del self.there[name]
            self.kills += 1
            self.start()
        else:
            os.kill(victim.pid, signal.SIGCONT)

    def at_work(self) -> list[str]:
        """Those that hold a lock; at times nobody, so that anybody is stopped."""
        if self.draw.random() > AT_WORK:
            return []
        return [name for name in self.there if self.last_word(name) == HOLDS]

    def last_word(self, name: str) -> str:
        """What a process last wrote into its journal."""
        with suppress(FileNotFoundError), (self.folder / f"{name}.journal").open("rb") as journal:
            journal.seek(max(0, journal.seek(0, os.SEEK_END) - 500))
            lines = journal.read().splitlines()
            return str(json.loads(lines[-1])[0]) if lines else ""
        return ""

    def run(self) -> None:
        """Let them add until there is enough; then let them end."""
        for _ in range(self.play.processes):
            self.start()
        late = time.monotonic() + LIMIT
        while self.done() < self.play.additions and time.monotonic() < late and self.all_well():
            if self.play.faults:
                self.befall()
            time.sleep(0.05)
        (self.folder / "stop").touch()
        in_time(lambda: all(each.poll() is not None for each in self.there.values()), END)
        self.all_well()

    def all_well(self) -> bool:
        """Whether no process has ended by an error."""
        self.failed = [
            f"{name}: {(self.folder / f'{name}.log').read_text()[-150:]}"
            for name, each in self.there.items()
            if each.poll()
        ]
        return not self.failed

    def done(self) -> int:
        """How many additions the journals tell of."""
        told = f'["{DONE}"'.encode()
        return sum(path.read_bytes().count(told) for path in self.folder.glob("*.journal"))

    def end(self) -> None:
        """Kill those that are left."""
        for each in self.there.values():
            each.kill()
            each.wait()


def perform(play: Play, settings: Settings, nodes: EmbeddedNodes, folder: Path) -> Outcome:
    """Play it on a database, and look at what there is in the end."""
    from tests.fencing import tables

    locks = nodes.settings(RESTART_GUARD=False, MAX_TTL=MAX_TTL)
    began = time.monotonic()
    with connected(settings, "counters") as alias:
        tables.drop(alias)
        tables.create(alias)
        rows = [tables.Counter(pk=key) for key in range(1, play.counters + 1)]
        tables.Counter.objects.using(alias).bulk_create(rows, batch_size=500)
        crowd = Crowd(play, folder, outside.environment(settings, locks))
        try:
            crowd.run()
            crowd.end()
            values = dict(tables.Counter.objects.using(alias).values_list("pk", "value"))
            fields = ("process", "number", "counter")
            ledger = list(tables.Entry.objects.using(alias).values_list(*fields))
        finally:
            crowd.end()
            tables.drop(alias)
    told = {
        (path.stem, number): (what, key, *rest)
        for path in folder.glob("*.journal")
        for what, number, key, *rest in map(json.loads, path.read_text().splitlines())
    }
    wrong = [*judge(values, ledger, told), *crowd.failed]
    ends = Count(what for what, *_ in told.values())
    figures = {
        "additions": len(ledger),
        "sum": sum(values.values()),
        "counters": play.counters,
        "touched": len({key for _, _, key in ledger}),
        "stops": crowd.stops,
        "kills": crowd.kills,
        "stale": ends[STALE],
        "renewed": sum(what == DONE and rest[0] > play.ttl for what, _, *rest in told.values()),
        "untold": len(ledger) - ends[DONE],
        "seconds": round(time.monotonic() - began, 1),
        "seed": play.seed,
        "wrong": len(wrong),
    }
    return Outcome(figures, wrong)


def judge(
    values: dict[int, int],
    ledger: list[tuple[str, int, int]],
    told: dict[tuple[str, int], tuple[Any, ...]],
) -> Iterator[str]:
    """Yield what must not be.

    Args:
        values: of the counters.
        ledger: process, number and counter of each addition that was committed.
        told: what a process last told of an attempt, and its counter.
    """
    added = Count(key for _, _, key in ledger)
    for key, value in values.items():
        if value != added[key]:
            yield f"counter {key} is {value}, and was added to {added[key]} times"
    entries = {(process, number): key for process, number, key in ledger}
    for at, (what, key, *_) in told.items():
        if what == DONE and entries.get(at) != key:
            yield f"{at} was told to be done, and the ledger has {entries.get(at)}"
    for at in entries:
        if at not in told or told[at][0] not in {HOLDS, DONE, FAILED}:
            yield f"{at} is in the ledger, and its process was told {told.get(at)}"


@contextmanager
def somewhere() -> Iterator[Path]:
    """A folder, which stays if something is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="redlock-counters-"))
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def main() -> int:
    """Play it on each database."""
    parser = verdict.parser("dev.soak.fencing.counters", __doc__)
    parser.add_argument("--databases", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--additions", type=int, default=10_000)
    parser.add_argument("--counters", type=int, default=10_000)
    parser.add_argument("--seed", type=int, help="of all that is random, but for the machine")
    parser.add_argument("--unfenced", action="store_true", help="the lock alone: sums are wrong")
    chosen = parser.parse_args()
    fixed = {"additions": chosen.additions, "counters": chosen.counters}
    if chosen.seed is not None:
        fixed["seed"] = chosen.seed
    play = Play(fenced=not chosen.unfenced, **fixed)
    wrong: list[str] = []
    played: list[Played] = []
    outside.of_tests()
    for kind in chosen.databases:
        if why_not(kind):
            print(json.dumps({"database": kind, "not played": why_not(kind)}), flush=True)
            continue
        with EmbeddedNodes(3) as nodes, database(kind) as settings, somewhere() as folder:
            outcome = perform(play, settings, nodes, folder)
        print(json.dumps({"database": kind} | outcome.figures), flush=True)
        wrong += [f"{kind}: {text}" for text in outcome.wrong]
        least = LEAST | {"additions": play.additions}
        played += [
            Played(outcome.figures[what], count, f"{what} ({kind})")
            for what, count in least.items()
        ]
    return verdict.end(wrong, *(played or [Played(0, 1, "databases")]))


if __name__ == "__main__":
    sys.exit(main())
