"""One event loop and its nodes: bursts, busy loops, and nodes that hang."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

from django_redlock.core.protocol import Command, Request
from django_redlock.nodes import exchange as votes
from django_redlock.nodes.loops import Batch
from tests.nodes.test_aio import five, stands_on_all, three
from tests.support.loops import (
    connect,
    connections,
    faults_noted,
    group_of,
    keys_on,
    out_of_step,
    soon,
    template,
)

__all__ = ["five", "three"]


def test_a_burst_makes_no_node_look_silent(five, monkeypatch):
    """All tasks of a fresh loop get their locks, however long the loop writes."""
    redlock = template(group_of(five.urls, 0.5))
    monkeypatch.setattr(votes, "PATIENCE", 5)  # 2.5 seconds
    count = 300

    pack: Any = votes.pack  # type: ignore[attr-defined] # as it is called there

    def pack_slowly(ask: Request, place: int) -> bytes:
        if ask.command is Command.GRANT:
            time.sleep(3 / count)  # together more than a node may be silent, or a question last
        return bytes(pack(ask, place))

    monkeypatch.setattr(votes, "pack", pack_slowly)

    async def turn(number: int) -> int:
        async with redlock(f"burst:{number}") as lease:
            return lease.fence

    async def main() -> list[int]:
        return await asyncio.gather(*(turn(number) for number in range(count)))

    assert all(asyncio.run(main()))


def test_a_task_that_keeps_the_loop_busy_makes_no_node_look_silent(five):
    """The loop's own delay, before questions leave or before answers are read, is not theirs."""
    redlock = template(group := group_of(five.urls, 0.4))

    async def keep_busy(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - more than the node timeout

    async def main() -> None:
        await connect(redlock, group)
        for turns in (0, 1, 3):
            taking = asyncio.ensure_future(redlock(f"busy:{turns}").aacquire())
            busy = asyncio.ensure_future(keep_busy(turns))
            lease = await taking
            await busy
            await asyncio.gather(lease.arelease(), keep_busy(turns))
            await soon(lambda: keys_on(five) == [[]] * 5)

    asyncio.run(main())


def test_a_hung_node_costs_only_the_first_question(three):
    """SIGSTOP: no attempt waits for the node, or asks it while it is silent; and it comes back."""
    redlock = template(group := group_of(three.urls, 3))
    whole = functools.partial(stands_on_all, redlock, three)

    async def turn(number: int) -> float:
        start = time.monotonic()
        async with redlock(f"hung:{number}"):
            pass
        return time.monotonic() - start

    async def main() -> None:
        await connect(redlock, group)
        with faults_noted(group) as faults:
            three.pause(0)
            took = [await turn(number) for number in range(50)]
            silent = time.monotonic() + 20
            while "no answer" not in group.states()[0].why:
                took.append(await turn(len(took)))
                assert time.monotonic() < silent
                await asyncio.sleep(0.01)
            took += [await turn(number) for number in range(50)]
            assert max(took) < 3  # nobody waited for the node timeout
            three.resume(0)
            back = time.monotonic() + 20
            while group.states()[0].why:
                await turn(0)
                assert time.monotonic() < back
            while not await whole("back"):
                assert time.monotonic() < back
        assert out_of_step(faults) == []
        await soon(lambda: keys_on(three) == [[]] * 3)
        await soon(lambda: connections(three[0]) <= 2)  # one is the process's, idle

    asyncio.run(main())


def test_releases_wait_for_a_node_that_hangs_once(three, monkeypatch):
    """Later releases do not wait for a node that was silent for longer than a majority took."""
    # Seconds that a release waits for a node which was prompt before.
    monkeypatch.setattr(votes, "LEAST_LINGER", 1)
    redlock = template(group := group_of(three.urls, 30))
    lingered = []

    def noted(look_again: Callable[[Any, float, float], None]) -> Any:
        def noting(self: object, when: float, now: float) -> None:
            lingered.append(self)
            look_again(self, when, now)

        return noting

    monkeypatch.setattr(Batch, "look_again", noted(Batch.look_again))

    async def turn(number: int) -> bool:
        lease = await redlock(f"once:{number}").aacquire()
        lingered.clear()
        await lease.arelease()
        return bool(lingered)  # it was an alarm that ended the waiting

    async def main() -> list[bool]:
        await connect(redlock, group)
        three.pause(0)
        return [await turn(number) for number in range(20)]

    waited = asyncio.run(main())
    assert waited[0]
    assert sum(waited) <= 3
