"""Do the work of many names once, beside others who do the same, of whom some are killed at work.

    make soak ARGS=once                           1,000 names, 20 processes, 100 kills
    make soak ARGS="once --names 200 --kills 20"

Each line of the log is one event, appended in one step: what happened, the name, the process id.
When its record was written or met, no work of a name may begin, and it must have been done.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

import django
from django.conf import settings

from dev.soak import forked, verdict
from dev.soak.verdict import Played
from django_redlock.testing import EmbeddedNodes

SECONDS: Final = 600.0  # of a play; what is left then is not played
LOOK: Final = 0.02  # seconds between two looks at the log
BEGINS, DONE, RECORDED, MET = "begins", "done", "recorded", "met"

# -- one process ----------------------------------------------------------------------------------


class Log:
    """The file that all processes append to."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, name: str) -> None:
        """Append one line; a line is written whole or not at all."""
        os.write(self._file, f"{event} {name} {os.getpid()}\n".encode())


def record_first() -> None:
    """Break the package: the work is recorded before the body."""
    from django_redlock.locks.once import OnceLock

    begin = OnceLock._begin

    def hasty(self: OnceLock, block: Any) -> Any:
        run = begin(self, block)
        if run.lease is not None:
            run.lease.backend.run(self.record(run.lease))
        return run

    OnceLock._begin = hasty  # type: ignore[method-assign]


def work(path: str, names: int, broken: bool, alias: dict[str, Any]) -> None:
    """Go through all names until the work of each is done."""
    settings.configure(REDLOCK={"default": alias}, INSTALLED_APPS=["django_redlock"])
    django.setup()
    from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock

    if broken:
        record_first()
    log, open_ = Log(path), [f"name:{number}" for number in range(names)]
    while open_:
        random.shuffle(open_)
        for name in tuple(open_):
            try:
                with redlock(name, on_lost="raise").once(keep=3600) as run:
                    if run.fresh:
                        log.note(BEGINS, name)
                        time.sleep(random.uniform(0.0, 0.2))
                        log.note(DONE, name)
            except (LeaseLost, LockTaken, NodesUnavailable):
                continue  # where this machine stalls, a lease may be lost: then there is no record
            log.note(RECORDED if run.fresh else MET, name)
            open_.remove(name)
        time.sleep(0.05 * bool(open_))


# -- what they noted ------------------------------------------------------------------------------


class Event(NamedTuple):
    """A line of the log."""

    what: str
    name: str
    pid: int


def judge(events: list[Event]) -> list[str]:
    """Return what went wrong: work that begins again after its record, or was never done."""
    done: set[str] = set()
    known: set[str] = set()
    found = []
    for what, name, _ in events:
        if what == BEGINS and name in known:
            found.append(f"{name} again")
        elif what in {RECORDED, MET}:
            known.add(name)
        elif what == DONE:
            done.add(name)
    return found + [f"{name} never" for name in sorted(known - done)]


# -- a play ---------------------------------------------------------------------------------------


class Play:
    """Processes that go through the same names.

    Attributes:
        events: what has happened, in order.
        killed: how many were killed between the begin of a body and its end.
        failed: how many ended by an error.
    """

    def __init__(self, home: Path, nodes: EmbeddedNodes, names: int, *, broken: bool) -> None:
        self.events: list[Event] = []
        self.killed = self.failed = 0
        self._log = home / "log"
        self._log.touch()
        alias = nodes.settings(MAX_TTL=6, TTL=3, NODE_TIMEOUT=2)
        self._orders = str(self._log), names, broken, alias
        self._alive: dict[int, BaseProcess] = {}
        self._doing: dict[int, str] = {}  # the last event of each process
        self._read = 0

    def start(self) -> None:
        """Start one more process."""
        process = forked.start(work, *self._orders)
        assert process.pid is not None
        self._alive[process.pid] = process

    def look(self) -> None:
        """Read what is new in the log."""
        with self._log.open() as file:
            file.seek(self._read)
            for line in file:
                what, name, pid = line.split()
                self.events.append(Event(what, name, int(pid)))
                self._doing[int(pid)] = what
            self._read = file.tell()

    def kill_one(self) -> None:
        """Kill a process that is at work, if there is one, and start another one."""
        self.look()
        pid = next((pid for pid in self._alive if self._doing.get(pid) == BEGINS), None)
        if pid is not None:
            process = self._alive.pop(pid)
            process.kill()
            process.join()
            self.look()
            self.killed += self._doing[pid] == BEGINS
            self.start()

    def run(self, processes: int, kills: int, seconds: float) -> None:
        """Let so many processes work, and kill some of them, until all have gone through."""
        late = time.monotonic() + seconds
        try:
            for _ in range(processes):
                self.start()
            while time.monotonic() < late and any(each.is_alive() for each in self._alive.values()):
                if self.killed < kills:
                    self.kill_one()
                time.sleep(LOOK)
            self.failed = sum(bool(each.exitcode) for each in self._alive.values())
        finally:
            for process in self._alive.values():
                process.kill()
                process.join()
        self.look()

    def wrong(self) -> list[str]:
        """What went wrong."""
        return judge(self.events) + [f"{self.failed} ended by an error"] * bool(self.failed)

    def gone_through(self) -> int:
        """How many names have a record."""
        return len({event.name for event in self.events if event.what in {RECORDED, MET}})


def play(
    home: Path,
    names: int,
    processes: int,
    kills: int,
    *,
    broken: bool = False,
    seconds: float = SECONDS,
) -> Play:
    """Play it on five nodes of its own."""
    with EmbeddedNodes(5) as nodes:
        found = Play(home, nodes, names, broken=broken)
        found.run(processes, kills, seconds)
    return found


def main() -> int:
    """Play it, and judge what was noted."""
    parser = verdict.parser("dev.soak.faults.doing_once", __doc__)
    parser.add_argument("--names", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="it ends then at the latest")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        played = play(
            Path(home), chosen.names, chosen.processes, chosen.kills, seconds=chosen.seconds
        )
    print(dict(Counter(event.what for event in played.events)))
    return verdict.end(
        played.wrong(),
        Played(played.gone_through(), chosen.names, "names done"),
        Played(played.killed, chosen.kills, "kills at work"),
    )


if __name__ == "__main__":
    sys.exit(main())
