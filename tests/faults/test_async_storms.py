"""Tasks that are cancelled, one by one and by the hundred: whether each ends, and how.

Nothing here is measured in seconds: what counts are the requests that a task makes after its last
cancellation, and a task of a storm is called hung if none at all ends for a minute.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any, ClassVar, TypeVar

import pytest

from django_redlock.backend import Backend
from django_redlock.core.protocol import Effect, Request, Steps, Vote
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from tests.support.loops import soon, template
from tests.support.waiting import waiters

T = TypeVar("T")
MOST_AFTER = 3  # requests of a cancelled task: it undoes, leaves the queue, and wakes the next


class Counted(Backend):
    """Counts the requests of each task since it was last cancelled."""

    after: ClassVar[Counter[object]] = Counter()

    def _aperform(self, effect: Effect) -> Awaitable[Any]:
        task = asyncio.current_task()
        if task is not None and task.cancelling() and isinstance(effect, Request):
            self.after[task] += 1
        return super()._aperform(effect)


class Deaf(Counted):
    """Goes on to its end, also where a task is cancelled."""

    async def arun(self, steps: Steps[T]) -> T:
        """Carry out steps; a cancellation is not heard."""
        running = asyncio.ensure_future(self._run(steps))
        while not running.done():
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                continue
        return running.result()

    async def _run(self, steps: Steps[T]) -> T:
        return await super().arun(steps)


# -- one by one -----------------------------------------------------------------------------------


def _answer(answered: asyncio.Future[list[Vote]], votes: list[Vote]) -> None:
    if not answered.cancelled():
        answered.set_result(votes)


class Ticking(MemoryNodes):
    """Nodes that answer one tick later, so that a request can be cancelled."""

    def aask(self, ask: Request) -> asyncio.Future[list[Vote]]:
        """See ``MemoryNodes``."""
        loop = asyncio.get_running_loop()
        votes, answered = super().ask(ask), loop.create_future()
        loop.call_soon(_answer, answered, votes)
        return answered


def memory(kind: type[Backend]) -> LockTemplate:
    """Locks over three such nodes."""
    group: Any = Ticking([MemoryNode() for _ in range(3)])
    return template(group, kind=kind)


async def cancelled(task: asyncio.Task[Any], times: int) -> bool:
    """Cancel it so often, tick by tick; whether it had not ended before."""
    running = task.cancel()
    for _ in range(times - 1):
        await asyncio.sleep(0)
        if task.cancel():
            Counted.after[task] = 0
    await asyncio.wait([task])
    return running


async def at_each_tick(kind: type[Backend], times: int) -> tuple[set[bool], set[int]]:
    """Whether a block ended as cancelled, and how many requests it made, after 0, 1, 2 … ticks."""
    ended, requests, ticks, redlock = set[bool](), set[int](), 0, memory(kind)

    async def block() -> None:
        async with redlock("name") as lease:
            await lease.aextend()

    while True:
        Counted.after.clear()
        task = asyncio.ensure_future(block())
        for _ in range(ticks):
            await asyncio.sleep(0)
        running = await cancelled(task, times)
        async with redlock("name"):  # it is free at once
            pass
        if not running:
            return ended, requests
        ended.add(task.cancelled())
        requests.add(Counted.after[task])
        ticks += 1


async def in_line(kind: type[Backend], times: int) -> bool:
    """Whether one that waits ends as cancelled; the one behind it has its turn."""
    redlock = memory(kind)
    held = await redlock("name").aacquire()
    first, second = (asyncio.ensure_future(redlock("name", wait=3600).aacquire()) for _ in range(2))
    await soon(lambda: waiters(held) == 2)
    ending = asyncio.ensure_future(cancelled(first, times))
    await soon(lambda: first.done() or kind is Deaf)
    await held.arelease()
    assert await ending
    if not first.cancelled():
        await first.result().arelease()
    await (await second).arelease()
    return first.cancelled()


@pytest.mark.parametrize("times", [1, 2, 3, 8])
def test_a_task_ends_whenever_and_however_often_it_is_cancelled(times):
    """As cancelled, after a few requests, and its name is free; in line, the next has its turn."""
    ended, requests = asyncio.run(at_each_tick(Counted, times))
    assert ended == {True}
    assert max(requests) <= MOST_AFTER
    assert times > 1 or max(requests) > 0  # it undoes
    assert asyncio.run(in_line(Counted, times))


def test_a_task_that_does_not_hear_is_noticed():
    """The check can fail: a driver that swallows a cancellation."""
    ended, _ = asyncio.run(at_each_tick(Deaf, 1))
    assert False in ended
    assert not asyncio.run(in_line(Deaf, 2))
