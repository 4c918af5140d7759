"""Processes that campaign for one name; whoever leads is killed, stopped or paused.

    make soak ARGS=leader                          100 kills, 100 stops, 10 pauses
    make soak ARGS="leader --kills 10 --stops 10"

Each process appends what it saw to a file of its own, with the times of one clock. At no time two
of them may have said that they lead, or worked: a stop nearly always comes in the middle of a step.
After a kill another one leads when the ttl is over, after a stop at once: there the ttl is so long
that nothing else could free the name. A play ends when no other one leads within 50 s, and so many
strikes are missing then.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from dev.soak import verdict
from dev.soak.verdict import Played
from django_redlock.locks.leader import Leader
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Patch, with_edits
from tests.support.waiting import in_time

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease

ORDERS: Final = "LEADING_ORDERS"
PROCESSES: Final = 3
KILL, STOP, PAUSE = "kill", "stop", "pause"
TTL: Final = {KILL: 2.0, STOP: 60.0, PAUSE: 2.0}
LONGEST: Final = 50.0  # seconds to the next leader: after a stop less than the ttl
START: Final = 600.0  # seconds until a new process campaigns, which is no verdict on the leader
SAMPLE: Final = 0.005  # seconds between two questions, and between two steps
STEPPING: Final = 0.2  # seconds that a step of the work takes
WAITS, ELECTED, LEADS, STEP, LOST = "waits", "elected", "leads", "step", "lost"


def releases_early(end: Callable[[Leader], None]) -> Callable[[Leader], None]:
    """Release when the block ends, and not when the work has returned."""

    def early(self: Leader) -> None:
        lease = self._lease
        end(self)
        if lease is not None:
            lease.release()

    return early


def believes_a_flag(_: object) -> Callable[..., bool]:
    """Ask the flag that a loss raises, and not the lease."""

    def leads(self: Leader, pause: float = 0.0) -> bool:
        stop = self._stop
        if pause:
            stop.wait(pause)
        return not (self._over or self._lease is None or stop.is_set())

    return leads


BROKEN: Final[dict[str, tuple[Patch, ...]]] = {
    "": (),
    "flag": (Patch(Leader, "leads", believes_a_flag),),
    "early": (Patch(Leader, "_end", releases_early),),
}


class Orders(NamedTuple):
    """What such a process does.

    Attributes:
        name: of the lock.
        ttl: of its leases, in seconds.
        file: to which it appends.
        broken: "flag": it believes what it was told, and does not ask its lease; "early": the end
            of its block releases before the work has returned.
        locks: the alias.
    """

    name: str
    ttl: float
    file: str
    broken: str
    locks: dict[str, Any]


# -- one process ----------------------------------------------------------------------------------


def campaign(orders: Orders) -> None:
    """Campaign until the process is struck; ask all the time whether it leads."""
    import django
    from django.conf import settings

    settings.configure(REDLOCK={"default": orders.locks})
    django.setup()
    from django_redlock import conf, redlock

    file = os.open(orders.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    term = [0]

    def note(what: str, *more: float) -> None:
        line = json.dumps([what, os.getpid(), term[0], *more])
        os.write(file, f"{line}\n".encode())

    def work(_: Lease) -> None:
        term[0] += 1
        note(ELECTED, time.monotonic())
        while redlock.leads(orders.name, pause=SAMPLE):
            start = time.monotonic()
            threading.Event().wait(STEPPING)
            note(STEP, start, time.monotonic())
        note(LOST, time.monotonic())

    lock = redlock(orders.name, ttl=orders.ttl)
    group, waits = conf.backend("default").group, False
    with with_edits(*BROKEN[orders.broken]), lock.leader(on_elected=work):
        while True:
            if not waits and group.waiting():
                waits = True
                note(WAITS, time.monotonic())
            before, start = term[0], time.monotonic()
            if redlock.leads(orders.name):
                end = time.monotonic()
                if before == term[0]:
                    note(LEADS, start, end)
            time.sleep(SAMPLE)


def _exit(*_: object) -> NoReturn:
    sys.exit()


# -- what they saw --------------------------------------------------------------------------------


class Term(NamedTuple):
    """A time for which one process has said that it leads, at its begin and at its end."""

    file: str
    pid: int
    term: int
    since: float
    until: float


def lines(file: Path) -> list[Any]:
    """What a process has seen; the last line of a killed one may be a part."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def terms(files: list[Path], *, steps: bool) -> list[Term]:
    """For how long each of them led for certain, each time, or worked if ``steps``."""
    found: dict[tuple[int, int], Term] = {}
    for file in files:
        for what, pid, term, *times in lines(file):
            if what == LEADS:
                start, end = times[1], times[0]
                # Yes at two times is yes between them: a lease that is over is never revived.
            elif what == STEP and steps:
                start, end = times
            else:
                continue
            first = found.get((pid, term), Term(file.name, pid, term, start, start))
            since, until = min(first.since, start), max(first.until, end)
            found[pid, term] = first._replace(since=since, until=until)
    return list(found.values())


