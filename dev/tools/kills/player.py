"""A plugin of pytest that collects once and forks for each mutant, to see which tests kill it."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from .mutants import Live, Mutant, live_functions, put_in

KILLERS: Final = 3  # are recorded
MORE: Final = 40  # tests that are played for the second killer and the third
LONGEST: Final = 120  # seconds for a mutant; then it survives
PATIENCE: Final = 30  # seconds for a test, and so many times its own; then it hangs
MEMORY: Final = 4 << 30  # bytes; a loop that never ends may want them all
TO_END: Final = 10  # seconds for the fixtures, after a failure


class Play(NamedTuple):
    """A mutant, and what is played for it.

    Attributes:
        tests: in their order; None: all that were collected.
        covering: how many tests run its line.
        enough: so many killers end the play.
        refused: why it cannot be played.
    """

    mutant: Mutant
    tests: list[str] | None
    covering: int = 0
    enough: int = KILLERS
    refused: str = ""


class Player:
    """Plays mutants, some at once, and appends a row for each to a file."""

    def __init__(
        self, plays: list[Play], package: Path, seconds: dict[str, float], rows: Path, workers: int
    ) -> None:
        self.plays, self.package, self.seconds, self.rows = plays, package, seconds, rows
        self.root = Path.cwd()  # the files of mutants are relative to it
        self.workers = workers
        self.items: dict[str, pytest.Item] = {}
        self.live: Live = {}
        # What a test did without a mutant, in such a fork.
        self.fails_anyway: dict[str, bool] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Play the mutants instead of the tests."""
        if session.testsfailed:  # some could not be collected: pytest says so
            return None
        self.items = {item.nodeid: item for item in session.items}
        self.live = live_functions(self.package)
        # One folder for all forks: each would make its own, and sweep those of others.
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        forks = [fork(lambda n=n: self._lane(n)) for n in range(self.workers)]  # type: ignore[misc]
        for each in forks:
            os.waitpid(each, 0)
        return True

    def _lane(self, number: int) -> None:
        for n, play in enumerate(self.plays):
            if n % self.workers == number:
                row = self.judged(play)
                with self.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                first = next(iter(row["killers"]), "")
                print(
                    f"{row['seconds']:6.1f} s {row['outcome']:12} {play.mutant} {first}", flush=True
                )

    def judged(self, play: Play) -> dict[str, Any]:
        """Play one mutant; return its row."""
        began, worked = time.monotonic(), work()
        tests = self.items if play.tests is None else play.tests
        left = [each for each in tests if each in self.items and not self.fails_anyway.get(each)]
        killers: dict[str, str] = {}
        passed, refused = 0, play.refused
        while left and not refused and len(killers) < play.enough:
            number, killer, why = self._run(left, play.mutant)
            passed += number
            left = left[number + 1 :]
            if not killer:  # all have passed, or none has begun
                refused = why
                break
            if killer not in self.fails_anyway:
                self.fails_anyway[killer] = bool(self._run([killer])[1])
            if not self.fails_anyway[killer]:
                killers[killer] = why
                left = left[:MORE]
        outcome = "killed" if killers else "not applied" if refused else "survived"
        told = {"outcome": outcome, "killers": killers, "passed": passed, "refused": refused}
        took = {"seconds": round(time.monotonic() - began, 1), "worked": round(work() - worked, 1)}
        return play.mutant._asdict() | told | {"covering": play.covering} | took

    def _run(self, tests: list[str], mutant: Mutant | None = None) -> tuple[int, str, str]:
        """Run tests in a fork until one fails: how many passed, the one that failed, and why."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = fork(lambda: self._child(tests, mutant, theirs))
        theirs.close()
        passed, running, why = 0, "", "the process died"
        limit = None  # until a test begins
        try:
            while ours.poll(limit):
                what, text = ours.recv()
                if what == "begins":
                    running, limit = text, PATIENCE * (1 + self.seconds.get(text, 0))
                elif what == "passed":
                    passed, running = passed + 1, ""
                else:
                    why = text
                    ours.poll(TO_END if what == "failed" else 0)
                    break
            else:
                why = "timeout"
        except EOFError:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ours.close()
        return passed, running, why if running or not passed else ""

    def _child(self, tests: list[str], mutant: Mutant | None, pipe: Connection) -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2):
            os.dup2(nowhere, each)
        try:
            refused = put_in(mutant, self.root, self.live) if mutant else ""
        except Exception as error:  # noqa: BLE001  # its module cannot be imported, for example
            refused = repr(error)
        if refused:
            pipe.send(("refused", refused))
            return
        for test, following in zip_longest(tests, tests[1:]):
            pipe.send(("begins", test))
            item, after = self.items[test], self.items.get(following)
            reports = runtestprotocol(item, log=False, nextitem=after)
            failed = [each for each in reports if each.failed]
            if failed:
                pipe.send(("failed", str(failed[0].longrepr)[-300:]))
                break
            pipe.send(("passed", test))
        self.items[tests[0]].session._setupstate.teardown_exact(None)
        pipe.send(("ended", ""))


def work() -> float:
    """Return the seconds that a processor worked for the forks that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fork(run: Callable[[], None]) -> int:
    """Call a function in a fork, which ends with it; return the number of the process."""
    child = os.fork()
    if child:
        return child
    try:
        run()
    except BaseException:  # noqa: BLE001  # nobody else would say so
        traceback.print_exc()
    finally:
        os._exit(0)
