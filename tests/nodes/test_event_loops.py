"""Event loops that come and go, and what they leave behind: nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import operator
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_redlock.core import hold
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import (
    UNDONE,
    connections,
    connects,
    group_of,
    keys_on,
    open_files,
    soon,
    template,
    threads,
    unguarded,
)
from tests.support.waiting import eventually

AT_ONCE = 4  # loops
LONG = 300.0  # seconds that nobody waits


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedNodes]:
    """Three nodes without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def nodes(servers: EmbeddedNodes) -> Iterator[EmbeddedNodes]:
    """The same, where each test gives every name back."""
    yield servers
    for node in servers:
        node.resume()  # a test that failed may have left it paused
    # For a waiter, a name is kept for 50 ms.
    eventually(lambda: keys_on(servers) == [[]] * 3, what="no key left")


def end(group: NodeGroup, nodes: EmbeddedNodes) -> None:
    """Close the connections, once all releases were carried out.

    A socket that is closed with an unread answer in it is reset, and the node forgets what it
    has not read yet: the release that a slow node was not waited for.
    """
    eventually(lambda: keys_on(nodes) == [[]] * 3, what="all released")
    group.close()


async def turn(redlock: LockTemplate, name: str = "name") -> None:
    """Take a name and give it back, as two tasks in turn."""

    async def once() -> None:
        async with redlock(name, wait=LONG) as lease:
            await lease.aextend()

    await asyncio.gather(once(), once())


def by_run(redlock: LockTemplate, name: str) -> None:
    """As a script does."""
    asyncio.run(turn(redlock, name))


def by_async_to_sync(redlock: LockTemplate, name: str) -> None:
    """As Django does for an async view under WSGI."""
    async_to_sync(turn)(redlock, name)


def without_farewell(redlock: LockTemplate, name: str) -> None:
    """A loop that is closed without having shut down its asynchronous generators."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(turn(redlock, name))
    finally:
        loop.close()


def all_closed(nodes: EmbeddedNodes) -> bool:
    """Whether nobody is connected any more."""
    gc.collect()  # each time: a thread that has to end may have had hold of some
    return [connections(node) for node in nodes] == [0] * 3


def come_and_go(nodes: EmbeddedNodes, how: Callable[[LockTemplate, str], None]) -> None:
    """Use two hundred loops in four threads; they leave no more files, threads, connections."""
    group = group_of(nodes.urls, 20)
    redlock = template(group)

    def loops(count: int) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda number: how(redlock, f"name:{number % 3}"), range(count)))
        gc.collect()

    def others() -> list[int]:
        """How many files that are no connections to a node, and threads."""
        return [open_files() - sum(map(connections, nodes)), threads()]

    loops(20)
    eventually(lambda: not any(node._attempts for node in group.nodes))
    before = others()
    with connects(group) as connected:
        loops(200)
    eventually(
        lambda: all(map(operator.le, others(), before)),
        within=UNDONE,
        what="no more files and threads",
    )
    # Each thread's loop has one; another one while its first task waits for the name.
    eventually(lambda: max(connections(node) for node in nodes) <= 2 * AT_ONCE)
    if how is not without_farewell:  # the connections went from loop to loop
        assert max(connected) < 50  # and not 200
    end(group, nodes)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("how", [by_run, by_async_to_sync, without_farewell])
def test_loops_that_come_and_go_leave_nothing(nodes, how):
    """Neither beside their nodes, nor when these are used no more; and no warning."""
    come_and_go(nodes, how)
    eventually(lambda: all_closed(nodes), within=UNDONE, what="nobody is connected")


def test_two_loops_at_a_time_exclude_each_other(nodes):
    """Loops of several threads share nothing but the nodes."""
    redlock = template(group := group_of(nodes.urls, 20))
    inside: list[int] = []
    overlaps: list[int] = []

    async def work(number: int) -> None:
        for _ in range(10):
            async with redlock("shared", wait=LONG):
                inside.append(number)
                overlaps.extend(each for each in inside if each != number)
                await asyncio.sleep(0.0005)
                inside.remove(number)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: asyncio.run(work(number)), range(AT_ONCE)))
    assert overlaps == []
    end(group, nodes)


@pytest.mark.slow
def test_what_a_dead_loop_is_owed_disturbs_nobody(nodes):
    """A loop ends before its answers came: who has its connections next is not disturbed."""
    redlock = template(group := group_of(nodes.urls, 5))

    async def main(name: str) -> None:
        async with redlock("warm"):
            pass
        lease = await redlock(name).aacquire()
        for node in nodes:
            node.pause()
        lease.disown()
        release: Any = next(hold.release(lease.backend.policy, lease.grant))
        group.aask(release)  # nobody waits for it
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    for number in range(3):
        asyncio.run(main(f"owed:{number}"))
        for node in nodes:
            node.resume()
        for _ in range(3):
            redlock("thread").acquire().release()
        by_run(redlock, "loop")
        eventually(lambda: keys_on(nodes) == [[]] * 3)
    end(group, nodes)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it awaits there
def test_a_task_that_is_dropped_releases_at_its_end(nodes):
    """The collector closes it in its block. What it does there is under the lock."""
    redlock = template(group := group_of(nodes.urls, 5))
    seen = []

    async def hold(inside: asyncio.Event) -> None:
        async with redlock("dropped"):
            inside.set()
            try:
                await asyncio.get_running_loop().create_future()  # which nobody keeps
            finally:
                seen.append(keys_on(nodes) == [[]] * 3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
        inside = asyncio.Event()
        asyncio.ensure_future(hold(inside))  # noqa: RUF006 - that is the mistake
        await inside.wait()
        await asyncio.sleep(0)
        await soon(lambda: gc.collect() >= 0 and seen)
        async with redlock("dropped", wait=20):
            pass
        await soon(lambda: keys_on(nodes) == [[]] * 3)

    asyncio.run(main())
    assert seen == [False]
    end(group, nodes)


def test_a_coroutine_that_is_closed_after_its_loop_releases(nodes):
    """Its block ends without a loop, and gives the name back all the same."""
    redlock = template(group := group_of(nodes.urls, 5))

    inside = asyncio.Event()

    async def hold() -> None:
        async with redlock("closed"):
            inside.set()
            await asyncio.sleep(60)

    loop, coroutine = asyncio.new_event_loop(), hold()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.wait_for(inside.wait(), 20))
    loop.close()
    assert keys_on(nodes) != [[]] * 3
    coroutine.close()
    eventually(lambda: keys_on(nodes) == [[]] * 3)
    assert not task.done()
    end(group, nodes)


def test_an_abandoned_generator_that_holds_a_lock_is_closed_with_its_loop(nodes):
    """An asynchronous generator that was left in its block gives the name back with the loop."""
    redlock = template(group := group_of(nodes.urls, 5))
    kept = []

    async def rows(number: int) -> Any:
        async with redlock(f"rows:{number}"):
            yield 1
            yield 2

    async def main() -> None:
        for number in range(5):
            generator = rows(number)
            await anext(generator)
            kept.append(generator)

    asyncio.run(main())
    eventually(lambda: keys_on(nodes) == [[]] * 3)
    kept.clear()
    end(group, nodes)


FORK = """
import asyncio, gc, json, os, sys
from tests.support.loops import group_of, template

