"""What locks do to the memory of the process that takes them: garbage, and what a lease weighs.

Asked {"style": "garbage …", "pairs": how many locks}, it answers {"locks": objects in cycles, which
only the garbage collector frees, that so many locks have left, "futures": that the same loop
leaves with bare futures in place of the locks}. Asked {"style": "memory …", "leases": how many,
"seconds": to hold them}, it answers {"held", "left": bytes of all, while they are held and after
they are released, "lost": how many leases were}.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

import django
from django.test import override_settings

import django_redlock
from django_redlock import redlock

from .serve import Own, serve, settings

WARM = 100  # locks, after which connections, counters and buffers are there
AT_ONCE = 100  # tasks that acquire or release
SETTLED = 0.1  # seconds in which late replies arrive
SHORT = 1.0  # a ttl in seconds; leases that have it are renewed within half of it


def main() -> None:
    """Serve all styles."""
    told = settings()
    django.setup()
    styles = {
        "garbage of threads": Own(_garbage_of_threads),
        "garbage of one task": Own(lambda asked: _garbage_of_tasks(_one_after_the_other, asked)),
        "garbage of many tasks": Own(lambda asked: _garbage_of_tasks(_all_at_once, asked)),
        "memory of threads": Own(lambda asked: _memory(asked, _Threads())),
        "memory of tasks": Own(_memory_of_tasks),
    }
    with override_settings(REDLOCK={"default": told["alias"] | {"NODES": told["urls"]}}):
        serve(django_redlock.__version__, styles)


# -- garbage --------------------------------------------------------------------------------------


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let garbage pile up in the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _garbage_of_threads(asked: Any) -> dict[str, object]:
    def lock(name: str) -> None:
        with redlock(name):
            pass

    def nothing(_: str) -> None:
        pass

    return {
        what: _left_by(call, [f"{asked['name']}:{i}" for i in range(asked["pairs"])])
        for what, call in (("locks", lock), ("futures", nothing))
    }


def _left_by(call: Callable[[str], object], names: Sequence[str]) -> int:
    for name in names[:WARM]:
        call(name)
    with _uncollected():
        for name in names:
            call(name)
        return gc.collect()


Task = Callable[[str], Awaitable[None]]


async def _lock(name: str) -> None:
    async with redlock(name):
        pass


async def _futures(_: str) -> None:
    """Wait twice, as a lock does to acquire and to release."""
    loop = asyncio.get_running_loop()
    for _once in range(2):
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future


async def _one_after_the_other(task: Task, names: Sequence[str]) -> None:
    for name in names:
        await task(name)


async def _all_at_once(task: Task, names: Sequence[str]) -> None:
    await asyncio.gather(*map(task, names))


def _garbage_of_tasks(
    how: Callable[[Task, Sequence[str]], Awaitable[None]], asked: Any
) -> dict[str, object]:
    names = [f"{asked['name']}:{i}" for i in range(asked["pairs"])]

    async def left_by(task: Task) -> int:
        await how(task, names)
        await asyncio.sleep(SETTLED)
        with _uncollected():
            await how(task, names)
            await asyncio.sleep(SETTLED)
            return gc.collect()

    async def both() -> dict[str, object]:
        return {"locks": await left_by(_lock), "futures": await left_by(_futures)}

    return asyncio.run(both())


# -- memory ---------------------------------------------------------------------------------------


class _Threads:
    """Take and release many leases, in a thread; the lists are there before.

    Each lease has a context of its own, as requests of a server have: who takes a lock looks at
    the leases of its context, which are few.
    """

    def take(self, names: Sequence[str], held: list[Any], **options: Any) -> None:
        for i, name in enumerate(names):
            held[i] = Context().run(redlock(name, **options).acquire)

    def release(self, held: list[Any]) -> None:
        for i, lease in enumerate(held):
            lease.release()
            held[i] = None

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _Tasks:
    """The same by tasks of a loop, which runs only meanwhile."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def take(self, names: Sequence[str], held: list[Any], **options: Any) -> None:
        async def one(i: int) -> None:
            held[i] = await redlock(names[i], **options).aacquire()

        self._in_groups(one, len(names))

    def release(self, held: list[Any]) -> None:
        async def one(i: int) -> None:
            await held[i].arelease()
            held[i] = None

        self._in_groups(one, len(held))

    def sleep(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def _in_groups(self, task: Callable[[int], Awaitable[None]], count: int) -> None:
        async def groups() -> None:
            for first in range(0, count, AT_ONCE):
                await asyncio.gather(*map(task, range(first, min(first + AT_ONCE, count))))

        self._runner.run(groups())


def _memory_of_tasks(asked: Any) -> dict[str, object]:
    with asyncio.Runner() as runner:
        return _memory(asked, _Tasks(runner))


def _memory(asked: Any, by: _Threads | _Tasks) -> dict[str, object]:
    names = [f"{asked['name']}:{i}" for i in range(asked["leases"])]
    held: list[Any] = [None] * len(names)
    warm = [None] * WARM
    by.take([f"{asked['name']}:warm:{i}" for i in range(WARM)], warm, ttl=SHORT)
    others: list[Any] = [None] * WARM
    renewed = time.monotonic() + SHORT / 2
    while time.monotonic() < renewed:  # connections for locks that are taken during a renewal
        by.take([f"{asked['name']}:meanwhile:{i}" for i in range(WARM)], others)
        by.release(others)
    by.release(warm)
    by.sleep(SETTLED)
    gc.collect()
    tracemalloc.start()
    try:
        before = _traced()
        by.take(names, held)
        by.sleep(asked["seconds"])
        while_held = _traced()
        lost = sum(lease.lost for lease in held)
        by.release(held)
        by.sleep(SETTLED)
        after = _traced()
    finally:
        tracemalloc.stop()
    return {"held": while_held - before, "left": after - before, "lost": lost}


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    main()
