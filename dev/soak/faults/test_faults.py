"""Hung nodes: how long a lock takes."""

from __future__ import annotations

import statistics
import time
from typing import Any

from django.test import override_settings

from django_redlock import conf, redlock
from django_redlock.inspection.survey import survey
from django_redlock.nodes.connection import Connection
from django_redlock.testing.embedded import EmbeddedNodes
from tests.faults.test_faults import MAX_TTL, NODE_TIMEOUT, holders, laboratory, warm
from tests.support.waiting import eventually


def seconds_of(times: int, alias: str = "default") -> list[float]:
    """How long acquiring and releasing takes, each time."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        redlock.using(alias)("name", renew=False).acquire().release()
        found.append(time.perf_counter() - start)
    return found


def test_a_hung_minority_makes_no_lock_slower():
    """With two of five nodes hung the median is at most 3 times the healthy one's."""
    with EmbeddedNodes(7) as nodes:
        # In turns, so that what else the machine does slows down the one as it does the other.
        whole = nodes.settings(RESTART_GUARD=False, NODE_TIMEOUT=NODE_TIMEOUT)
        setting = {
            "well": whole | {"NODES": nodes.urls[:5], "KEY_PREFIX": "well:"},
            "ill": whole | {"NODES": nodes.urls[2:], "KEY_PREFIX": "ill:"},
        }
        with override_settings(REDLOCK=setting):
            warm("well")
            warm("ill")
            nodes.pause(5)
            nodes.pause(6)
            turns = [seconds_of(1, "well") + seconds_of(1, "ill") for _ in range(60)]
        healthy, hung = map(statistics.median, zip(*turns, strict=True))
        assert hung <= 3 * healthy + 0.002, (hung, healthy)
        assert holders(nodes, "ill:lock:name") == []
        nodes.resume(5)
        nodes.resume(6)
        eventually(lambda: holders(nodes, "ill:lock:name") == [], within=MAX_TTL / 3)


def test_a_node_that_hangs_is_known_however_slowly_it_was_asked(monkeypatch):
    """A process that is held up while it writes waits for a hung node once, not twice."""
    asked: list[int] = []
    flush: Any = Connection.flush

    def dawdle(connection: Connection) -> bool:
        if connection.label in labels:  # else a thread of another test undoes something
            asked.append(connection.index)
        time.sleep(0.02)  # as on a busy machine
        return bool(flush(connection))

    with laboratory(3, NODE_TIMEOUT=1) as nodes:
        warm()
        nodes.pause(1)
        backend = conf.backend("default")
        labels = {state.label for state in backend.group.states()}
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "flush", dawdle)
            seen = survey(backend)
        assert asked == [0, 1, 2]
        assert seen.nodes[1].why.startswith("no answer")
