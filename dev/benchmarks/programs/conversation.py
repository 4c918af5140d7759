"""How a client's program is spoken to: an argument in JSON, then a line of JSON each way.

The argument has at least {"urls": of the nodes}. The program says {"ready": version of the library,
"styles": its ways}. Then it is asked, with {"do": what, "style": by which way} and

    acquire   {"key", "ttl": seconds}: one attempt; true or false
    extend    {"ttl"}: the lock acquired last; true or false
    release   the same; false where the client says that the lock was not its own
    block     {"name", "pairs": locks in all, "tasks": tasks or threads that take them at once,
              "seconds": after which to end}: what ``Samples.answer`` returns
    crowd     {"name", "processes", "hold", "turns", "seconds"}: what ``Crowd.turns`` returns

What a client raises is answered as {"error": "…"}. The program ends with its input. Only the
standard library is imported, for the interpreters of other clients run this.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from .crowd import Crowd

Stamps = tuple[int, int, int]  # nanoseconds: asked, had, released
Style = Callable[[str], Stamps | Awaitable[Stamps]]  # takes and frees one lock with this name


class NotHadError(Exception):
    """A free lock was refused."""


def style_of(client: Any, ttl: float) -> Style:
    """The style of a client with ``acquire`` and ``release``; what is None was not had."""

    def one(name: str) -> Stamps:
        began = time.perf_counter_ns()
        lease = client.acquire(name, ttl)
        had = time.perf_counter_ns()
        if lease is None:
            raise NotHadError(name)
        client.release(lease)
        return began, had, time.perf_counter_ns()

    async def by_task(name: str) -> Stamps:
        began = time.perf_counter_ns()
        lease = await client.acquire(name, ttl)
        had = time.perf_counter_ns()
        if lease is None:
            raise NotHadError(name)
        await client.release(lease)
        return began, had, time.perf_counter_ns()

    return by_task if inspect.iscoroutinefunction(client.acquire) else one


def call(function: Callable[[], object]) -> Style:
    """The style that takes and frees a lock in one call."""

    def one(_: str) -> Stamps:
        began = time.perf_counter_ns()
        function()
        ended = time.perf_counter_ns()
        return began, ended, ended

    return one


class Samples:
    """What the locks of one block took."""

    def __init__(self, seconds: float) -> None:
        self.taken: list[Stamps] = []
        self.failed, self.error = 0, ""
        self.start, self.worked = time.perf_counter(), time.process_time()
        self.deadline = self.start + seconds

    def late(self) -> bool:
        """Whether the block has lasted long enough."""
        return time.perf_counter() > self.deadline

    def fail(self, error: Exception) -> None:
        """Count a lock that was not had."""
        self.failed += 1
        self.error = self.error or f"{type(error).__name__}: {error}"[:200]

    def answer(self) -> dict[str, object]:
        """Medians in µs, seconds and processor seconds of it all, and µs of each lock."""
        seconds, worked = time.perf_counter() - self.start, time.process_time() - self.worked
        pairs = [(ended - began) / 1000 for began, _, ended in self.taken]
        acquired = [(had - began) / 1000 for began, had, _ in self.taken]
        return {
            "acquire": statistics.median(acquired) if acquired else None,
            "pair": statistics.median(pairs) if pairs else None,
            "seconds": seconds,
            "processor": worked,
            "pairs": len(pairs),
            "failed": self.failed,
            "error": self.error,
            "samples": [round(each, 1) for each in pairs],
        }


def settings() -> Any:
    """What the bench said when it started us."""
    return json.loads(sys.argv[1])


def serve(
    version: str,
    clients: Mapping[str, Any],
    more: Mapping[str, Style] | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Do what is asked until nobody asks any more.

    Args:
        clients: by style, objects with ``acquire(key, ttl)``, ``release(lease)``, and maybe
            ``extend(lease, ttl)`` and ``wait(key, ttl, seconds)``; ttl in seconds. The methods of
            one object are all functions or all coroutine functions.
        more: styles that have only blocks.
    """
    told, held = settings(), None
    ttl = told.get("ttl", 60.0)
    styles = {name: style_of(each, ttl) for name, each in clients.items()} | dict(more or {})
    crowds = {name: Crowd(each, ttl) for name, each in clients.items()}
    for name, processes in told.get("crowds", {}).items():
        crowds[name].grow(processes)  # before anything of the library has run
    _say({"ready": version, "styles": list(styles)})
    with asyncio.Runner(loop_factory=loop_factory) as runner:

        def answer(what: str, name: str, asked: Any) -> Any:
            nonlocal held
            if what == "crowd":
                return crowds[name].turns(asked)
            if what == "block":
                return _block(styles[name], asked, runner)
            words = [asked[word] for word in ("key", "ttl") if word in asked]
            words = words if what == "acquire" else [held, *words]
            result = getattr(clients[name], what)(*words)
            result = runner.run(result) if inspect.iscoroutine(result) else result
            if what == "acquire":
                held = result or held
                return result is not None
            return result is not False  # None: it never tells whether there was a lock

        for line in sys.stdin:
            asked = json.loads(line)
            try:
                _say(answer(asked["do"], asked["style"], asked))
            except Exception as error:  # noqa: BLE001 - it is told, with its type
                _say({"error": f"{type(error).__name__}: {error}"})


def _say(said: object) -> None:
    print(json.dumps(said), flush=True)


def _block(style: Any, asked: Any, runner: asyncio.Runner) -> dict[str, object]:
    samples, tasks = Samples(asked["seconds"]), asked["tasks"]
    names = [f"{asked['name']}:{number}" for number in range(tasks)]
    each = asked["pairs"] // tasks
    if inspect.iscoroutinefunction(style):

        async def concurrently() -> None:
            await asyncio.gather(*(_by_a_task(style, samples, name, each) for name in names))

        runner.run(concurrently())
    elif tasks == 1:
        _in_turn(style, samples, names[0], each)
    else:
        begin = threading.Barrier(tasks)

        def thread(name: str) -> None:
            begin.wait()
            _in_turn(style, samples, name, each)

        list(_pool(tasks).map(thread, names))
    return samples.answer()


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    """Threads that live as long as the process, as those of a server do."""
    return ThreadPoolExecutor(size)


def _in_turn(style: Any, samples: Samples, name: str, pairs: int) -> None:
    for _ in range(pairs):
        try:
            samples.taken.append(style(name))
        except Exception as error:  # noqa: BLE001 - each library has its own
            samples.fail(error)
        if samples.late():
            return


async def _by_a_task(style: Any, samples: Samples, name: str, pairs: int) -> None:
    for _ in range(pairs):
        try:
            samples.taken.append(await style(name))
        except Exception as error:  # noqa: BLE001 - each library has its own
            samples.fail(error)
        if samples.late():
            return
