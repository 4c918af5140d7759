"""Tasks that wait and are cancelled, and loops that end while tasks wait, over real nodes."""

from __future__ import annotations

import asyncio
import gc
import select
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest

from django_redlock import LockTaken, NodesUnavailable
from django_redlock.core import wait as waiting
from django_redlock.core.protocol import BlockOnNode, JoinQueue, LeaveQueue, Waiter, Wakeup
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import node as node_module
from django_redlock.nodes import queue
from django_redlock.nodes.queue import LocalQueue
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import (
    connect,
    connections,
    group_of,
    idle,
    keys_on,
    soon,
    template,
)
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

WORD = "d" * 32


@pytest.fixture
def nodes(patient_nodes: EmbeddedNodes) -> Iterator[EmbeddedNodes]:
    """Five nodes at which nobody waits."""
    gc.collect()  # what other tests have dropped
    eventually(lambda: blocked(patient_nodes) == 0, what="nobody blocked")
    yield patient_nodes
    eventually(lambda: keys_on(patient_nodes) == [[]] * 5, what="no key left")


def blocked(nodes: EmbeddedNodes) -> int:
    """How many connections stand in a queue."""
    found = 0
    for node in nodes:
        with closing(node.client(socket_timeout=5)) as client:
            found += int(client.info("clients")["blocked_clients"])
    return found


@pytest.mark.parametrize("farewell", [True, False])
def test_a_loop_that_ends_while_tasks_wait(nodes, farewell):
    """Shut down or just closed: those who waited in it have left the line, for other threads."""
    redlock = template(group := group_of(nodes.urls, 5))
    held = redlock("name").acquire()

    async def wait() -> None:
        async with redlock("name", wait=30):
            pass

    async def main() -> None:
        tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
        await soon(lambda: blocked(nodes) == 1)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    if farewell:
        asyncio.run(main())  # cancels them
    else:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())  # they wait on, and nobody is left to wake them
        loop.close()
        del loop
        gc.collect()
    eventually(lambda: blocked(nodes) == 0, what="nobody blocked")
    had: list[int] = []

    def other() -> None:
        with redlock("name", wait=300) as lease:
            had.append(lease.fence)

    thread = threading.Thread(target=other)
    thread.start()
    eventually(lambda: blocked(nodes) == 1)
    held.release()
    thread.join()
    assert had[0] > held.fence
    assert group._waiters.local.queues == {}
    eventually(lambda: blocked(nodes) == 0)
    group.close()


def test_tasks_and_threads_stand_in_one_line(nodes, monkeypatch):
    """A thread behind a task, a task behind a thread: each gets its turn, in order."""
    # Who looks, and sees the name free before the word for him has come, may come out of order.
    monkeypatch.setattr(waiting, "LOOK_EVERY", (3600.0, 3600.0))
    redlock = template(group := group_of(nodes.urls, 5))
    order: list[str] = []
    held = redlock("name").acquire()
    lines = group._waiters.local

    def length() -> int:
        return len(lines.queues.get("redlock:queue:name", ()))

    def in_thread(label: str) -> None:
        with redlock("name", wait=60):
            order.append(label)

    async def in_task(label: str) -> None:
        async with redlock("name", wait=60):
            order.append(label)

    async def main() -> None:
        tasks, threads = [], []
        for number in range(6):
            if number % 2:
                tasks.append(asyncio.ensure_future(in_task(f"{number}")))
            else:
                threads.append(threading.Thread(target=in_thread, args=(f"{number}",)))
                threads[-1].start()
            await soon(lambda: length() == number + 1)  # noqa: B023 - awaited here
        await soon(lambda: blocked(nodes) == 1)
        await held.arelease()
        await asyncio.gather(*tasks)
        for thread in threads:
            await asyncio.to_thread(thread.join)

    asyncio.run(main())
    assert order == [f"{number}" for number in range(6)]
    group.close()


@pytest.mark.slow
@pytest.mark.alone
def test_a_cancelled_waiter_gives_its_connection_back(nodes):
    """Ten tasks in turn wait and are cancelled: one connection more than without, not ten."""
    redlock = template(group := group_of(nodes.urls, 20))

    async def main() -> None:
        await connect(redlock, group)
        async with redlock("name"):
            before = sum(map(connections, nodes))
            for _ in range(10):
                task = asyncio.ensure_future(redlock("name", wait=20).aacquire())
                await soon(lambda: blocked(nodes) == 1)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await soon(lambda: blocked(nodes) == 0)
                await soon(lambda: any(node._free for node in group.nodes), what="given back")
            await soon(lambda: sum(map(connections, nodes)) <= before + 1)
        with suppress(LockTaken):
            await (await redlock("name", wait=1).aacquire()).arelease()

    asyncio.run(main())
    group.close()


