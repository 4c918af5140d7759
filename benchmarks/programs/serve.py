"""How a client is spoken to: its settings as an argument, then one line of JSON each way.

It says {"ready": version of the library, "styles": its ways}. Then

* it is asked {"style", "name": prefix of the names, "pairs": how many acquire + release in all,
  "tasks": by how many tasks or threads at once, "seconds": after which to end};
* it answers {"acquire", "pair": medians in µs, "seconds": of it all, "processor": seconds of ours
  in that time, "pairs": that worked, "failed": that did not, "error": the first reason,
  "samples": µs of each acquire + release};
* or, of a style that is a crowd, what ``crowd`` says.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

from .crowd import Crowd, gather


class Blocking(NamedTuple):
    """Acquire by a name, release what that returned. None: not had.

    Asked for several tasks, as many threads do so at once, each with a name of its own.
    """

    acquire: Callable[[str], Any]
    release: Callable[[Any], object]


class Asyncio(NamedTuple):
    """The same with coroutines."""

    acquire: Callable[[str], Awaitable[Any]]
    release: Callable[[Any], Awaitable[object]]


class Call(NamedTuple):
    """Acquire and release in one call that does nothing else."""

    call: Callable[[], object]


class AsyncCall(NamedTuple):
    """The same with a coroutine function, which is given a name."""

    call: Callable[[str], Awaitable[object]]


class Within(NamedTuple):
    """A context manager for a name; what it gives is called again and again."""

    enter: Callable[[str], AbstractContextManager[Callable[[], object]]]


class Own(NamedTuple):
    """A style that takes its own time: what was asked in, what is answered out."""

    block: Callable[[Any], dict[str, object]]


Pairs = Blocking | Asyncio | Call | AsyncCall | Within
Style = Pairs | Crowd | Own


class NotHadError(Exception):
    """A free lock was refused."""


class Samples:
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

    def include(self, other: Samples) -> None:
        """Count what another thread has done in the same time."""
        self.acquire += other.acquire
        self.pair += other.pair
        self.failed += other.failed
        self.error = self.error or other.error

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
            "samples": [round(each, 1) for each in self.pair],
        }


def settings() -> Any:
    """What the bench said when it started us."""
    return json.loads(sys.argv[1])


def serve(
    version: str,
    styles: Mapping[str, Style],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Do what is asked until nobody asks any more."""
    _say({"ready": version, "styles": list(styles)})
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        for line in sys.stdin:
            asked = json.loads(line)
            style = styles[asked["style"]]
            if isinstance(style, Crowd):
                _say(gather(style, asked, _waiters))
            elif isinstance(style, Own):
                _say(style.block(asked))
            else:
                _say(_block(style, asked, runner))


def _block(style: Pairs, asked: Any, runner: asyncio.Runner) -> dict[str, object]:
    samples, pairs = Samples(asked["seconds"]), asked["pairs"]
    if isinstance(style, Asyncio | AsyncCall):
        runner.run(_concurrently(style, samples, asked["name"], pairs, asked["tasks"]))
    elif isinstance(style, Blocking) and asked["tasks"] > 1:
        _by_threads(style, samples, asked)
    elif isinstance(style, Blocking):
        _in_turn(style, samples, asked["name"], pairs)
    elif isinstance(style, Within):
        with style.enter(asked["name"]) as call:
            _called(call, samples, pairs)
    else:
        _called(style.call, samples, pairs)
    return samples.answer()


def _waiters(processes: int) -> None:
    """Say that so many are there; return when they may begin."""
    _say({"waiting": processes})
    sys.stdin.readline()


def _say(said: object) -> None:
    print(json.dumps(said), flush=True)


def _in_turn(style: Blocking, samples: Samples, name: str, pairs: int) -> None:
    for _ in range(pairs):
        try:
            began = time.perf_counter_ns()
            lease = style.acquire(name)
            had = time.perf_counter_ns()
            if lease is None:
                raise NotHadError(name)  # noqa: TRY301 - counted like what the library raises
            style.release(lease)
            samples.add(began, had, time.perf_counter_ns())
        except Exception as error:  # noqa: BLE001 - each library has its own
            samples.fail(error)
        if samples.late():
            return


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    """Threads that live as long as the process, as those of a server do."""
    return ThreadPoolExecutor(size)


def _by_threads(style: Blocking, samples: Samples, asked: Any) -> None:
    threads = asked["tasks"]
    begin = threading.Barrier(threads)

    def thread(number: int) -> Samples:
        own = Samples(asked["seconds"])
        begin.wait()
        _in_turn(style, own, f"{asked['name']}:{number}", asked["pairs"] // threads)
        return own

    for own in _pool(threads).map(thread, range(threads)):
        samples.include(own)


def _called(call: Callable[[], object], samples: Samples, pairs: int) -> None:
    for _ in range(pairs):
        try:
            began = time.perf_counter_ns()
            call()
            ended = time.perf_counter_ns()
            samples.add(began, ended, ended)
        except Exception as error:  # noqa: BLE001 - each library has its own
            samples.fail(error)
        if samples.late():
            return


async def _concurrently(
    style: Asyncio | AsyncCall, samples: Samples, name: str, pairs: int, tasks: int
) -> None:
    async def task(own: str) -> None:
        for _ in range(pairs // tasks):
            try:
                samples.add(*await _timed(style, own))
            except Exception as error:  # noqa: BLE001 - each library has its own
                samples.fail(error)
            if samples.late():
                return

    await asyncio.gather(*(task(f"{name}:{i}") for i in range(tasks)))


async def _timed(style: Asyncio | AsyncCall, name: str) -> tuple[int, int, int]:
    began = time.perf_counter_ns()
    if isinstance(style, AsyncCall):
        await style.call(name)
        ended = time.perf_counter_ns()
        return began, ended, ended
    lease = await style.acquire(name)
    had = time.perf_counter_ns()
    if lease is None:
        raise NotHadError(name)
    await style.release(lease)
    return began, had, time.perf_counter_ns()
