"""Children of a prefork worker whose main process has connections to the nodes, and a lease."""

from __future__ import annotations

import time
import uuid

import pytest

from django_redlock import redlock
from tests.support.inherited import children, shared, to_nodes
from tests.support.waiting import eventually

from . import project
from .site import CHILDREN, GET, TTL

pytestmark = pytest.mark.slow
QUEUE = "preforked"


def test_children_make_connections_of_their_own(site, patient_nodes):
    """They lock for their tasks, and the main process keeps its lease for several ttls."""
    held, key = f"main:{uuid.uuid4()}", str(uuid.uuid4())
    with site.worker(queue=QUEUE, TEST_HELD=held) as worker:
        began, first = time.monotonic(), redlock(held).state()
        assert first.holder.endswith(f":{worker.pid}")
        assert len(to_nodes(worker.pid, patient_nodes)) >= 5
        assert len(children(worker.pid)) == CHILDREN
        eventually(lambda: shared(worker.pid, patient_nodes) == 0, what="connections of their own")
        sent = [
            project.patient.apply_async((f"{key}:{number % 3}", 0.1), queue=QUEUE)
            for number in range(16)
        ]
        assert [result.get(timeout=GET) for result in sent] == ["done"] * 16
        eventually(lambda: time.monotonic() > began + 2 * TTL, within=4 * TTL)
        last = redlock(held).state()
        assert (last.held, last.since, last.fence) == (True, first.since, first.fence)
        assert shared(worker.pid, patient_nodes) == 0


def test_children_that_know_nothing_of_the_fork_are_noticed(site, patient_nodes):
    """The check can fail: they have the connections of the main process."""
    with site.worker(queue=QUEUE, TEST_HELD=f"main:{uuid.uuid4()}", TEST_NAIVE="1") as worker:
        assert len(children(worker.pid)) == CHILDREN
        assert shared(worker.pid, patient_nodes) >= 5 * CHILDREN
