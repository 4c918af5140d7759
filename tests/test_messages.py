"""How many messages a lock costs, counted by the nodes themselves."""

from __future__ import annotations

import pytest

from django_redlock import LockTaken, redlock
from django_redlock.testing import EmbeddedNodes

from .waiting import eventually


def scripts_run(nodes: EmbeddedNodes) -> list[int]:
    """How many scripts each node has run."""
    counts = []
    for node in nodes:
        with node.client() as client:
            counts.append(client.info("commandstats").get("cmdstat_eval", {}).get("calls", 0))
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
    redlock("name").acquire().release()
    with redlock_nodes[0].client() as client:
        field = max(client.hkeys("redlock:fences"), key=lambda key: key.isdigit())
        ahead = int(client.hget("redlock:fences", field)) + 10**9
        client.hset("redlock:fences", field, ahead)
    fences = []
    for _ in range(8):
        with redlock("name") as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))
    assert fences[-1] > ahead
