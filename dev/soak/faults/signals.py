"""A storm of signals: a process at work with locks, interrupted at random moments.

    python -m dev.soak.faults.signals --plays 2000 --seed 1 [--body 0.03] [--broken VARIANT]

A signal handler raises in the main thread of that process, as Ctrl-C and Celery's soft time limit
do. A second process wants the same name all the time. Both note in one file when they believe that
they hold it; the file is judged afterwards.
"""

from __future__ import annotations

import faulthandler
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from dev.soak import verdict
from dev.soak.faults.afterwards import Afterwards
from dev.soak.verdict import Played
from django_redlock import LockTaken, NodesUnavailable
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.locks.lock import Lock
from django_redlock.locks.template import LockTemplate
from tests.support.loops import group_of, unguarded

NAME: Final = "name"
TTL: Final = 4.0
LONG: Final = 0.1  # seconds: a name that is free later stayed taken …
SHARE: Final = 0.01  # … which may be so in this part of the plays
RIVALS: Final = 0.05  # leases of the second process for each play, at least
HANGS: Final = 60.0


class Interruption(Exception):  # noqa: N818 - it is one
    """What the signal handler raises."""


class Wanted(NamedTuple):
    """What is played: how often, by which seed, with seconds in a body; a broken variant."""

    plays: int
    seed: int
    body: float = 0.0
    broken: str = ""


class Line(NamedTuple):
    """What a process noted.

    It ``begins`` or ``ends`` to believe that it holds the name, is ``refused``, could ask no
    majority (``unavailable``), is ``hit`` by an interruption, or ``out`` of it.
    """

    at: float
    who: str
    what: str
    fence: int = 0


class Notes:
    """The file of both processes; the order of its lines is that of the events."""

    def __init__(self, path: str, who: str) -> None:
        self._file, self._who = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), who

    def note(self, what: str, fence: int = 0) -> None:
        """Append a line."""
        os.write(self._file, f"{time.monotonic()} {self._who} {what} {fence}\n".encode())

    def believe(self, lock: Lock, seconds: float = 0.0) -> None:
        """Hold the lock for so long."""
        with lock as lease:
            try:
                self.note("begins", lease.fence)
                time.sleep(seconds)
            finally:
                try:
                    self.note("ends")
                except Interruption:
                    self.note("ends")
                    raise


def judge(lines: Iterable[Line], plays: int) -> dict[str, Any]:
    """Return what happened, and what of it is against the contract."""
    believers: set[str] = set()
    said = {"plays": 0, "rival": 0, "two_at_a_time": 0, "fences_not_rising": 0, "unavailable": 0}
    slowest, stays, problems, fence = 0.0, list[float](), list[str](), 0
    hit, out, taken = 0.0, math.inf, 0.0
    for at, who, what, number in lines:
        said["plays"] += what == "out"
        said["unavailable"] += what == "unavailable"
        if what == "begins":
            said["rival"] += who == "rival"
            said["two_at_a_time"] += bool(believers - {who})
            said["fences_not_rising"] += number <= fence
            fence, believers = max(fence, number), believers | {who}
            stays.append(taken)
            out, taken = math.inf, 0.0
        elif what == "ends":
            believers.discard(who)
        elif what == "hit":
            hit = at
        elif what == "out":
            out, slowest = at, max(slowest, at - hit)
        elif what == "refused":  # so no stall of this machine counts
            taken = max(taken, at - out)
        elif what != "unavailable":
            problems.append(what)
    late, longest = sum(each > LONG for each in (*stays, taken)), max(*stays, taken)
    found = {
        "two believed at a time": said["two_at_a_time"],
        "a fence came twice": said["fences_not_rising"],
        "it hung": said["plays"] < plays,
        "a name outlived its ttl": longest > 2 * TTL,
        "names stayed taken too often": late > max(1, SHARE * plays),
    }
    problems += [each for each, wrong in found.items() if wrong]
    return said | {"late": late, "longest": longest, "slowest": slowest, "problems": problems}


def played(found: dict[str, Any], plays: int) -> tuple[Played, Played]:
    """Return how much of what was judged was played: little, if a second process seldom had it."""
    least = math.ceil(RIVALS * found["plays"])
    return Played(found["plays"], plays, "plays"), Played(found["rival"], least, "rival's leases")


# -- the processes --------------------------------------------------------------------------------


def locks_of(
    urls: list[str], ttl: float = TTL, timeout: float = 5.0
) -> tuple[Backend, LockTemplate]:
    """Return what makes locks on these nodes in this process."""
    backend = Backend(
        "default", group_of(urls, timeout), Policy(size=len(urls), max_ttl=60), ttl=ttl
    )
    return backend, LockTemplate(lambda _: backend)


def rival(urls: list[str], path: str) -> None:
    """Want the name all the time, until somebody ends this process."""
    notes, (_, redlock) = Notes(path, "rival"), locks_of(urls)
    while True:
        with suppress(LockTaken, NodesUnavailable):
            notes.believe(redlock(NAME), 0.0002)
        time.sleep(0.003)


