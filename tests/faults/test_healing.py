"""Leases that grow back: on nodes that others had, that were emptied, or that restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import NodesUnavailable, redlock
from django_redlock.core import hold
from django_redlock.core.commands import Heal
from django_redlock.core.protocol import Answer
from django_redlock.leases.lease import Lease
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Patch, rules, with_edits
from tests.support.waiting import eventually

TTL = 10.0  # seconds: no machine is so busy that renewals come too late
SETTINGS: dict[str, Any] = {"RESTART_GUARD": False, "MAX_TTL": TTL, "NODE_TIMEOUT": 0.5}


@pytest.fixture
def nodes() -> Iterator[EmbeddedNodes]:
    """Five nodes, and an alias for them whose leases last."""
    with EmbeddedNodes(5) as five:
        settings = five.settings(**SETTINGS)
        with override_settings(REDLOCK={"default": settings}):
            yield five


def keys_on(nodes: EmbeddedNodes, place: int, pattern: str = "*") -> int:
    """How many locks a node has."""
    with nodes[place].client() as client:
        return len(list(client.scan_iter(f"redlock:lock:{pattern}", count=2000)))


@pytest.fixture
def patient() -> Iterator[EmbeddedNodes]:
    """Five nodes, for which somebody waits as long as they like."""
    with EmbeddedNodes(5) as five:
        settings = five.settings(**SETTINGS | {"MAX_TTL": 60, "NODE_TIMEOUT": 20})
        with override_settings(REDLOCK={"default": settings}):
            yield five


def extended_by_a_heal(nodes: EmbeddedNodes, extend: Callable[[Lease], object]) -> bool:
    """Whether one extension prolongs a lease that two nodes have, two have lost; one is dead."""
    lease = redlock("few", renew=False).acquire()
    eventually(lambda: all(keys_on(nodes, place, "few") for place in range(5)))
    for place in (0, 1):
        with nodes[place].client() as client:
            client.delete("redlock:lock:few")
    nodes.kill(2)
    before = lease.grant.deadline
    with suppress(NodesUnavailable):
        extend(lease)
    lease.release()
    return lease.grant.deadline > before


def by_a_task(lease: Lease) -> None:
    """Extend in an event loop."""
    asyncio.run(lease.aextend())


@pytest.mark.slow
@pytest.mark.parametrize("extend", [Lease.extend, by_a_task], ids=["threads", "asyncio"])
def test_a_healed_node_counts_at_once(patient, extend):
    """Two kept it and two take it back: four of five, by this extension and not by the next."""
    assert extended_by_a_heal(patient, extend)


@pytest.mark.slow
def test_a_heal_whose_replies_nobody_hears_is_noticed(patient):
    """The check can fail: the nodes have the lease, and the extension does not know it."""

    def unheard(effect: Any, votes: Any) -> Any:
        if not isinstance(effect, Heal):
            return votes
        return [vote._replace(answer=Answer.UNKNOWN) for vote in votes]

    def extend_many(real: Any) -> Any:
        return lambda *args: rules.driven(real(*args), votes=unheard)

    with with_edits(Patch(hold, "extend_many", extend_many)):
        assert not extended_by_a_heal(patient, Lease.extend)
