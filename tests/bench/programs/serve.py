"""How a contestant is spoken to: its settings as an argument, then one line of JSON each way.

It says {"ready": version of the library, "styles": its ways}. Then

* it is asked {"style", "name": prefix of the names, "pairs": how many acquire + release in all,
  "tasks": by how many tasks at once, "seconds": after which to end};
* it answers {"acquire", "pair": medians in µs, "seconds": of it all, "processor": seconds of ours
  in that time, "pairs": that worked, "failed": that did not, "error": the first reason};
* or, of a style that is a crowd, what ``crowd`` says.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from .crowd import Crowd, gather


class Blocking(NamedTuple):
    """Acquire by a name, release what that returned. None: not had."""

    acquire: Callable[[str], Any]
    release: Callable[[Any], object]


class Asyncio(NamedTuple):
    """The same with coroutines."""

    acquire: Callable[[str], Awaitable[Any]]
    release: Callable[[Any], Awaitable[object]]


class Call(NamedTuple):
    """Acquire and release in one call that does nothing else."""

    call: Callable[[], object]


Pairs = Blocking | Asyncio | Call
Style = Pairs | Crowd


class NotHadError(Exception):
    """A free lock was refused."""


class VoteCount:
    """What the pairs of one block took."""

    def __init__(self, seconds: float) -> None:
        self.acquire: list[float] = []
        self.pair: list[float] = []
        self.failed = 0
        self.error = ""
        self.start, self.worked = time.perf_counter(), time.process_time()
        self.deadline = self.start + seconds

    def late(self) -> bool:
        """Whether the block has lasted long enough."""
        return time.perf_counter() > self.deadline

    def add(self, began: int, had: int, ended: int) -> None:
        """Count a pair by three readings in nanoseconds."""
        self.acquire.append((had - began) / 1000)
        self.pair.append((ended - began) / 1000)

    def fail(self, error: Exception) -> None:
        """Count a pair that did not work."""
        self.failed += 1
        self.error = self.error or f"{type(error).__name__}: {error}"[:200]

    def answer(self) -> dict[str, object]:
        """The line that is answered."""
        return {
            "acquire": statistics.median(self.acquire) if self.acquire else None,
            "pair": statistics.median(self.pair) if self.pair else None,
            "seconds": time.perf_counter() - self.start,
            "processor": time.process_time() - self.worked,
            "pairs": len(self.pair),
            "failed": self.failed,
            "error": self.error,
        }


def settings() -> Any:
    """What the bench said when it started us."""
    return json.loads(sys.argv[1])


def serve(version: str, styles: Mapping[str, Style]) -> None:
    """Do what is asked until nobody asks any more."""
    _say({"ready": version, "styles": list(styles)})
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            asked = json.loads(line)
            style = styles[asked["style"]]
            if isinstance(style, Crowd):
                _say(gather(style, asked, _waiters))
            else:
                _say(_block(style, asked, runner))


def _block(style: Pairs, asked: Any, runner: asyncio.Runner) -> dict[str, object]:
    tally, pairs = VoteCount(asked["seconds"]), asked["pairs"]
    if isinstance(style, Asyncio):
        runner.run(_concurrently(style, tally, asked["name"], pairs, asked["tasks"]))
    elif isinstance(style, Blocking):
        _in_turn(style, tally, asked["name"], pairs)
    else:
        _called(style, tally, pairs)
    return tally.answer()


def _waiters(processes: int) -> None:
    """Say that so many are there; return when they may begin."""
    _say({"standing": processes})
    sys.stdin.readline()


def _say(said: object) -> None:
    print(json.dumps(said), flush=True)


def _in_turn(style: Blocking, tally: VoteCount, name: str, pairs: int) -> None:
    for _ in range(pairs):
        try:
            began = time.perf_counter_ns()
            lease = style.acquire(name)
            had = time.perf_counter_ns()
            if lease is None:
                raise NotHadError(name)  # noqa: TRY301 - counted like what the library raises
            style.release(lease)
            tally.add(began, had, time.perf_counter_ns())
        except Exception as error:  # noqa: BLE001 - each library has its own
            tally.fail(error)
        if tally.late():
            return


def _called(style: Call, tally: VoteCount, pairs: int) -> None:
    for _ in range(pairs):
        began = time.perf_counter_ns()
        style.call()
        ended = time.perf_counter_ns()
        tally.add(began, ended, ended)
        if tally.late():
            return


async def _concurrently(
    style: Asyncio, tally: VoteCount, name: str, pairs: int, tasks: int
) -> None:
    async def task(own: str) -> None:
        for _ in range(pairs // tasks):
            try:
                began = time.perf_counter_ns()
                lease = await style.acquire(own)
                had = time.perf_counter_ns()
                if lease is None:
                    raise NotHadError(own)  # noqa: TRY301 - counted like what the library raises
                await style.release(lease)
                tally.add(began, had, time.perf_counter_ns())
            except Exception as error:  # noqa: BLE001 - each library has its own
                tally.fail(error)
            if tally.late():
                return

    await asyncio.gather(*(task(f"{name}:{i}") for i in range(tasks)))
