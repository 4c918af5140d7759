"""Settings that change while threads and event loops use them; aliases that many threads make."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import LockTaken, conf, redlock, redlocks
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import UNDONE, connections, group_of, idle, owing, soon
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

NUMBERS = itertools.count()
ALIASES = [f"alias-{number}" for number in range(4)]
THREADS = 12


# -- many threads ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_threads_make_each_alias_once(monkeypatch):
    """The first locks of a process, by twelve threads under four aliases: one backend for each."""
    made: Counter[str] = Counter()
    right, together = conf.make, threading.Barrier(THREADS)
    another = threading.Event()

    def make(alias: str, setting: Any) -> Any:
        made[alias] += 1
        if made[alias] > 1:
            another.set()
        another.wait(0.2)  # seconds for a second thread to make the same, if one can
        return right(alias, setting)

    def use(number: int) -> None:
        together.wait(30)
        for alias in ALIASES[number % 4 :] + ALIASES[: number % 4]:
            with redlocks[alias](f"{number}"):
                pass

    settings = {alias: {"NODES": [f"memory://at-once-{next(NUMBERS)}"]} for alias in ALIASES}
    with monkeypatch.context() as patch, override_settings(REDLOCK=settings):
        patch.setattr(conf, "make", make)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(use, range(THREADS)))
        assert sorted(redlocks) == ALIASES
    assert made == dict.fromkeys(ALIASES, 1)


# -- override_settings -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own() -> Iterator[EmbeddedNodes]:
    """Five nodes that no other test uses: what tests leave behind may stay connected."""
    with EmbeddedNodes(5) as five:
        yield five


@pytest.fixture
def nodes(own: EmbeddedNodes) -> EmbeddedNodes:
    """Five nodes, to which nobody of this process is connected."""
    conf.forget()

    def nobody() -> bool:
        gc.collect()  # the groups of nodes that other tests have dropped
        return connections(own[0]) == 0

    # One that is counted now and closed later would be missed for ever.
    eventually(nobody, what="nobody is connected")
    return own


def other(nodes: EmbeddedNodes) -> Any:
    """Settings of other nodes: three of the five."""
    alias = nodes.settings(NODE_TIMEOUT=10, MAX_TTL=60, RESTART_GUARD=False)
    return override_settings(REDLOCK={"default": alias | {"NODES": nodes.urls[:3]}})


def group_in_use() -> Any:
    """The nodes, as this process knows them now."""
    return conf.backend("default").group


def counted(nodes: EmbeddedNodes) -> Callable[[], int]:
    """How many connections the first node has got since."""
    before = connections(nodes[0])
    return lambda: connections(nodes[0]) - before


@pytest.mark.slow
@pytest.mark.alone
def test_connections_of_threads_end_with_the_settings(nodes):
    """Those that no thread uses are closed at once; a lease is released where it is held."""
    more = counted(nodes)
    with other(nodes):
        lease = redlock("held").acquire()
        with redlock("name"):
            assert more() > 0
        # A grant whose reply is cut off is undone again and again, for half a minute.
        eventually(lambda: not any(owing(group_in_use().nodes)))
    eventually(lambda: more() == 0)
    assert lease.remaining() > 0
    lease.extend()
    with other(nodes):
        assert redlock("held").state().fence == lease.fence
        lease.release()
        assert not redlock("held").state().held
    del lease

    def closed() -> bool:
        gc.collect()  # each time: the watchdog may still have the lease in its hands
        return more() == 0

    eventually(closed, within=UNDONE, what="no connection of a lease that is over")


@pytest.mark.slow
@pytest.mark.alone
def test_connections_of_an_event_loop_end_with_the_settings(nodes):
    """In the middle of its run; a lease is released where it is held, over a new connection."""
    more = counted(nodes)

    async def main() -> None:
        with other(nodes):
            async with redlock("name"):
                assert more() == 1
            lease = await redlock("held").aacquire()
        await soon(lambda: more() == 0)
        await lease.aextend()
        with other(nodes):
            with pytest.raises(LockTaken):
                await redlock("held").aacquire()
            await lease.arelease()
            async with redlock("held"):
                pass

    asyncio.run(main())


def test_another_thread_changes_the_settings_of_a_busy_loop(nodes):
    """Requests that are on their way are heard: no lock fails, no lease is lost."""
    changes, done = 30, threading.Event()

    def change() -> None:
        for _ in range(changes):
            conf.forget()
            done.wait(0.01)
        done.set()

    async def turns(number: int) -> int:
        count = 0
        while not done.is_set() or not count:
            async with redlock(f"name:{number}", wait=30) as lease:
                await asyncio.sleep(0)
                lease.ensure()
            count += 1
        return count

    async def main() -> list[int]:
        return await asyncio.gather(*map(turns, range(8)))

    thread = threading.Thread(target=change)
    with other(nodes):
        thread.start()
        counts = asyncio.run(main())
        thread.join(30)
    assert min(counts) > 0


def test_a_connection_that_was_being_opened_ends_with_its_nodes(own):
    """The settings change during a handshake; after it the connection serves nobody."""
    with Proxy(own[0].port) as proxy:
        proxy.holding = 1
        group = group_of([proxy.url], 60.0)
        node = group.nodes[0]
        attempt = node.open(time.monotonic(), urgent=True)
        assert attempt is not None
        node.forgo(attempt)
        eventually(lambda: proxy.held == 1)
        group.close(0)  # as a change of settings does
        proxy.let_go()
        assert attempt.done.wait(60)
        (connection,) = idle(node)
        socket = connection.socket
        del group, node, attempt, connection

        def closed() -> bool:
            gc.collect()  # each time: the thread that has opened it may not be over
            return socket.fileno() == -1

        eventually(closed, what="the connection ends")


@pytest.mark.slow
@pytest.mark.alone
def test_a_loop_that_has_ended_is_left_alone(nodes):
    """Settings change also after a loop, closed or not, has used them."""
    more = counted(nodes)
    loop = asyncio.new_event_loop()
    with other(nodes):

        async def turn() -> None:
            async with redlock("name"):
                pass

        asyncio.run(turn())
        loop.run_until_complete(turn())
    assert more() <= 1

    def closed() -> bool:
        loop.run_until_complete(asyncio.sleep(0))  # one that stood still closes them when it runs
        return more() == 0

    eventually(closed, within=UNDONE)
    loop.run_until_complete(loop.shutdown_asyncgens())  # else what the last turn has left warns
    loop.close()
    conf.forget()
