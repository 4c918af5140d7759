"""Nodes behind TLS, whose connections several threads read and write."""

from __future__ import annotations

import ssl
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from django_redlock.core.hold import undo
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Vote
from django_redlock.core.reasons import Reason
from django_redlock.nodes.address import Address, from_url
from django_redlock.nodes.connection import Connection, OneAtATime
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.handshake import open_connection
from django_redlock.nodes.node import Node
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import faults_noted, keys_on, template, unguarded
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.wire import Heard

QUESTIONS: Final = 2000  # without the lock a fault came after 50 to 350 of them, in six plays
LEASES: Final = 8  # of each of …
THREADS: Final = 10
PATIENCE: Final = 30.0


@contextmanager
def behind_tls(
    count: int, tls: tuple[ssl.SSLContext, Path]
) -> Iterator[tuple[EmbeddedNodes, list[Proxy], list[Address]]]:
    """So many nodes, the proxies that speak TLS for them, and their addresses."""
    context, crt = tls
    options = {"ssl_ca_certs": str(crt)}
    with ExitStack() as stack:
        nodes = stack.enter_context(unguarded(count))
        proxies = [stack.enter_context(Proxy(node.port, context)) for node in nodes]
        urls = [f"rediss://127.0.0.1:{each.port}/0" for each in proxies]
        yield nodes, proxies, [from_url(url, options=options) for url in urls]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def talk(spoken_to: Connection) -> list[Vote]:
    """Ask in one thread and read the answers in another one; the votes until a fault, or all."""
    heard: list[Vote] = []
    ended = threading.Event()
    policy = Policy(size=1)
    target = policy.target(["name"])

    def read() -> None:
        while not (ended.is_set() or spoken_to.fault):
            spoken_to.read()

    def hear(_: int, vote: Vote) -> None:
        heard.append(vote)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(QUESTIONS):
            eventually(lambda: spoken_to.fault or len(spoken_to.owed) < 50, within=PATIENCE)
            ask = undo(policy, target, f"{number:032x}", policy.everyone, touched=frozenset())
            spoken_to.send(Heard(ask, hear))
        eventually(lambda: spoken_to.fault or not spoken_to.owed, within=PATIENCE)
    finally:
        ended.set()
        reader.join()
    return heard


def conversation(tls: tuple[ssl.SSLContext, Path]) -> tuple[list[Vote], Reason | None]:
    """The votes of a node behind TLS, asked in one thread and heard in another; and the fault."""
    with behind_tls(1, tls) as (_, _, (address,)):
        connected = open_connection(
            address,
            index=0,
            fences="redlock:fences",
            guard=0,
            skew=5,
            earlier=None,
            timeout=PATIENCE,
        )
        votes, fault = talk(connected), connected.fault
        connected.close(CLOSED)
    return votes, fault


@pytest.mark.slow
@pytest.mark.usefixtures("restless")
def test_one_thread_writes_while_another_reads(tls):
    """A TLS connection that one thread reads and another one writes is not broken by that."""
    votes, fault = conversation(tls)
    assert fault is None
    assert {vote.answer for vote in votes} == {Answer.NO}
    assert len(votes) == QUESTIONS


@pytest.mark.nightly
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python has a lock of its own")
@pytest.mark.usefixtures("restless")
def test_a_thread_that_reads_without_the_lock_is_noticed(tls, monkeypatch):
    """The check above fails if reading does not wait for who is writing."""
    monkeypatch.setattr(OneAtATime, "recv", lambda self, size: self._socket.recv(size))
    _, fault = conversation(tls)
    assert fault is not None


@pytest.mark.nightly
@pytest.mark.usefixtures("restless")
def test_threads_release_over_connections_that_others_read(tls):
    """A release by a thread goes behind its grant, on a TLS connection that another one reads."""
    with behind_tls(3, tls) as (nodes, proxies, addresses):
        group = NodeGroup(addresses, timeout=PATIENCE, guard=0, prefix="redlock:")
        redlock = template(group, ttl=60)
        with redlock("warm"):
            pass
        eventually(lambda: all(state.voting for state in group.states()))
        busy: list[bool] = []
        take_behind = Node.take_behind

        def noting(node: Node, *args: Any) -> Any:
            connection, ours = take_behind(node, *args)
            busy.append(connection is not None and not ours)
            return connection, ours

        def take(thread: int) -> None:
            for number in range(LEASES):
                redlock(f"name-{thread}-{number}").acquire().release()

        proxies[2].delay = 0.002  # so that a release meets a grant without an answer
        with (
            pytest.MonkeyPatch.context() as patch,
            faults_noted(group) as faults,
            ThreadPoolExecutor(THREADS) as pool,
        ):
            patch.setattr(Node, "take_behind", noting)
            list(pool.map(take, range(THREADS)))
            late = time.monotonic() + PATIENCE
            while not any(busy) and time.monotonic() < late:  # threads that had no processor
                list(pool.map(take, range(THREADS)))
        proxies[2].delay = 0.0
        assert faults == []
        assert any(busy)
        eventually(lambda: keys_on(nodes) == [[]] * 3)
        group.close()
