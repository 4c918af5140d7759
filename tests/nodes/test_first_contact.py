"""The first question of a process: no connection is open yet."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from django_redlock import NodesUnavailable
from django_redlock.backend import Backend
from django_redlock.core.commands import Survey
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Vote
from django_redlock.core.quorum import all_heard
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import node
from django_redlock.nodes.address import from_url
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, template, unguarded
from tests.support.waiting import eventually, waiting_for_silent_nodes

TIMEOUT = 1.0


@pytest.fixture
def nodes() -> Iterator[EmbeddedNodes]:
    """Five nodes, without the guard."""
    with unguarded(5) as nodes:
        yield nodes


def fresh(urls: list[str], timeout: float = TIMEOUT) -> tuple[LockTemplate, NodeGroup]:
    """What a process has that was just started."""
    addresses = [from_url(url) for url in urls]
    group = NodeGroup(addresses, timeout=timeout, guard=0, prefix="redlock:")
    backend = Backend("default", group, Policy(size=len(urls)))
    return LockTemplate(lambda _: backend), group


@pytest.mark.slow
def test_a_hung_node_costs_a_new_process_one_timeout(nodes):
    """With a node hung the first grant waits for it; no release and no other lock does."""
    nodes.pause(1)
    redlock, group = fresh(nodes.urls)
    with waiting_for_silent_nodes(group, requests=1):
        for _ in range(10):
            redlock("name").acquire().release()
    group.close()


@pytest.mark.slow
def test_a_hung_majority_is_told_to_a_new_process(nodes):
    """A new process that can reach two nodes of five says so when one request has waited."""
    for index in (0, 2, 4):
        nodes.pause(index)
    redlock, group = fresh(nodes.urls, timeout=0.4)
    with waiting_for_silent_nodes(group, requests=1), pytest.raises(NodesUnavailable):
        redlock("name").acquire()
    group.close()


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "task"])
def test_who_could_vote_is_said_although_it_does_not_suffice(nodes, asynchronous, monkeypatch):
    """Without a majority the error counts those who answer, and accuses none of them."""
    nodes.kill(0)
    nodes.kill(2)
    nodes.pause(4)
    redlock, group = fresh(nodes.urls, timeout=20)  # for those who answer
    hung = group.nodes[4]
    hung.timeout = 0.2
    monkeypatch.setattr(node, "OPEN_TIMEOUT", 0.2)
    monkeypatch.setattr("django_redlock.nodes.exchange.LEAST_WORTH", 3600.0)  # as for `timeout`

    def attempt() -> object:
        lock = redlock("name")
        return asyncio.run(lock.aacquire()) if asynchronous else lock.acquire()

    for turn in range(4):  # while connecting, and when everything about the nodes is known
        if turn == 2:  # from now on somebody else is connecting
            monkeypatch.setattr(node, "OPEN_TIMEOUT", 3600.0)
            eventually(lambda: hung.open(time.monotonic(), urgent=True))
        with pytest.raises(NodesUnavailable) as caught:
            attempt()
        assert caught.value.reason == "2 of 5 nodes could vote, 3 are needed"
        assert [bool(vote.why) for vote in caught.value.votes] == [True, False, True, False, True]
    group.close()


@pytest.mark.parametrize("by", ["thread", "task"])
def test_who_looks_has_a_node_connected_that_took_too_long_before(nodes, by, monkeypatch):
    """It is tried at once, and waited for; a lock would go on without it."""
    keys = "redlock:held", "redlock:waits", "redlock:lock:"
    look = Survey("1" * 32, all_heard, *keys, names=["name"], patience=20.0)

    async def votes_of_a_task(group: NodeGroup) -> list[Vote]:
        return await group.aask(look)

    with closing(group_of(nodes.urls[:3], 20.0)) as group:
        third = group.nodes[2]
        with monkeypatch.context() as patch:
            patch.setattr(third, "open", lambda *_, **__: None)
            with template(group)("warm"):
                pass
        third.down_reason, third._retry_at = third.unconnected, math.inf
        votes = asyncio.run(votes_of_a_task(group)) if by == "task" else group.ask(look)
    assert [vote.answer for vote in votes] == [Answer.YES] * 3
