"""How many messages a lock costs, counted by the nodes themselves."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from django_redlock import LockTaken, conf, redlock
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.loops import owing
from tests.support.waiting import eventually


def group() -> Any:
    """The nodes, as this process knows them."""
    return conf.backend("default").group


@pytest.fixture
def nodes(patient_nodes: EmbeddedNodes) -> Iterator[EmbeddedNodes]:
    """Nodes that note each command: an earlier test may still undo something of its own."""
    for node in patient_nodes:
        with node.client() as client:
            client.config_set("slowlog-max-len", 1000)
            client.config_set("slowlog-log-slower-than", 0)
    yield patient_nodes
    for node in patient_nodes:
        if node.is_paused:
            node.resume()
        with node.client() as client:
            client.config_set("slowlog-log-slower-than", 10_000)
            client.slowlog_reset()


def scripts_run(nodes: Sequence[EmbeddedNode], name: str) -> list[int]:
    """How many scripts about a name each of the first nodes has run, once nothing is on its way."""
    known = group().nodes[: len(nodes)]
    eventually(lambda: not any(owing(known)))
    counts = []
    for node in nodes:
        with node.client() as client:
            commands = [entry["command"].decode().split() for entry in client.slowlog_get(1000)]
        counts.append(
            sum(each[0] == "EVALSHA" and f"redlock:lock:{name}" in each for each in commands)
        )
    return counts


def connect() -> None:
    """See that this process has a connection to every node, and that none is on its way."""
    redlock("warm").acquire().release()
    eventually(lambda: all(state.voting for state in group().states()))


def test_a_fenced_acquire_is_one_message_to_each_node(nodes):
    """When the nodes agree, lock and fence come in one round trip; a release is one more."""
    connect()
    before = scripts_run(nodes, "fenced")
    lease = redlock("fenced").acquire()
    assert scripts_run(nodes, "fenced") == [count + 1 for count in before]
    lease.release()
    assert scripts_run(nodes, "fenced") == [count + 2 for count in before]


def test_an_extension_is_one_message_to_each_node(nodes):
    """A renewal costs nothing more where nothing is to be healed; else one more where it is."""
    connect()
    lease = redlock("extended", renew=False).acquire()
    before = scripts_run(nodes, "extended")
    lease.extend()
    assert scripts_run(nodes, "extended") == [count + 1 for count in before]
    for place in (1, 3):
        with nodes[place].client() as client:
            client.delete("redlock:lock:extended")
    extended = 1

    def more() -> list[int]:
        """What each node was asked besides the extensions, of which there is one more."""
        nonlocal extended
        lease.extend()
        extended += 1
        now = scripts_run(nodes, "extended")
        return [count - old - extended for count, old in zip(now, before, strict=True)]

    eventually(lambda: more() == [0, 1, 0, 1, 0])  # a node that is heard too late is healed later
    assert more() == [0, 1, 0, 1, 0]
    lease.release()


def test_a_conflict_is_known_after_one_message_to_each_node(nodes):
    """A refusal costs one round; only nodes that were not heard are asked to undo."""
    connect()
    with redlock("refused"):
        before = scripts_run(nodes, "refused")
        with pytest.raises(LockTaken):
            redlock("refused").acquire(wait=0)
        asked = [now - old for now, old in zip(scripts_run(nodes, "refused"), before, strict=True)]
        assert 1 <= min(asked) <= max(asked) <= 2
        assert asked.count(1) >= 3


def test_nodes_that_disagree_cost_one_more_round(nodes):
    """A node whose counter is ahead raises the token; the others are lifted to it, once."""
    connect()
    field = zlib.crc32(b"ahead") % 1024
    ahead = (time.time_ns() // 1000) + 3600 * 10**6  # an hour, in microseconds
    with nodes[0].client() as client:
        client.hset("redlock:fences", str(field), ahead)
    nodes.pause(3)
    nodes.pause(4)  # so that every majority has the node that is ahead
    before = scripts_run(nodes[:3], "ahead")
    lease = redlock("ahead").acquire()
    assert lease.fence == ahead + 1
    lease.release()
    with redlock("ahead") as lease:
        assert lease.fence == ahead + 2
    after = scripts_run(nodes[:3], "ahead")
    counts = [now - old for now, old in zip(after, before, strict=True)]
    assert counts == [4, 5, 5]  # two locks and two releases; a raise for those below, once
