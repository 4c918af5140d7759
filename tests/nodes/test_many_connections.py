"""Many connections wanted at once: they come a few at a time, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from redis.credentials import CredentialProvider

from django_redlock import NodesUnavailable
from django_redlock.core.protocol import BlockOnNode, JoinQueue, LeaveQueue, Waiter, Wakeup
from django_redlock.core.reasons import ReasonCode
from django_redlock.nodes import background
from django_redlock.nodes.address import from_url
from django_redlock.nodes.connection import Connection
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.node import MOST_ATTEMPTS, ConnectAttempt, Node
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.loops import group_of, soon, template, unguarded
from tests.support.waiting import eventually

WAITERS = 100


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


def node_at(port: int) -> Node:
    """What a process knows of the node at that port, with nobody connected yet."""
    address = from_url(f"redis://127.0.0.1:{port}/0")
    return Node(address, index=0, fences="f", guard=0, timeout=0.5, welcomed=lambda: None)


def open_many(node: Node) -> list[ConnectAttempt]:
    """So many openings of which none had to wait for another."""
    openings = [node.open(0.0, urgent=True) for _ in range(WAITERS)]
    return [attempt for attempt in openings if attempt is not None]


def test_tasks_that_wait_for_many_names_connect_a_few_at_a_time(nodes, monkeypatch):
    """Each waits over a connection of its own; the loop has to go on while they are opened."""
    redlock = template(group := group_of(nodes.urls, timeout=20), ttl=60)
    counting, now, most = threading.Lock(), Counter[str](), Counter[str]()

    def counted(label: str, connect: Callable[..., Connection | None]) -> Any:
        def counting_one(*args: Any) -> Connection | None:
            with counting:
                now[label] += 1
                most[label] = max(most[label], now[label])
            try:
                return connect(*args)
            finally:
                with counting:
                    now[label] -= 1

        return counting_one

    async def wait_for(name: str) -> None:
        async with redlock(name, wait=60):
            pass

    async def main() -> None:
        names = [f"name {i}" for i in range(WAITERS)]
        held = await asyncio.gather(*(redlock(name).aacquire() for name in names))
        waiting = [asyncio.create_task(wait_for(name)) for name in names]
        await soon(lambda: sum(map(blocked, nodes)) == WAITERS, within=50)
        await asyncio.gather(*(lease.arelease() for lease in held))
        await asyncio.gather(*waiting)

    for node in group.nodes:
        monkeypatch.setattr(node, "_connect", counted(node.label, node._connect))
    asyncio.run(main())
    assert 1 < max(most.values()) <= MOST_ATTEMPTS


def blocked(node: EmbeddedNode) -> int:
    """How many connections wait in a queue of the node."""
    with closing(node.client()) as client:
        return int(client.info("clients")["blocked_clients"])


@pytest.mark.slow
def test_one_failure_is_the_answer_to_all_that_were_wanted_before_it():
    """A node that takes connections and says nothing is tried by a few, not by everybody."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    accepted.append(listener.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        node = node_at(listener.getsockname()[1])
        openings = open_many(node)
        assert len(openings) == WAITERS
        for attempt in openings:
            assert attempt.done.wait(30)
            assert attempt.take() is None
        assert len(accepted) <= 2 * MOST_ATTEMPTS
        assert node.down_reason is not None
        assert node.down_reason.code is ReasonCode.CONNECT_TIMEOUT
        listener.shutdown(socket.SHUT_RDWR)
    for each in accepted:
        each.close()


def test_without_threads_nobody_waits_for_a_connection(nodes, monkeypatch):
    """While the interpreter shuts down there are none: the node is out of reach, at once."""
    node = node_at(nodes[0].port)
    monkeypatch.setattr(node.threads, "offer", lambda *_, **__: False)
    assert node.open(0.0, urgent=True) is None
    monkeypatch.undo()
    attempt = node.open(0.0, urgent=True)
    assert attempt is not None
    eventually(attempt.done.is_set)
    connection = attempt.take()
    assert connection is not None
    connection.close(CLOSED)