group = group_of(json.loads(sys.argv[1]), 5)
redlock = template(group, ttl=60)

async def turns(name, count=20):
    for _ in range(count):
        async with redlock(name, wait=20) as lease:
            await lease.aextend()

def in_child(work):
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return child

def of_its_own():
    asyncio.run(turns("child"))
    gc.collect()
    redlock("child", wait=20).acquire().release()
    return asyncio.run(redlock("parent").atry_acquire()) is None

async def main():
    async with redlock("parent") as lease:
        children = [in_child(of_its_own) for _ in range(2)]  # inside a running loop
        await asyncio.gather(turns("a"), turns("b"))
        codes = [await asyncio.to_thread(os.waitpid, child, 0) for child in children]
        await lease.aextend()
        await turns("c")
        return [code for _, code in codes]

codes = asyncio.run(main())
codes.append(os.waitpid(in_child(lambda: asyncio.run(turns("parent")) is None), 0)[1])  # after it
asyncio.run(turns("d"))
print(json.dumps(codes))
"""


@pytest.mark.slow
def test_a_forked_child_uses_its_own_loop(nodes):
    """Forked inside a running loop or after one, a child connects anew."""
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    output = subprocess.check_output(
        [*command, "-c", FORK, json.dumps(nodes.urls)], text=True, timeout=100
    )
    assert json.loads(output) == [0, 0, 0]


def run_with_uvloop(main: Any) -> Any:
    """Run it in the loop of uvicorn and many others, where that is installed."""
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def run_in_debug_mode(main: Any) -> Any:
    """Run it in asyncio's own loop, which then checks who calls it from where."""
    return asyncio.run(main, debug=True)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("run", [run_with_uvloop, run_in_debug_mode])
def test_other_loops(nodes, run: Callable[[Any], Any]):
    """The loop of uvicorn, and the debug mode, do the same, cancelled and reconnecting, too."""
    redlock = template(group := group_of(nodes.urls, 5))

    async def main() -> None:
        await asyncio.gather(*(turn(redlock, f"name:{number}") for number in range(10)))
        tasks = [asyncio.ensure_future(turn(redlock, f"name:{n % 7}")) for n in range(10)]
        for ticks, task in enumerate(tasks):
            await asyncio.sleep(0 if ticks % 3 else 0.001)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with nodes[0].client(socket_timeout=5) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await turn(redlock)
        lease = await redlock("thread").aacquire()
        await asyncio.to_thread(lease.release)
        await soon(lambda: keys_on(nodes) == [[]] * 3)

    redlock("thread").acquire().release()  # the first lease of a process starts its watchdog
    before = threads()
    for _ in range(2):
        run(main())
    eventually(lambda: threads() <= before, within=UNDONE, what="no more threads")
    end(group, nodes)
