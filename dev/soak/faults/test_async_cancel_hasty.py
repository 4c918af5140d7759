"""Cancellation with the default NODE_TIMEOUT, which an answer, or its undoing, may well exceed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from dev.soak.faults.afterwards import Afterwards
from dev.soak.faults.storm import Storm
from django_redlock import NodesUnavailable
from django_redlock.conf import DEFAULTS
from django_redlock.testing.embedded import EmbeddedNode
from tests.support.loops import backend_of, faults_noted, group_of, out_of_step, template, unguarded
from tests.support.proxy import Proxy

NODE_TIMEOUT = DEFAULTS["NODE_TIMEOUT"]
TTL = 60.0  # seconds
PATIENCE = 15.0  # seconds in which keys are to be gone on a machine that stalls


async def hang_now_and_then(node: EmbeddedNode) -> None:
    """Until it is cancelled, have a node be silent for longer than it may, then answer again."""
    try:
        while True:
            node.pause()
            await asyncio.sleep(4 * NODE_TIMEOUT)
            node.resume()
            await asyncio.sleep(2 * NODE_TIMEOUT)
    finally:
        node.resume()


@pytest.mark.parametrize("ill", [False, True], ids=["all well", "one hangs now and then"])
def test_a_cancellation_leaves_nothing_at_the_default_timeout(ill):
    """However many answers come too late, keys are undone and no answer is misread.

    They are undone and have not expired: when they are gone, they are younger than their ttl.
    """
    with unguarded(3) as nodes, ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        group = group_of([proxy.url for proxy in proxies], NODE_TIMEOUT)
        faults = stack.enter_context(faults_noted(group))
        redlock = template(group, ttl=TTL)
        storm = Storm(redlock, nodes, proxies, seed=4, timeout=PATIENCE)

        async def main() -> list[int]:
            fences = []
            async with redlock("before"):
                pass  # connected
            before = Afterwards(group)
            hanging = asyncio.ensure_future(hang_now_and_then(nodes[0])) if ill else None
            await storm.rage(500)
            if hanging is not None:
                hanging.cancel()
                await asyncio.wait([hanging])
            for _ in range(10):  # they meet every answer that the storm left in the streams
                async with redlock("calm", wait=20) as lease:
                    fences.append(lease.fence)
            storm.weather.problems = await before.aproblems(backend_of(redlock))
            return fences

        fences, weather = asyncio.run(main()), storm.weather
        assert weather.left == []
        assert weather.slowest + PATIENCE < TTL
        assert weather.problems == []
        assert weather.overlaps == 0
        assert [each for each in weather.strange if not isinstance(each, NodesUnavailable)] == []
        assert weather.finished > 0
        assert out_of_step(faults) == []
        assert fences == sorted(set(fences))
        group.close()
