"""Cancellation at every point of acquire, extend and release."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from django_redlock import NodesUnavailable
from django_redlock.backend import Backend
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import loops
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import (
    UNDONE,
    backend_of,
    connect,
    connections,
    faults_noted,
    group_of,
    keys_on,
    out_of_step,
    soon,
    template,
    unguarded,
)
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

from .afterwards import Afterwards
from .storm import Careless, Forgetful, Storm, Weather, calm

NODE_TIMEOUT = 2.0  # of nodes that all answer; a key that nobody takes back stays for 30
LONG = 600.0  # of nodes that are asked at one point at a time: none is late …
TTL = 60.0  # … and there no key expires before it is missed


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


@contextmanager
def far_away(nodes: EmbeddedNodes, delay: float = 0.01) -> Iterator[list[Proxy]]:
    """Proxies before the nodes, by which every answer is late."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        for proxy in proxies:
            proxy.delay = delay
        yield proxies


def raged(
    nodes: EmbeddedNodes,
    cancellations: int,
    *,
    seed: int,
    kind: type[Backend] = Backend,
    debug: bool = False,
    wave: int = 100,
) -> tuple[Weather, list[str], list[int]]:
    """What a storm did, why connections were closed, and the fences of the calm after it."""
    with far_away(nodes) as proxies:
        group = group_of([proxy.url for proxy in proxies], NODE_TIMEOUT)
        redlock = template(group, kind=kind)

        async def main() -> tuple[Weather, list[int]]:
            await connect(redlock, group)
            before = Afterwards(group)
            storm = Storm(redlock, nodes, proxies, seed=seed, timeout=NODE_TIMEOUT)
            weather = await storm.rage(cancellations, wave=wave, until=lambda: out_of_step(faults))
            try:
                fences = await calm(redlock)
            except NodesUnavailable:
                return weather, []
            if kind is Backend:
                weather.problems = await before.aproblems(backend_of(redlock))
            return weather, fences

        with faults_noted(group) as faults:
            weather, fences = asyncio.run(main(), debug=debug)
        group.close()
    return weather, faults, fences


def check(weather: Weather, faults: list[str], fences: list[int]) -> None:
    """See that a storm left nothing."""
    assert weather.left == []
    assert weather.strange == []
    assert weather.overlaps == 0
    assert weather.problems == []
    assert weather.finished > weather.cancelled / 50  # the points lie in release, too
    assert faults == []
    assert len(fences) == 10
    assert fences == sorted(set(fences))


@pytest.mark.nightly
@pytest.mark.parametrize("debug", [False, True])
def test_a_cancellation_anywhere_leaves_nothing(nodes, debug):
    """Cancelled once or twice, anywhere: keys gone in time, no answer misread."""
    check(*raged(nodes, 120, seed=1, debug=debug, wave=30 if debug else 100))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_cancellations_leave_nothing(nodes, seed):
    """As above, at 10,000 points in all; nor do connections grow."""
    check(*raged(nodes, 2_500, seed=seed))
    eventually(lambda: not any(connections(node) for node in nodes), within=UNDONE)


@pytest.mark.nightly
def test_a_driver_that_does_not_undo_is_caught(nodes):
    """A driver that does not hand cancellations to the generator leaves keys: it is seen."""
    weather, _, _ = raged(nodes, 1000, seed=2, kind=Careless)
    assert weather.left


@pytest.mark.nightly
def test_a_stream_that_forgets_a_question_is_caught(nodes, monkeypatch):
    """A stream that drops the question of a cancelled task gets out of step: it is seen."""
    monkeypatch.setattr(loops, "Exchange", Forgetful)
    _, faults, _ = raged(nodes, 1000, seed=3)
    assert out_of_step(faults)


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
