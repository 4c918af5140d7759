"""``gunicorn --preload``: workers are forks of a master that has connections and a lease."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.test import override_settings

from django_redlock import redlock
from django_redlock.testing import EmbeddedNodes
from tests.support.inherited import children, shared, to_nodes
from tests.support.waiting import eventually

from .shop.served import WORKERS, Shop, gunicorn, served

pytestmark = pytest.mark.slow
LOCK = "held by the master"
TTL = 3.0  # seconds: short, so that the master must renew while workers come and go
CUSTOMERS = 24
RIGHT = {201: 1, 409: 1}
PRELOADED = gunicorn(f"--workers={WORKERS}", "--preload", app="tests.views.shop.preloaded")


@contextmanager
def preloaded(
    nodes: EmbeddedNodes, home: Path, monkeypatch: pytest.MonkeyPatch, **more: str
) -> Iterator[Shop]:
    """The shop, whose master holds the lock."""
    for key, value in {"PRELOADED_LOCK": LOCK, **more}.items():
        monkeypatch.setenv(key, value)
    alias = nodes.settings(NODE_TIMEOUT=5, MAX_TTL=60, RESTART_GUARD=False, TTL=TTL)
    with override_settings(REDLOCK={"default": alias}), served(PRELOADED, home, alias) as shop:
        yield shop


def master_of(shop: Shop) -> int:
    """The process that holds the lock, once it has forked its workers."""
    assert shop.answers()
    master = int(redlock(LOCK).state().holder.rpartition(":")[2])
    eventually(lambda: len(children(master)) == WORKERS, within=30)
    return master


def test_workers_that_inherit_connections_and_a_lease(patient_nodes, tmp_path, monkeypatch):
    """One order for each double submit, and the master keeps its lease.

    Also while workers are killed and others forked: none renews, releases or disturbs it.
    """
    with preloaded(patient_nodes, tmp_path, monkeypatch) as shop:
        first, master = redlock(LOCK).state(), master_of(shop)
        workers = set(children(master))
        assert len(to_nodes(master, patient_nodes)) >= 5
        eventually(lambda: shared(master, patient_nodes) == 0, what="connections of their own")
        began = time.monotonic()
        for customer in range(CUSTOMERS):
            assert Counter(shop.double_submit("/locked/", customer)) == RIGHT
            if customer % 8 == 4:
                os.kill(min(workers & set(children(master))), signal.SIGKILL)
                eventually(lambda: len(children(master)) == WORKERS, within=30)
        eventually(lambda: time.monotonic() > began + 2 * TTL, within=4 * TTL)
        assert shop.orders() == CUSTOMERS
        assert len(workers & set(children(master))) == 1
        last = redlock(LOCK).state()
        assert (last.held, last.holder, last.since) == (True, first.holder, first.since)
        assert last.fence == first.fence
        assert shared(master, patient_nodes) == 0


def test_workers_that_know_nothing_of_the_fork_are_noticed(patient_nodes, tmp_path, monkeypatch):
    """The check can fail: they go on with the master's connections."""
    with preloaded(patient_nodes, tmp_path, monkeypatch, PRELOADED_NAIVE="1") as shop:
        assert shared(master_of(shop), patient_nodes) >= 5 * WORKERS