class Storm:
    """The process at work, whose main thread is interrupted."""

    def __init__(self, urls: list[str], path: str, wanted: Wanted) -> None:
        self._notes, (self._backend, self._redlock) = Notes(path, "struck"), locks_of(urls)
        self._chance, self._wanted = random.Random(wanted.seed), wanted
        self._shared, self._armed, self._over = self._redlock(NAME), False, False
        signal.signal(signal.SIGALRM, self._strike)

    def _strike(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            self._notes.note("hit")
            raise Interruption

    def rage(self) -> None:
        """Be interrupted so often; note what is not well then."""
        typical = self._typical()
        before = Afterwards(self._backend.group, within=10.0 if self._wanted.broken else 60.0)
        thread = threading.Thread(target=self._beside, daemon=True)
        thread.start()
        for play in range(self._wanted.plays):
            faulthandler.dump_traceback_later(HANGS, exit=True)
            if play % 100 == 0:  # what else the machine does changes
                typical = self._typical()
            while not self._interrupted(self._wanted.body + 1.3 * typical):
                pass
            self._notes.note("out")
            end = time.monotonic() + 3 * TTL
            while not self._has_it(self._shared) and time.monotonic() < end:
                time.sleep(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not thread.is_alive():
            self._notes.note("the_other_thread_ended")
        self._over = True
        thread.join()
        faulthandler.cancel_dump_traceback_later()
        for problem in before.problems(self._backend):
            self._notes.note(problem.replace(" ", "_"))

    def _typical(self) -> float:
        start = time.monotonic()
        for number in range(20):
            with self._redlock(f"typical:{number}"):
                pass
        return (time.monotonic() - start) / 20

    def _beside(self) -> None:
        """Another thread works with locks, too, and no interruption makes it hang."""
        while not self._over:
            with self._redlock("beside"):
                time.sleep(0.002)

    def _interrupted(self, longest: float) -> bool:
        mine = self._redlock(NAME, wait=self._chance.choice([0, 0.05]))
        lock = self._chance.choice([self._shared, mine])
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, longest))
            self._has_it(lock, self._wanted.body)
            self._armed = False  # a signal that is on its way does nothing
        except Interruption:
            return True
        return False

    def _has_it(self, lock: Lock, seconds: float = 0.0) -> bool:
        try:
            self._notes.believe(lock, seconds)
        except (LockTaken, NodesUnavailable) as error:
            self._notes.note("refused" if isinstance(error, LockTaken) else "unavailable")
            return False
        return True


def storm(urls: list[str], path: str, wanted: Wanted) -> None:
    """Play it in this process."""
    VARIANTS.get(wanted.broken, int)()
    Storm(urls, path, wanted).rage()


def cut(urls: list[str], parent: Connection, variant: str) -> None:
    """Be interrupted while the name is asked for, and end by that, for ``test_signals``."""

    def end(*_: object) -> None:
        raise SystemExit(1)

    VARIANTS.get(variant, int)()
    _, redlock = locks_of(urls, ttl=60.0, timeout=2.0)
    with redlock("warm"):
        pass
    signal.signal(signal.SIGALRM, end)
    parent.send("ready")
    parent.recv()
    redlock(NAME).acquire()


# -- broken variants ------------------------------------------------------------------------------


def careless_run(backend: Backend, steps: Any, value: Any = None) -> Any:
    """Carry out steps that learn of no interruption, and so undo nothing."""
    try:
        while True:
            value = backend._perform(steps.send(value))
    except StopIteration as stop:
        return stop.value


def careless() -> None:
    """Let an interruption pass the steps of the algorithm by."""
    Backend.run = careless_run  # type: ignore[method-assign,assignment]


def early() -> None:
    """Release before the body."""
    enter: Any = Lock.__enter__

    def entered(self: Lock) -> Any:
        lease = enter(self)
        lease.release()
        return lease

    Lock.__enter__ = entered  # type: ignore[method-assign]


VARIANTS: Final = {each.__name__: each for each in (careless, early)}


def play(wanted: Wanted) -> dict[str, Any]:
    """Let it rage; return what was found."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, unguarded(5) as nodes:
        urls, path = list(nodes.urls), f"{folder}/notes"
        second = spawn.Process(target=rival, args=(urls, path))
        struck = spawn.Process(target=storm, args=(urls, path, wanted))
        second.start()
        struck.start()
        struck.join()
        second.kill()
        second.join()
        lines = [line.split() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    found = judge((Line(float(at), who, what, int(n)) for at, who, what, n in lines), wanted.plays)
    if struck.exitcode:
        found["problems"].append(f"the process ended with {struck.exitcode}")
    return found


def main() -> int:
    """Print what was found, and the verdict."""
    parser = verdict.parser("dev.soak.faults.signals", __doc__)
    parser.add_argument("--plays", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--body", type=float, default=0.0)
    parser.add_argument("--broken", choices=VARIANTS, default="")
    wanted = Wanted(**vars(parser.parse_args()))
    found = play(wanted)
    print(json.dumps(found))
    return verdict.end(found["problems"], *played(found, wanted.plays))


if __name__ == "__main__":
    sys.exit(main())
