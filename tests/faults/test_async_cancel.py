"""Cancellation at every point of acquire, extend and release."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import pytest

from django_redlock.backend import Backend
from django_redlock.core.protocol import Steps
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import (
    connect,
    faults_noted,
    group_of,
    keys_on,
    soon,
    template,
    unguarded,
)

T = TypeVar("T")
LONG = 600.0  # of nodes that are asked at one point at a time: none is late …
TTL = 60.0  # … and there no key expires before it is missed


class Careless(Backend):
    """Runs the steps as one would without thinking of cancellation."""

    async def arun(self, steps: Steps[T]) -> T:
        """Carry out steps; a cancellation ends them."""
        votes: Any = None
        try:
            while True:
                effect = steps.send(votes)
                votes = await self._aperform(effect)
        except StopIteration as stop:
            return cast("T", stop.value)


async def calm(redlock: LockTemplate, turns: int = 10) -> list[int]:
    """The fences of uncancelled turns, which meet every answer that a storm left in the streams."""
    fences = []
    for _ in range(turns):
        async with redlock("calm", wait=5) as lease:
            await lease.aextend()
            fences.append(lease.fence)
    return fences


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedNodes]:
    """Three nodes without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def nodes(servers: EmbeddedNodes) -> EmbeddedNodes:
    """The same, holding nothing."""
    for node, keys in zip(servers, keys_on(servers), strict=True):
        if keys:  # of a broken variant, or of a test that failed
            with node.client(socket_timeout=5) as client:
                client.delete(*keys)
    return servers


# -- one point at a time ----------------------------------------------------------------------


async def cancelled_after(ticks: int, work: Any, again: int | None) -> tuple[bool, Any]:
    """Whether it was still running after so many ticks; else what it returned."""
    task: asyncio.Task[Any] = asyncio.ensure_future(work)
    for _ in range(ticks):
        await asyncio.sleep(0)
    running = task.cancel()
    if again is not None:
        for _ in range(again):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == running
    return running, None if running else task.result()


def cancelled_at_each_tick(
    nodes: EmbeddedNodes, what: str, again: int | None, kind: type[Backend] = Backend
) -> None:
    """Cancel it after 0, 1, 2 … ticks of the loop, and again soon after: it ends so."""
    redlock = template(group := group_of(nodes.urls, LONG), ttl=TTL, kind=kind)

    async def once(ticks: int) -> bool:
        lease: Lease | None = None if what == "acquire" else await redlock("tick").aacquire()
        if lease is None:
            running, lease = await cancelled_after(ticks, redlock("tick").aacquire(), again)
        else:
            work = lease.aextend() if what == "extend" else lease.arelease()
            running, _ = await cancelled_after(ticks, work, again)
            if what == "extend":
                lease.ensure()  # it is still held, by its old deadline
            else:  # a task that is cancelled at once has not begun
                assert lease.ended == (ticks > 0)
        if lease is not None:
            await lease.arelease()
        await soon(lambda: not any(keys_on(nodes)), within=1.0 if kind is Careless else TTL / 2)
        return running

    async def main() -> None:
        await connect(redlock, group)
        ticks = 0
        while await once(ticks):
            ticks += 1
        assert ticks > 3
        assert len(await calm(redlock, 5)) == 5

    with faults_noted(group) as faults:
        asyncio.run(main())
        assert faults == []
    group.close()


@pytest.mark.parametrize("again", [None, 0, 1, 3])
@pytest.mark.parametrize("what", ["acquire", "extend", "release"])
def test_a_cancellation_at_each_tick(nodes, what, again):
    """It ends as cancelled, whenever that comes, and leaves no key and no answer misread."""
    cancelled_at_each_tick(nodes, what, again)


@pytest.mark.slow
def test_a_driver_that_does_not_undo_leaves_a_key_at_some_tick(nodes):
    """The check can fail: a driver that does not hand cancellations to the generator."""
    with pytest.raises(AssertionError, match="not within 1 s"):
        cancelled_at_each_tick(nodes, "acquire", None, Careless)


def test_a_cancelled_first_acquire_leaves_nothing(nodes):
    """Cancelled while the loop is connecting: what is sent then is undone."""
    for ticks in range(0, 40, 2):
        redlock = template(group := group_of(nodes.urls, LONG), ttl=TTL)

        async def main(redlock: LockTemplate = redlock, ticks: int = ticks) -> None:
            task = asyncio.ensure_future(redlock("cold").aacquire())
            await asyncio.sleep(ticks / 4000)
            if not task.cancel():
                await task.result().arelease()
            await asyncio.wait([task])
            await soon(lambda: not any(keys_on(nodes)), within=TTL / 2)

        asyncio.run(main())
        group.close()
