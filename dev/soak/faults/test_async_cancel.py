"""Storms of cancellations at every point of acquire, extend and release."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from dev.soak.faults.afterwards import Afterwards
from dev.soak.faults.storm import Forgetful, Storm, Weather
from django_redlock import NodesUnavailable
from django_redlock.backend import Backend
from django_redlock.nodes import loops
from django_redlock.testing import EmbeddedNodes
from tests.faults.test_async_cancel import Careless, calm, nodes, servers
from tests.support.loops import (
    UNDONE,
    backend_of,
    connect,
    connections,
    faults_noted,
    group_of,
    out_of_step,
    template,
)
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

__all__ = ["nodes", "servers"]

NODE_TIMEOUT = 2.0  # of nodes that all answer; a key that nobody takes back stays for 30


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


@pytest.mark.parametrize("debug", [False, True])
def test_a_cancellation_anywhere_leaves_nothing(nodes, debug):
    """Cancelled once or twice, anywhere: keys gone in time, no answer misread."""
    check(*raged(nodes, 120, seed=1, debug=debug, wave=30 if debug else 100))


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_cancellations_leave_nothing(nodes, seed):
    """As above, at 10,000 points in all; nor do connections grow."""
    check(*raged(nodes, 2_500, seed=seed))
    eventually(lambda: not any(connections(node) for node in nodes), within=UNDONE)


def test_a_driver_that_does_not_undo_is_caught(nodes):
    """A driver that does not hand cancellations to the generator leaves keys: it is seen."""
    weather, _, _ = raged(nodes, 1000, seed=2, kind=Careless)
    assert weather.left


def test_a_stream_that_forgets_a_question_is_caught(nodes, monkeypatch):
    """A stream that drops the question of a cancelled task gets out of step: it is seen."""
    monkeypatch.setattr(loops, "Exchange", Forgetful)
    _, faults, _ = raged(nodes, 1000, seed=3)
    assert out_of_step(faults)