def lock_at_once(redlock: LockTemplate) -> list[bool]:
    """Lock by several threads at a time, which need a connection each; who got a lock."""

    def lock(number: int) -> bool:
        with suppress(NodesUnavailable), redlock(f"warm:{number}"):
            return True
        return False

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lock, range(16)))


@pytest.mark.parametrize("alone", [False, True], ids=["", "alone"])
@pytest.mark.parametrize("by", ["thread", "task"])
def test_a_word_that_came_before_we_left_is_taken_along(nodes, by, alone):
    """Who gives up looks whether it was its turn just now; the word must not be lost.

    Also if there is no other connection to the node, on which to say that we leave.
    """
    group, waiter = group_of(nodes.urls, 5), Waiter("redlock:queue:leaving")
    redlock = template(group)
    if alone:
        attempt = group.nodes[0].open(time.monotonic(), urgent=True)
        assert attempt is not None
        assert attempt.done.wait(20)
        group.nodes[0].forgo(attempt)
    else:
        eventually(lambda: all(lock_at_once(redlock)) and len(idle(group.nodes[0])) > 1)

    async def ask(effect: JoinQueue | BlockOnNode | LeaveQueue) -> object:
        return await group.aqueue(effect) if by == "task" else group.queue(effect)

    async def main() -> object:
        if by == "task" and not alone:  # which says on its loop's connection that it leaves
            async with redlock("warm"):
                pass
        assert await ask(JoinQueue(waiter, 5)) is True
        assert await ask(BlockOnNode(waiter, 0, 0.05, 10)) == Wakeup()
        with closing(nodes[0].client()) as client:
            client.rpush(waiter.queue, WORD)
        waited_on.append(waiter.blocked.connection)
        assert select.select([waited_on[0].socket], [], [], 20)[0]
        return await ask(LeaveQueue(waiter))

    waited_on: list[Any] = []
    assert asyncio.run(main()) == WORD
    assert waited_on[0] in idle(group.nodes[0])  # the next caller has it
    eventually(lambda: blocked(nodes) == 0)


def test_a_connection_that_comes_too_late_for_a_waiter_serves_the_next_caller(nodes, monkeypatch):
    """The waiter is told that it cannot stand there; what was begun for it is not for nothing."""
    monkeypatch.setattr(node_module, "OPEN_TIMEOUT", 3600.0)
    with Proxy(nodes[0].port) as proxy, closing(group_of([proxy.url], 0.05)) as group:
        proxy.holding = 1
        waiter = Waiter("redlock:queue:late")
        assert group.queue(BlockOnNode(waiter, 0, 0.05, 10)) == Wakeup(broken=True)
        proxy.let_go()
        eventually(lambda: idle(group.nodes[0]))


def test_a_task_in_line_whose_call_got_lost_looks_for_itself(nodes, monkeypatch):
    """Where an interruption kept the next of a line from being called, it finds its turn."""
    monkeypatch.setattr(queue, "SELDOM", 0.01)
    is_first, looks = LocalQueue.is_first, [0]

    def counted(line: LocalQueue, waiter: Waiter) -> bool:
        looks[0] += 1
        return is_first(line, waiter)

    monkeypatch.setattr(LocalQueue, "is_first", counted)
    redlock = template(group := group_of(nodes.urls, 5))

    async def main() -> None:
        lines = group._waiters.local
        first, second = Waiter("redlock:queue:lost"), Waiter("redlock:queue:lost")
        assert await group.aqueue(JoinQueue(first, float("inf")))
        waiting = asyncio.ensure_future(group.aqueue(JoinQueue(second, float("inf"))))
        await soon(lambda: looks[0] >= 3)
        assert not waiting.done()  # another one is first
        monkeypatch.setattr(LocalQueue, "_call_first", lambda *_: None)
        lines.leave(first)
        assert await asyncio.wait_for(waiting, 60)

    asyncio.run(main())
    redlock("lost").acquire().release()
    group.close()