def test_a_job_for_which_no_thread_can_be_started_is_refused(monkeypatch):
    """It is not kept for a later one either: who submitted it knows that it is not done."""
    pool, start, done = background.WorkerThreads(), background.start_thread, threading.Event()

    def none_for_the_pool(function: Any, *args: Any) -> None:
        if function.__self__ is pool:
            raise RuntimeError("can't start new thread")
        start(function, *args)

    with monkeypatch.context() as patch:
        patch.setattr(background, "start_thread", none_for_the_pool)
        assert not pool.offer("kind", bool)
    assert pool.doing() == []
    assert pool.offer("kind", done.set)
    assert done.wait(60)


def test_a_refused_start_takes_no_job_from_the_thread_that_is_about_to_begin(monkeypatch):
    """The job is offered once more before that thread runs, and no second one can be started."""
    pool, begun, done = background.WorkerThreads(), [], threading.Event()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "start_thread", lambda *args: begun.append(args))
    assert pool.offer("kind", done.set, again=False)
    monkeypatch.setattr(background, "start_thread", refuse)
    assert not pool.offer("kind", done.set, again=False)
    ((run, *args),) = begun
    run(*args)
    assert done.is_set()
    assert pool.doing() == []


def test_a_thread_that_ends_leaves_the_others_of_its_kind_counted(monkeypatch):
    """Else a kind had more threads than it may, and nobody waited for the one at work."""
    pool, begun, enough = background.WorkerThreads(), threading.Event(), threading.Event()

    def lasts() -> None:
        begun.set()
        enough.wait(60)

    assert pool.offer("kind", lasts, most=2)
    assert begun.wait(60)
    monkeypatch.setattr(background, "start_thread", lambda work, *args: work(*args))
    assert pool.offer("kind", bool, most=2)
    assert pool.doing() == ["kind"]
    enough.set()
    assert background.end([pool], 60) == []


@pytest.mark.parametrize("by", ["thread", "task"])
def test_whatever_connecting_raises_is_a_reason_and_no_end(nodes, by):
    """A provider of credentials may raise what it likes: the node is down, and tried again."""
    today = threading.Event()

    class FailsFirst(CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            if not today.is_set():
                raise RuntimeError("no token yet")
            return "default", "any"

    options = {"credential_provider": FailsFirst()}
    addresses = [from_url(url, options=options) for url in nodes.urls]
    group = NodeGroup(addresses, timeout=20, guard=0, prefix="redlock:")
    redlock = template(group)

    async def one() -> None:
        async with redlock("name"):
            pass

    def take() -> bool:
        try:
            if by == "task":
                loop.run_until_complete(one())
            else:
                redlock("name").acquire().release()
        except NodesUnavailable as error:
            told.append(str(error))
            return False
        return True

    told: list[str] = []
    with closing(asyncio.new_event_loop()) as loop:
        assert not take()
        assert "RuntimeError" in told[0]
        today.set()
        eventually(take)


def test_who_leaves_does_not_read_what_is_somebody_elses(nodes, monkeypatch):
    """A word has come, and the connection was given back: another may use it already."""
    group, waiter = group_of(nodes.urls, timeout=5), Waiter("redlock:queue:given")
    eventually(lambda: group.queue(JoinQueue(waiter, 5)))
    with closing(nodes[0].client()) as client:
        client.rpush(waiter.queue, "d" * 32)
    eventually(lambda: group.queue(BlockOnNode(waiter, 0, 5, 10)) == Wakeup("d" * 32))
    read: list[Connection] = []
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "read", read.append)
        assert group.queue(LeaveQueue(waiter)) == "d" * 32
    labels = {node.label for node in group.nodes}  # others are of other tests' threads
    assert [each for each in read if each.label in labels] == []
