"""A thousand tasks that wait and are cancelled."""

from __future__ import annotations

import asyncio
import gc
import random
import time

import pytest

from tests.nodes.test_waiters import blocked, nodes
from tests.support.loops import (
    group_of,
    soon,
    template,
)

__all__ = ["nodes"]

NAMES = ["a", "b", "c"]

TASKS = 50


@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_cancelled_waiters_leave_nothing(nodes, seed):
    """Wherever it meets them: no line is stuck, nobody blocked, no connection, no key left."""
    redlock, chance = template(group := group_of(nodes.urls, 5)), random.Random(seed)
    cancelled, inside, overlaps = 0, dict.fromkeys(NAMES, 0), 0

    async def wait() -> None:
        nonlocal overlaps
        name = chance.choice(NAMES)
        async with redlock(name, wait=30):
            inside[name] += 1
            overlaps += inside[name] != 1
            try:
                await asyncio.sleep(chance.choice([0, 0.002]))
            finally:
                inside[name] -= 1

    async def wave() -> int:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(wait()) for _ in range(TASKS)]
        for task in tasks:
            moment = chance.uniform(0, 0.1)
            loop.call_later(moment, task.cancel)
            if chance.random() < 0.3:
                loop.call_later(moment + chance.uniform(0, 0.005), task.cancel)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        strange = [
            each for each in results if each and not isinstance(each, asyncio.CancelledError)
        ]
        assert strange == []
        return sum(each is not None for each in results)

    async def main() -> None:
        nonlocal cancelled
        while cancelled < 500:
            cancelled += await wave()
        await soon(lambda: blocked(nodes) == 0, what="nobody blocked")
        start = time.monotonic()
        for name in NAMES * 3:
            async with redlock(name, wait=5):
                pass
        assert time.monotonic() - start < 4

    asyncio.run(main())
    assert overlaps == 0
    assert group._waiters.local.queues == {}
    group.close()
    gc.collect()
