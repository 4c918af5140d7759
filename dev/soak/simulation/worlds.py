"""Many worlds on all cores, in as many sittings as it takes (``make soak ARGS=worlds``).

What was played is kept in a small file: a run that was interrupted goes on where it stopped,
and a change of any module of the package, or of the simulation, begins anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tests.simulation.checker import Violation
from tests.simulation.kinds import EVERYWHERE, KINDS, play, quiet
from tests.simulation.mutants import MUTANTS, broken

ROOT: Final = Path(__file__).parents[3]
DECIDES: Final = (ROOT / "django_redlock", ROOT / "tests/simulation")  # what a world does
CHUNK: Final = 50  # worlds that a process plays at a time
EVERY: Final = 20.0  # seconds between lines of progress where nobody watches
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play.

    Attributes:
        worlds: how many; whole chunks are played.
        seed: of the first.
        mutant: which broken variant, if any.
        jobs: how many processes.
        state: the file that remembers.
    """

    worlds: int
    state: Path
    seed: int = 0
    mutant: str = ""
    jobs: int = 1

    @property
    def chunks(self) -> range:
        """The numbers of all chunks."""
        return range(-(-self.worlds // CHUNK))

    def identity(self) -> str:
        """Changes with all that a result depends on."""
        found = hashlib.sha256(f"{self.seed} {self.mutant} {CHUNK}".encode())
        for place in DECIDES:
            for path in sorted(place.rglob("*.py")):
                found.update(f"\0{path.relative_to(place)}\0".encode())
                found.update(path.read_bytes())
        return found.hexdigest()


class Progress:
    """Which chunks were played, on disk after each."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._identity = plan.identity()
        self.done: set[int] = set()
        try:
            told = json.loads(plan.state.read_text())
            if told["code"] == self._identity:
                self.done = set(told["chunks"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass  # nothing that can be gone on with

    def played(self, chunk: int) -> None:
        """Remember a chunk; the file is whole at any time."""
        self.done.add(chunk)
        new = self._plan.state.with_name(f"{self._plan.state.name}.new")
        new.write_text(json.dumps({"code": self._identity, "chunks": sorted(self.done)}))
        new.replace(self._plan.state)

    @property
    def worlds(self) -> int:
        """How many were played, of those in the plan."""
        return CHUNK * sum(chunk in self.done for chunk in self._plan.chunks)


def chunk(plan: Plan, number: int) -> tuple[int, str]:
    """Play a chunk in this process; its number and what was broken, if anything."""
    first = plan.seed + number * CHUNK
    with ExitStack() as stack:
        where = None
        for mutant in MUTANTS:
            if mutant.name == plan.mutant:
                stack.enter_context(broken(mutant))
                where = EVERYWHERE[mutant.profile]
        for seed in range(first, first + CHUNK):
            try:
                play(seed, where)
            except Violation as violation:
                return number, str(violation)
            except Exception:  # noqa: BLE001 - code that fails is found as well
                return number, traceback.format_exc()
    return number, ""


def _begin() -> None:
    """Leave Ctrl-C to the parent, and log nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet()


def _played(plan: Plan, numbers: Iterable[int]) -> Generator[tuple[int, str], None, None]:
    """Play chunks in processes, which end by themselves; yield what ``chunk`` says of each.

    ``multiprocessing.Pool`` kills them: one that has a lock of the pool then stops it for ever.
    """
    left = iter(numbers)
    with ProcessPoolExecutor(plan.jobs, initializer=_begin) as pool:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:  # a Ctrl-C does not end them in their first moments, either
            playing = {pool.submit(chunk, plan, each) for each in islice(left, 2 * plan.jobs)}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        try:
            while playing:
                ended, playing = wait(playing, return_when=FIRST_COMPLETED)
                playing |= {pool.submit(chunk, plan, each) for each in islice(left, len(ended))}
                yield from (each.result() for each in ended)
        finally:
            pool.shutdown(cancel_futures=True)


def soak(plan: Plan) -> int:
    """Play what is missing; the exit status: 0, 1 when a promise was broken, 130 by Ctrl-C."""
    progress = Progress(plan)
    left = [number for number in plan.chunks if number not in progress.done]
    total = CHUNK * len(plan.chunks)
    if before := progress.worlds:
        print(f"{before} of {total} worlds were played before, by the same code", flush=True)
    line = JoinQueue(before, total)
    try:
        with closing(_played(plan, left)) as played:
            for number, story in played:
                if story:
                    line.end(progress.worlds)
                    print(f"a promise is broken:\n{story}", file=sys.stderr)
                    return 1
                progress.played(number)
                line.show(progress.worlds)
    except KeyboardInterrupt:
        line.end(progress.worlds)
        print("interrupted; the same command goes on from here", flush=True)
        return INTERRUPTED
    line.end(progress.worlds)
    print(f"{total} worlds in {len(KINDS)} profiles, and no promise was broken", flush=True)
    return 0


class JoinQueue:
    """One line that tells how far it is; rewritten where somebody watches."""

    def __init__(self, before: int, total: int) -> None:
        self._before, self._total = before, total
        self._start = self._last = time.monotonic()
        self._watched = sys.stdout.isatty()

    def show(self, worlds: int) -> None:
        """Tell it, if it is time."""
        now = time.monotonic()
        if self._watched:
            print(f"\r{self._text(worlds)}\033[K", end="", flush=True)
        elif now - self._last >= EVERY:
            self._last = now
            print(self._text(worlds), flush=True)

    def end(self, worlds: int) -> None:
        """Tell the last of it."""
        print(f"\r{self._text(worlds)}\033[K" if self._watched else self._text(worlds), flush=True)

    def _text(self, worlds: int) -> str:
        speed = (worlds - self._before) / max(0.001, time.monotonic() - self._start)
        left = (self._total - worlds) / speed / 60 if speed else 0.0
        return f"{worlds} of {self._total} worlds, {speed:.0f} a second, {left:.0f} min left"


def main() -> int:
    """Parse the command line and play."""
    parser = argparse.ArgumentParser(
        prog="python -m dev.soak.simulation.worlds", description=__doc__
    )
    parser.add_argument("--worlds", type=int, default=200_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--mutant", choices=[each.name for each in MUTANTS], default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--state", type=Path, default=Path(".soak.json"), help="what it keeps")
    quiet()
    return soak(Plan(**vars(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
