"""One event loop and its nodes: what goes over the wire, and what may happen to the way there."""

from __future__ import annotations

import asyncio
import functools
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from django_redlock import LockTaken
from django_redlock.core.reasons import ReasonCode
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.connection import Connection
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.loops import LoopConnection
from django_redlock.testing import EmbeddedNodes
from tests.support.links import grant, threads_of
from tests.support.loops import (
    UNDONE,
    connect,
    connections,
    connects,
    faults_noted,
    group_of,
    idle,
    keys_on,
    loop_connections,
    soon,
    template,
    unguarded,
)
from tests.support.proxy import Proxy
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def five() -> Iterator[EmbeddedNodes]:
    """Five nodes that nobody ill-treats, without the guard."""
    with unguarded(5) as nodes:
        yield nodes


@pytest.fixture
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes to ill-treat, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@contextmanager
def sends_counted(connections: list[Connection]) -> Iterator[Counter[int]]:
    """How often each of these was written to."""
    places = {connection.socket: connection.index for connection in connections}
    sends = Counter(dict.fromkeys(places.values(), 0))
    send: Any = socket.socket.send

    def counting(self: socket.socket, data: bytes, *args: Any) -> int:
        if self in places:  # an event loop wakes itself by a socket, too
            sends[places[self]] += 1
        return int(send(self, data, *args))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "send", counting)
        yield sends


async def stands_on_all(redlock: LockTemplate, nodes: EmbeddedNodes, name: str) -> bool:
    """Whether a lease of the name is on every node."""
    async with redlock(name):
        return all(f"redlock:lock:{name}" in keys for keys in keys_on(nodes))


# -- on the wire ------------------------------------------------------------------------------


def test_the_questions_of_one_tick_leave_in_one_write(five, monkeypatch):
    """A hundred tasks that acquire in one tick cost each node one write, and so do releases."""
    # A slow tick is not taken for one whose write was interrupted.
    monkeypatch.setattr("django_redlock.nodes.loops.STALE", 3600.0)
    redlock = template(group := group_of(five.urls, 20))

    async def main() -> None:
        connections = await connect(redlock, group)
        left: list[list[int]] = []  # a machine that stands still in a tick makes two lists of one
        for names in ("a", "b", "c", "d"):
            with sends_counted(connections) as sends:
                leases = await asyncio.gather(
                    *(redlock(f"{names}:{number}").aacquire() for number in range(100))
                )
            left.append(list(sends.values()))
            # It is more than a node reads at once: one that is slow may answer us in between.
            await soon(lambda: [len(keys) for keys in keys_on(five)] == [100] * 5)
            with sends_counted(connections) as sends:
                await asyncio.gather(*(lease.arelease() for lease in leases))
            left.append(list(sends.values()))
            await soon(lambda: keys_on(five) == [[]] * 5)
        for bursts in (left[::2], left[1::2]):
            assert bursts.count([1] * 5) >= 2, bursts

    asyncio.run(main())


@pytest.mark.slow
def test_a_loop_has_one_connection_to_each_node(five, monkeypatch):
    """A thousand tasks share one connection per node, from their first tick on."""
    # A slow tick is not taken for one that was kept from hearing of its connections.
    monkeypatch.setattr("django_redlock.nodes.loops.LATE", 3600.0)
    redlock = template(group := group_of(five.urls, 20))

    async def turn(number: int) -> int:
        async with redlock(f"shared:{number}") as lease:
            await asyncio.sleep(0)
            await lease.aextend()
            return lease.fence

    async def main() -> None:
        fences = await asyncio.gather(*(turn(number) for number in range(1000)))
        assert len(fences) == 1000

    with connects(group) as connected:
        asyncio.run(main())
        eventually(lambda: keys_on(five) == [[]] * 5)
    assert connected == [1] * 5
    assert [len(idle(node)) for node in group.nodes] == [1] * 5  # given back, for the next caller
    group.close()


