"""Releases that find no connection to a node: they reach it, however late it is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any, NamedTuple, TypeVar

import pytest

from django_redlock import LockTaken, NodesUnavailable
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.node import UndoQueue
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import (
    group_of,
    keys_on,
    loop_connections,
    owing,
    shows,
    soon,
    template,
    unguarded,
)
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

T = TypeVar("T")
NODE_TIMEOUT = 0.8
TTL = 60.0  # nobody waits for that
LONG = 20.0  # seconds that no node takes to reply
SOON = 0.5  # seconds after which a node is silent
NAMES = ("late", "prompt", "lost:0", "lost:1", "lost:2", "behind", "once", "seen")


class Far(NamedTuple):
    """Five nodes, of which the first two can be made to answer late."""

    nodes: EmbeddedNodes
    proxies: list[Proxy]
    redlock: LockTemplate
    group: NodeGroup

    def take(self, name: str) -> Lease:
        """A lease whose key is on all nodes, and whose connections lie idle."""

        def attempt() -> Lease | None:
            with suppress(NodesUnavailable):
                return self.redlock(name).try_acquire()
            return None

        lease = eventually(attempt)
        eventually(lambda: keys_on(self.nodes) == [[f"redlock:lock:{name}"]] * 5)
        assert lease is not None
        return lease

    def asked(self) -> list[int]:
        """How many questions of the two nodes were carried out."""
        found = []
        for node in self.nodes[:2]:
            with closing(node.client()) as client:
                told = client.info("commandstats").get("cmdstat_evalsha", {})
                found.append(int(told.get("calls", 0)))
        return found

    def late(self, delay: float) -> None:
        """Let every answer of two nodes take so many seconds more."""
        for proxy in self.proxies:
            proxy.delay = delay

    def hang_up(self) -> None:
        """Let all nodes close their connections."""
        for node in self.nodes:
            with closing(node.client()) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        eventually(lambda: all(map(shows, self.group.nodes)))

    def free(self) -> bool:
        """Whether no node stores a lock."""
        return keys_on(self.nodes) == [[]] * 5


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Five nodes, without the guard."""
    with unguarded(5) as nodes:
        yield nodes


@pytest.fixture
def far(nodes: EmbeddedNodes, request: pytest.FixtureRequest) -> Iterator[Far]:
    """The nodes, and a process that is connected to each of them."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes[:2]]
        urls = [*(proxy.url for proxy in proxies), *(node.url for node in nodes[2:])]
        group = group_of(urls, getattr(request, "param", NODE_TIMEOUT))
        far = Far(nodes, proxies, template(group, ttl=TTL), group)
        eventually(lambda: connected(far.redlock))
        eventually(lambda: all(state.voting for state in group.states()))
        for node in nodes:  # of a test that failed
            with closing(node.client()) as client:
                client.delete(*(f"redlock:lock:{name}" for name in NAMES))
        eventually(far.free)
        yield far


def connected(redlock: LockTemplate) -> bool:
    """Whether the nodes can be asked."""
    with suppress(NodesUnavailable, LockTaken), redlock("warm"):
        return True
    return False


def elsewhere(work: Callable[[], object]) -> None:
    """Do it in a thread of its own."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)


still: list[asyncio.AbstractEventLoop] = []


def by_a_thread(lease: Lease) -> None:
    """Release by blocking."""
    elsewhere(lease.release)


def by_a_loop(lease: Lease) -> None:
    """Release in an event loop that ends with it."""
    elsewhere(lambda: asyncio.run(lease.arelease()))


def by_a_loop_that_stands_still(lease: Lease) -> None:
    """Release in an event loop that does nothing else afterwards, nor is ended."""
    still.append(asyncio.new_event_loop())
    elsewhere(lambda: still[-1].run_until_complete(lease.arelease()))


def by_a_task_that_is_cancelled(lease: Lease) -> None:
    """Release in a task that is cancelled at once, in a loop that ends then."""

    async def main() -> None:
        task = asyncio.ensure_future(lease.arelease())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    elsewhere(lambda: asyncio.run(main()))


@pytest.fixture(autouse=True)
def nothing_stands() -> Iterator[None]:
    """Close the loops that stand still."""
    yield
    while still:
        still.pop().close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "release", [by_a_thread, by_a_loop, by_a_loop_that_stands_still, by_a_task_that_is_cancelled]
)
@pytest.mark.parametrize("delay", [0.02, 0.35], ids=["in time", "too late"])
def test_a_release_reaches_nodes_that_are_connected_late(far, release, delay):
    """A handshake that takes longer than at the others, or than the node timeout, loses nothing."""
    lease = far.take("late")
    far.hang_up()
    far.late(delay)
    release(lease)
    eventually(far.free)


