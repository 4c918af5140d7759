"""Marks of queued tasks, on nodes in memory and real ones, by threads and by an event loop."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import conf, redlock
from django_redlock.core import completion
from django_redlock.testing import EmbeddedNodes
from tests.support.links import generally
from tests.support.waiting import eventually

NODES = pytest.mark.parametrize("kind", ["memory", "real"], indirect=True)
DRIVERS = pytest.mark.parametrize("looped", [False, True], ids=["threads", "asyncio"])


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Five fresh nodes of a kind in the settings."""
    settings: dict[str, Any] = {"NODES": [f"memory://{uuid.uuid4().hex}" for _ in range(5)]}
    if request.param == "real":
        nodes = request.getfixturevalue("redlock_embedded")
        request.getfixturevalue("patient_nodes")
        settings = nodes.settings(NODE_TIMEOUT=10, RESTART_GUARD=False)
    with override_settings(REDLOCK={"default": settings}):
        yield request.param


class Marker:
    """Publishers of one task."""

    def __init__(self, *, looped: bool) -> None:
        self.looped = looped
        self.backend = conf.backend("default")
        self.policy = self.backend.policy
        self.name = uuid.uuid4().hex
        self.key = completion.mark_key(self.policy, "sync", [self.name])

    def _run(self, steps: Any) -> Any:
        if not self.looped:
            return self.backend.run(steps)

        async def carried_out() -> Any:
            return await self.backend.arun(steps)

        return asyncio.run(carried_out())

    def publish(self, task_id: str, ttl: float = 60.0) -> completion.Outcome:
        """Mark a task."""
        locks = self.policy.target([self.name]).keys
        steps = completion.set_mark(
            self.policy, self.key, locks, task="sync", task_id=task_id, ttl=ttl
        )
        found: completion.Outcome = self._run(steps)
        return found

    def remove(self, nonce: str = "") -> None:
        """Remove a mark."""
        self._run(completion.remove(self.policy, self.key, nonce))


@NODES
@DRIVERS
def test_a_mark_keeps_others_out_until_it_is_removed(kind, looped):
    """The first id is told to others; its own nonce removes it, or an operator does."""
    marker = Marker(looped=looped)
    first = marker.publish("first")
    assert first.certain
    assert marker.publish("second").duplicate_of == "first"
    again = marker.publish("first")
    assert again.certain
    marker.remove(first.nonce)
    assert marker.publish("second").duplicate_of == "first"
    marker.remove(again.nonce)
    assert marker.publish("second").certain
    marker.remove()
    assert marker.publish("third").certain
    marker.remove()


@NODES
@DRIVERS
def test_a_run_is_a_mark(kind, looped):
    """While a run of the task holds the lock, its id is told; another holder is no obstacle."""
    marker = Marker(looped=looped)
    with redlock.using(label="host:1(sync):first")(marker.name):
        assert marker.publish("second").duplicate_of == "first"
    with redlock.using(label="host:1(bill):first")(marker.name):
        assert marker.publish("second").certain
    marker.remove()


@NODES
@DRIVERS
def test_a_mark_may_outlive_max_ttl_and_ends_by_itself(kind, looped):
    """An hour is longer than any lease may last; a short one is over when it is over."""
    marker = Marker(looped=looped)
    assert marker.publish("first", ttl=3600).certain
    assert marker.publish("second").duplicate_of == "first"
    assert marker.publish("first", ttl=0.2).certain
    eventually(lambda: marker.publish("second").certain, within=10, every=0.02)
    marker.remove()


@NODES
@DRIVERS
def test_of_many_publishers_at_once_the_others_are_told_of_one_that_is_sent(kind, looped):
    """A publisher that does not send is told the id of a message that was sent."""
    marker = Marker(looped=looped)
    for _ in range(5):
        barrier = threading.Barrier(8)

        def one(number: int, barrier: threading.Barrier = barrier) -> completion.Outcome:
            barrier.wait(30)
            return marker.publish(f"id-{number}")

        with ThreadPoolExecutor(8) as pool:
            outcomes = dict(enumerate(pool.map(one, range(8))))
        sent = {f"id-{i}" for i, outcome in outcomes.items() if not outcome.duplicate_of}
        told = {outcome.duplicate_of for outcome in outcomes.values() if outcome.duplicate_of}
        assert sent
        assert told <= sent
        marker.remove()


def is_late(group: Any, nonce: str) -> bool:
    """Whether it is known which link owes the reply to this mark."""
    return bool(group._threads.late.get(nonce))


def late_marks(nodes: EmbeddedNodes) -> int:
    """Mark, and remove the marks, while a node hangs; how many there are when it is back.

    Each removal goes over the connection on which the node owes the reply to the mark.
    """
    client = nodes[4].client()

    def scripts() -> int:
        found: Any = client.info("commandstats")
        return int(found["cmdstat_evalsha"]["calls"])

    with override_settings(REDLOCK={"default": nodes.settings(NODE_TIMEOUT=10)}):
        markers = [Marker(looped=False) for _ in range(5)]
        markers[0].remove(markers[0].publish("first").nonce)
        eventually(lambda: client.exists(markers[0].key) == 0)
        before, group = scripts(), conf.backend("default").group
        nodes.pause(4)
        try:
            for marker in markers:
                outcome = marker.publish("late")
                assert outcome.certain
                assert is_late(group, outcome.nonce)
                marker.remove(outcome.nonce)
        finally:
            nodes.resume(4)
        eventually(lambda: scripts() >= before + 2 * len(markers))
        eventually(lambda: not group.nodes[4].undos.kept)  # type: ignore[attr-defined]
        return sum(client.exists(marker.key) for marker in markers)


@pytest.mark.parametrize("way", [nullcontext, generally])
def test_a_late_mark_is_removed_behind_itself(patient_nodes, way):
    """A node that hung carries out the mark and its removal in this order."""
    with way():
        assert late_marks(patient_nodes) == 0


def test_a_removal_may_overtake_a_mark_whose_link_is_forgotten(patient_nodes, monkeypatch):
    """The variant that may send it over another link: the test above can fail."""
    monkeypatch.setattr("django_redlock.nodes.exchange.TAKING", frozenset())
    with pytest.raises(AssertionError, match="is_late"):
        late_marks(patient_nodes)