def test_every_answer_reaches_the_task_that_asked(five):
    """Tasks that ask different things in one stream are told what is true for their own."""
    redlock = template(group := group_of(five.urls, 20))

    async def holder(number: int) -> tuple[int, object]:
        lease = await redlock(f"own:{number % 100}").atry_acquire()
        return number, None if lease is None else lease

    async def main() -> None:
        with faults_noted(group) as faults:
            found = await asyncio.gather(*(holder(number) for number in range(300)))
            leases = [lease for _, lease in found if isinstance(lease, Lease)]
            # In each stream the first to ask for a name comes first.
            assert [lease is not None for _, lease in found] == [True] * 100 + [False] * 200
            assert [lease.name for lease in leases] == [f"own:{number}" for number in range(100)]
            for number, lease in enumerate(leases):
                with pytest.raises(LockTaken) as refused:
                    await redlock(f"own:{number}").aacquire()
                assert refused.value.retry_after is not None
                lease.ensure()
            await asyncio.gather(*(lease.arelease() for lease in leases))
        assert faults == []

    asyncio.run(main())
    eventually(lambda: keys_on(five) == [[]] * 5)


def test_the_first_lease_of_a_loop_stands_on_all_nodes(five):
    """A loop that has yet to connect asks no fewer nodes than one that is connected."""
    for turn in range(10):
        redlock = template(group_of(five.urls, 20))

        async def main(redlock: LockTemplate = redlock, turn: int = turn) -> None:
            lease = await redlock(f"first:{turn}").aacquire()
            await soon(lambda: keys_on(five) == [[f"redlock:lock:first:{turn}"]] * 5)
            await lease.arelease()
            await soon(lambda: keys_on(five) == [[]] * 5)

        asyncio.run(main())


def test_a_request_larger_than_the_socket_takes_is_sent_whole(five, monkeypatch):
    """The loop sends the rest as the socket takes it: no reply, and no timer, comes before that."""
    redlock = template(group := group_of(five.urls, 600))
    send: Any = socket.socket.send

    async def main() -> None:
        sockets = [each.socket for each in await connect(redlock, group)]

        def sixteen(self: socket.socket, data: bytes, *args: Any) -> int:
            return int(send(self, data[:16] if self in sockets else data, *args))

        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "send", sixteen)
            taking = asyncio.ensure_future(redlock("large").aacquire())
            await soon(taking.done, what="a reply to the whole of it")
        await (await taking).arelease()
        await soon(lambda: keys_on(five) == [[]] * 5)

    asyncio.run(main())


def test_a_node_works_while_a_burst_is_written(five, monkeypatch):
    """In a tick with very many questions the first leave, and are answered, before its end."""
    redlock = template(group := group_of(five.urls, 20))

    async def main() -> None:
        sockets = [each.socket for each in await connect(redlock, group)]
        burst = [asyncio.ensure_future(redlock(f"w:{n}").aacquire()) for n in range(1000)]

        async def answering() -> int:
            return len(select.select(sockets, [], [], 20)[0])

        assert await asyncio.ensure_future(answering()) > 0  # runs in the tick in which all ask
        leases = await asyncio.gather(*burst)
        await asyncio.gather(*(lease.arelease() for lease in leases))
        await soon(lambda: keys_on(five) == [[]] * 5)

    asyncio.run(main())


# -- nodes that go away -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "CLIENT KILL"])
def test_a_loop_reconnects(three, how):
    """After a restart, and after the node closed the connection, the node is asked again."""
    redlock = template(group := group_of(three.urls, 5))
    whole = functools.partial(stands_on_all, redlock, three)

    def interrupt() -> None:
        if how == "restart":
            three.restart(0)
            three.settings(RESTART_GUARD=False)
            return
        with closing(three[0].client(socket_timeout=5)) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def main() -> None:
        await connect(redlock, group)
        for turn in range(3):
            await asyncio.to_thread(interrupt)
            lease = await redlock(f"again:{turn}").aacquire()
            await lease.arelease()
            while not await whole(f"again:{turn}"):
                pass
        # A release whose answer was cut off has a connection of its own, for a while.
        await soon(lambda: connections(three[0]) == 1, within=UNDONE)
        await soon(lambda: keys_on(three) == [[]] * 3)

    asyncio.run(main())