@pytest.mark.parametrize("far", [LONG], ids=["node timeout"], indirect=True)
@pytest.mark.parametrize("by", ["thread", "task"])
def test_a_release_by_another_driver_leaves_nothing(far, by):
    """A release that is there before the grant is sent once more when the nodes have replied."""

    async def main() -> None:
        async with far.redlock("warm"):
            await asyncio.to_thread(eventually, lambda: stands_everywhere(far))
        await soon(far.free)
        before = far.asked()
        for proxy in far.proxies:
            proxy.holding = 1
        if by == "thread":
            lease = await asyncio.to_thread(far.redlock("behind").acquire)
        else:
            lease = await far.redlock("behind").aacquire()
        await soon(lambda: [proxy.held for proxy in far.proxies] == [1, 1])
        if by == "thread":
            await lease.arelease()
        else:
            await asyncio.to_thread(lease.release)
        for proxy in far.proxies:
            proxy.let_go()
        await soon(
            lambda: all(now >= then + 2 for now, then in zip(far.asked(), before, strict=True))
        )
        await soon(far.free)

    asyncio.run(main())


@pytest.mark.parametrize("far", [LONG], ids=["node timeout"], indirect=True)
def test_a_release_of_the_same_loop_is_sent_once(far, monkeypatch):
    """It stands in the stream of the grant that is late, and goes behind that."""
    kept: list[object] = []

    async def main() -> None:
        async with far.redlock("warm"):
            await asyncio.to_thread(eventually, lambda: stands_everywhere(far))
        await soon(far.free)
        monkeypatch.setattr(UndoQueue, "add", lambda _, undo: kept.append(undo))
        for proxy in far.proxies:
            proxy.holding = 1
        lease = await far.redlock("behind").aacquire()
        await soon(lambda: [proxy.held for proxy in far.proxies] == [1, 1])
        await lease.arelease()
        for proxy in far.proxies:
            proxy.let_go()
        await soon(far.free)
        await soon(lambda: not any(each.connection.owed for each in loop_connections(far.group)))

    asyncio.run(main())
    assert kept == []


@pytest.mark.parametrize("far", [LONG], ids=["node timeout"], indirect=True)
@pytest.mark.parametrize("by", ["thread", "task"])
def test_a_grant_that_is_lost_with_its_connection_is_not_put_again(far, by):
    """What nobody waits for any more is not asked: it could come behind its undoing."""
    for proxy in far.proxies:
        proxy.dropping = 1
    lock = far.redlock("once")
    lease = lock.acquire() if by == "thread" else asyncio.run(lock.aacquire())
    eventually(lambda: [proxy.dropping for proxy in far.proxies] == [0, 0])
    eventually(lambda: stands_everywhere(far))
    having = ["redlock:lock:once" in keys for keys in keys_on(far.nodes)]
    assert having == [False, False, True, True, True]
    lease.release()
    eventually(far.free)


@pytest.mark.slow
@pytest.mark.parametrize("far", [SOON], ids=["node timeout"], indirect=True)
@pytest.mark.parametrize("by", ["thread", "task"])
def test_a_grant_that_comes_after_its_release_keeps_one_node_until_its_ttl(far, by):
    """A node was silent and replies on a new connection; its grant leaves a proxy later.

    The other nodes grant the name, with a higher token, and the ttl frees the first one.
    """
    with asyncio.Runner() as runner:  # one loop: its connections are open until it ends

        def do(task: Callable[[], Coroutine[Any, Any, T]], thread: Callable[[], T]) -> T:
            return runner.run(task()) if by == "task" else thread()

        proxy, lock, seen = far.proxies[0], far.redlock("late"), far.redlock("seen")

        def stands() -> bool:
            """Whether the first node grants again, to threads or to tasks."""
            with suppress(LockTaken, NodesUnavailable):
                lease = do(seen.aacquire, seen.acquire)
                granted = "redlock:lock:seen" in keys_on(far.nodes[:1])[0]
                do(lease.arelease, lease.release)
                return granted
            return False

        eventually(stands)
        proxy.holding = 1
        lease = do(lock.aacquire, lock.acquire)
        eventually(lambda: proxy.held == 1)
        first = far.group.nodes[0]

        def closed() -> bool:
            """Whether the connection has ended over which the grant was sent."""
            return not any(owing([first]))

        eventually(lambda: stands() and closed())
        before = far.asked()[0]
        do(lease.arelease, lease.release)
        eventually(lambda: far.asked()[0] > before)
        assert "redlock:lock:late" not in keys_on(far.nodes[:1])[0]
        proxy.let_go()
        eventually(lambda: keys_on(far.nodes[:1]) == [["redlock:lock:late"]])
        with closing(far.nodes[0].client()) as client:
            assert 0 < client.pttl("redlock:lock:late") <= TTL * 1000
        later = do(lock.aacquire, lock.acquire)
        assert later.fence > lease.fence
        do(later.arelease, later.release)


def stands_everywhere(far: Far) -> bool:
    """Whether all nodes are connected again, and grant another name."""
    with far.redlock("seen"):
        return all("redlock:lock:seen" in keys for keys in keys_on(far.nodes))
