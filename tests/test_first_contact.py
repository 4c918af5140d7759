"""The first question of a process: no connection is open yet."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest

from django_redlock import NodesUnavailable
from django_redlock.addresses import from_url
from django_redlock.backend import Backend
from django_redlock.locks import LockTemplate
from django_redlock.nodes import Nodes
from django_redlock.protocol import Policy

from .proxy import Proxy

TIMEOUT = 0.4


def fresh(urls: list[str]) -> tuple[LockTemplate, Nodes]:
    """What a process has that was just started."""
    addresses = [from_url(url) for url in urls]
    group = Nodes(addresses, timeout=TIMEOUT, guard=0, prefix="redlock:")
    backend = Backend("default", group, Policy(size=len(urls)))
    return LockTemplate(lambda _: backend), group


def test_a_hung_node_costs_a_new_process_one_timeout(redlock_nodes):
    """FM-1, FM-2: with a node hung the first lock is had, the second costs nothing any more."""
    redlock_nodes.pause(1)
    redlock, group = fresh(redlock_nodes.urls)
    start = time.monotonic()
    redlock("name").acquire().release()
    first = time.monotonic() - start
    start = time.monotonic()
    for _ in range(10):
        redlock("name").acquire().release()
    assert first < 3 * TIMEOUT
    assert (time.monotonic() - start) / 10 < TIMEOUT / 2
    group.close()


def test_a_hung_majority_is_told_to_a_new_process(redlock_nodes):
    """FM-4: a new process that can reach two nodes of five says so within a few timeouts."""
    for index in (0, 2, 4):
        redlock_nodes.pause(index)
    redlock, group = fresh(redlock_nodes.urls)
    start = time.monotonic()
    with pytest.raises(NodesUnavailable):
        redlock("name").acquire()
    assert time.monotonic() - start < 8 * TIMEOUT
    group.close()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "task"])
def test_who_could_vote_is_said_although_it_does_not_suffice(redlock_nodes, asynchronous):
    """FM-4: without a majority the error counts those who answer, and accuses none of them."""
    redlock_nodes.kill(0)
    redlock_nodes.kill(2)
    redlock_nodes.pause(4)
    redlock, group = fresh(redlock_nodes.urls)

    def attempt() -> object:
        lock = redlock("name")
        return asyncio.run(lock.aacquire()) if asynchronous else lock.acquire()

    for _ in range(4):  # while connecting, and when everything about the nodes is known
        with pytest.raises(NodesUnavailable) as caught:
            attempt()
        assert caught.value.reason == "2 of 5 nodes could vote, 3 are needed"
        assert [bool(vote.why) for vote in caught.value.votes] == [True, False, True, False, True]
    group.close()


def test_connecting_may_take_several_round_trips(redlock_nodes):
    """A node timeout is for one answer; a first handshake, of several, may take longer."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in redlock_nodes]
        for proxy in proxies:
            proxy.delay = TIMEOUT / 4
        redlock, group = fresh([proxy.url for proxy in proxies])
        redlock("name").acquire().release()
        group.close()