def all_ended(group: NodeGroup) -> bool:
    """Whether the end of every idle connection has arrived, perhaps behind an answer.

    A thread that reads late replies has connections that are not idle, and closes those that ended.
    """
    if threads_of(group).threads.doing():
        return False
    poll = select.poll()
    found = [connection for node in group.nodes for connection in idle(node)]
    for each in found:
        poll.register(each.fileno, select.POLLRDHUP)
    return len(poll.poll(0)) == len(found)


def test_connections_that_were_closed_while_idle_cost_a_loop_no_vote(three):
    """Whatever a node closed between two loops, the first lease of the next stands on all nodes."""
    redlock = template(group := group_of(three.urls, 20))
    asyncio.run(connect(redlock, group))
    for turn in range(5):
        redlock("more").acquire().release()
        for node in three:
            with closing(node.client(socket_timeout=5)) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        # The end arrives a moment after the node has said that it closes them.
        eventually(functools.partial(all_ended, group))
        assert asyncio.run(stands_on_all(redlock, three, f"idle:{turn}"))
    group.close()


# -- one node that is late ------------------------------------------------------------------------


@pytest.fixture
def late(three: EmbeddedNodes) -> Iterator[tuple[Proxy, NodeGroup]]:
    """What is before the last of the three nodes, and a group of them that is patient."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], 60)
        yield proxy, group
        proxy.let_go()
        group.close()


def test_a_release_waits_for_a_late_node_for_a_moment(late):
    """It ends long before the node timeout, while the node has not got it."""
    proxy, group = late
    redlock = template(group)

    async def main() -> None:
        await connect(redlock, group)
        lease = await redlock("name").aacquire()
        proxy.holding = 1
        release = asyncio.ensure_future(lease.arelease())
        await soon(lambda: proxy.held and release.done())

    asyncio.run(main())


def test_a_node_that_is_connected_late_is_not_asked_for_a_task_that_was_cancelled(three, late):
    """It gets the release alone: its own key would wait for an undo that may be lost."""
    proxy, group = late
    proxy.holding = 1

    async def main() -> None:
        task = asyncio.ensure_future(template(group)("late").aacquire())
        await soon(lambda: keys_on(three)[:2] == [["redlock:lock:late"]] * 2)
        task.cancel()
        await soon(lambda: keys_on(three)[:2] == [[], []])
        proxy.let_go()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    counters = []
    for node in three:
        with closing(node.client()) as client:
            counters.append(client.hlen("redlock:fences"))
    assert counters == [2, 2, 1]  # the mark of the node, and what each name was granted with


def test_a_loop_closes_a_connection_soon_after_its_last_reply(late, monkeypatch):
    """Not only when a node timeout is over, which may be long; and not before the reply."""
    proxy, group = late
    redlock, looks, close_idle = template(group), Counter[str](), LoopConnection.close_idle

    def counted(own: LoopConnection) -> bool:
        looks[own.node.label] += 1
        return close_idle(own)

    monkeypatch.setattr(LoopConnection, "close_idle", counted)

    async def main() -> None:
        await connect(redlock, group)
        own = loop_connections(group)
        proxy.holding = 1
        lease = await redlock("name").aacquire()
        await soon(lambda: proxy.held and not (own[0].connection.owed or own[1].connection.owed))
        group.close(0)
        await soon(lambda: looks[own[2].node.label] > 2)
        assert [each.connection is None for each in own] == [True, True, False]
        proxy.let_go()
        await soon(lambda: own[2].connection is None)
        await lease.arelease()

    asyncio.run(main())


def test_a_loop_that_ends_while_it_connects_does_not_suspect_the_node(late):
    """The next request waits for the node as this one did."""
    proxy, group = late
    proxy.holding = 1

    async def main() -> None:
        group.aask(grant())
        await soon(lambda: proxy.held)

    asyncio.run(main())
    assert group.states()[2].code == ReasonCode.NEVER_REACHED
