"""How many messages a lock costs, counted by the nodes themselves."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable

import pytest

from django_redlock import LockTaken, redlock
from django_redlock.testing import EmbeddedNode

from .waiting import eventually


def scripts_run(nodes: Iterable[EmbeddedNode]) -> list[int]:
    """How many scripts each node has run."""
    counts = []
    for node in nodes:
        with node.client() as client:
            counts.append(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))
    return counts


def test_a_fenced_acquire_is_one_message_to_each_node(redlock_nodes):
    """When the nodes agree, lock and fence come in one round trip; a release is one more."""
    redlock("warm").acquire().release()
    before = scripts_run(redlock_nodes)
    lease = redlock("name").acquire()
    eventually(lambda: scripts_run(redlock_nodes) == [count + 1 for count in before])
    lease.release()
    eventually(lambda: scripts_run(redlock_nodes) == [count + 2 for count in before])


def test_a_conflict_is_known_after_one_message_to_each_node(redlock_nodes):
    """FM-33: a refusal costs one round; only nodes that were not heard are asked to undo."""
    with redlock("name"):
        before = scripts_run(redlock_nodes)
        with pytest.raises(LockTaken):
            redlock("name").acquire(wait=0)

        def asked() -> list[int]:
            return [now - old for now, old in zip(scripts_run(redlock_nodes), before, strict=True)]

        eventually(lambda: min(asked()) >= 1)
        assert max(asked()) <= 2
        assert asked().count(1) >= 3


def test_nodes_that_disagree_cost_one_more_round(redlock_nodes):
    """A node whose counter is ahead raises the token; the others are lifted to it, once."""
    redlock("ahead").acquire().release()
    field = zlib.crc32(b"ahead") % 1024
    ahead = (time.time_ns() // 1000) + 3600 * 10**6  # an hour, in microseconds
    with redlock_nodes[0].client() as client:
        client.hset("redlock:fences", str(field), ahead)
    redlock_nodes.pause(3)
    redlock_nodes.pause(4)  # so that every majority has the node that is ahead
    before = scripts_run(redlock_nodes[:3])
    lease = redlock("ahead").acquire()
    assert lease.fence == ahead + 1
    lease.release()
    with redlock("ahead") as lease:
        assert lease.fence == ahead + 2
    after = scripts_run(redlock_nodes[:3])
    counts = [now - old for now, old in zip(after, before, strict=True)]
    assert counts == [4, 5, 5]  # two locks and two releases; a raise for those below, once