def overlaps(of: list[Term]) -> list[tuple[Term, Term]]:
    """The pairs of processes that led at the same time."""
    return [
        (one, other)
        for one, other in combinations(of, 2)
        if one.pid != other.pid and max(one.since, other.since) < min(one.until, other.until)
    ]


# -- a play ---------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of a play.

    Attributes:
        terms: who led when.
        seconds: from each fault until another process led.
    """

    terms: list[Term]
    seconds: list[float]


class Play:
    """Some processes, of which the one that leads is struck again and again."""

    def __init__(self, home: Path, fault: str, nodes: EmbeddedNodes, broken: str) -> None:
        self.fault = fault
        self._home, self._broken = home, broken
        self._locks = nodes.settings(MAX_TTL=60, RESTART_GUARD=False, NODE_TIMEOUT=1)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._files: list[Path] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the processes run meanwhile."""
        try:
            for _ in range(PROCESSES):
                self.start()
            yield
        finally:
            for process in self._running.values():
                process.kill()
                process.wait()

    def start(self) -> None:
        """Start one more."""
        file = self._home / f"{self.fault}-{len(self._files)}"
        self._files.append(file)
        orders = Orders(self.fault, TTL[self.fault], str(file), self._broken, self._locks)
        process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            env=os.environ | {ORDERS: json.dumps(orders)},
        )
        self._running[process.pid] = process

    def elections(self) -> list[tuple[float, int]]:
        """When which process was elected, in order."""
        read = [line for file in self._files for line in lines(file)]
        return sorted((line[3], line[1]) for line in read if line[0] == ELECTED)

    def strike(self) -> float | None:
        """Strike the leader; return the seconds until another process leads, or None."""
        if not in_time(self._in_line, START):
            return None
        before = self.elections()
        pid = before[-1][1]
        process = self._running[pid]
        kind = {KILL: signal.SIGKILL, STOP: signal.SIGTERM, PAUSE: signal.SIGSTOP}[self.fault]
        began = time.monotonic()
        process.send_signal(kind)
        if not in_time(lambda: len(self.elections()) > len(before), LONGEST):
            return None
        if self.fault == PAUSE:
            process.send_signal(signal.SIGCONT)
            if not in_time(lambda: self._knows(pid), LONGEST):
                return None
        elif not in_time(lambda: process.poll() is not None, LONGEST):
            return None
        else:
            del self._running[pid]
            self.start()
        return self.elections()[len(before)][0] - began

    def _in_line(self) -> bool:
        """Whether each process leads, has led or waits: another one is to follow at once."""
        read = [line for file in self._files for line in lines(file)]
        seen = {line[1] for line in read if line[0] in (WAITS, ELECTED)}
        assert not any(process.poll() for process in self._running.values()), self._running_now()
        return bool(self.elections()) and seen >= self._running.keys()

    def _running_now(self) -> str:
        """Each process with its exit status, and what it has noted."""
        noted = {line[1]: line[0] for file in self._files for line in lines(file)}
        return str([(pid, each.poll(), noted.get(pid)) for pid, each in self._running.items()])

    def _knows(self, pid: int) -> bool:
        """Whether a process was told as often that it lost as it was elected."""
        read = [line[0] for file in self._files for line in lines(file) if line[1] == pid]
        return read.count(LOST) == read.count(ELECTED)

    def outcome(self, times: int) -> Outcome:
        """Strike so often, or until one strike is not over in time."""
        seconds: list[float] = []
        with self.running():
            while len(seconds) < times and (took := self.strike()) is not None:
                seconds.append(took)
        # A process that was paused in a step knows of nothing until the step ends.
        return Outcome(terms(self._files, steps=self.fault != PAUSE), seconds)


def play(home: Path, fault: str, times: int, nodes: EmbeddedNodes, broken: str = "") -> Outcome:
    """Let some processes campaign, and strike the one that leads so often."""
    return Play(home, fault, nodes, broken).outcome(times)


def main() -> int:
    """Play all faults; tell how soon another process led."""
    parser = verdict.parser("dev.soak.faults.leading", __doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--pauses", type=int, default=10)
    parser.add_argument(
        "--broken", nargs="?", const="flag", default="", choices=BROKEN, help="see Orders"
    )
    options = parser.parse_args()
    wrong: list[str] = []
    played: list[Played] = []
    faults = {KILL: options.kills, STOP: options.stops, PAUSE: options.pauses}
    with tempfile.TemporaryDirectory() as home, EmbeddedNodes(3) as nodes:
        for fault, times in faults.items():
            outcome = play(Path(home), fault, times, nodes, options.broken)
            both = overlaps(outcome.terms)
            wrong += [f"{one} and {other} led at the same time" for one, other in both]
            played.append(Played(len(outcome.seconds), times, f"{fault}s"))
            print(
                f"{fault}: {len(outcome.seconds)} times, {len(outcome.terms)} terms, "
                f"{len(both)} at the same time, "
                f"next leader after {max(outcome.seconds, default=0.0):.2f} s at most",
                flush=True,
            )
    return verdict.end(wrong, *played)


if __name__ == "__main__":
    if ORDERS in os.environ:
        signal.signal(signal.SIGTERM, _exit)
        campaign(Orders(*json.loads(os.environ[ORDERS])))
    else:
        sys.exit(main())
