"""Locks in jobs of RQ, whose worker forks a child for each job and ends it by ``os._exit``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from redis import Redis
from rq import Queue, Worker
from rq.job import Job, JobStatus

from django_redlock import redlock
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.waiting import eventually

from . import horses

pytestmark = pytest.mark.slow

TTL = 4.0  # seconds: short, so that a job must be renewed
MASTERS = "the worker's own"
ENOUGH = 90.0  # seconds in which this machine runs a job, however busy it is


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedNode]:
    """RQ's own node, which has no vote."""
    with closing(EmbeddedNode()) as node:
        node.start()
        yield node


class Site:
    """A queue of RQ, and what its worker and jobs have told."""

    def __init__(self, queue: Queue, home: Path, process: subprocess.Popen[bytes]) -> None:
        self.queue = queue
        self.home = home
        self.process = process

    def begun(self, name: str) -> int:
        """Wait until a job holds the lock; return its process."""
        mark = self.home / f"begun-{name}"
        return int(eventually(lambda: mark.exists() and mark.read_text(), within=ENOUGH))

    def enough(self, name: str) -> None:
        """Let a job release the lock."""
        (self.home / f"enough-{name}").touch()

    def ended(self, job: Job) -> Any:
        """Wait for the end of a job; return its result, or how it ended."""
        ends = (JobStatus.FINISHED, JobStatus.FAILED)
        status = eventually(lambda: (got := job.get_status()) in ends and got, within=ENOUGH)
        return job.return_value() if status is JobStatus.FINISHED else status


@contextmanager
def working(broker: EmbeddedNode, nodes: EmbeddedNodes, home: Path, **more: str) -> Iterator[Site]:
    """A queue, and one worker that holds a lock of its own."""
    alias = nodes.settings(NODE_TIMEOUT=5, MAX_TTL=60, RESTART_GUARD=False, TTL=TTL)
    with (
        closing(Redis.from_url(broker.url)) as client,
        override_settings(REDLOCK={"default": alias}),
    ):
        client.flushdb()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.horses"],
            env=os.environ
            | {
                "SITE": str(home),
                "REDLOCK": json.dumps(alias),
                "BROKER": broker.url,
                "MASTERS_LOCK": MASTERS,
                **more,
            },
        )
        site = Site(Queue("default", connection=client), home, process)
        try:
            yield site
        finally:
            for name in ("long", "short"):
                site.enough(name)
            process.terminate()
            try:
                process.wait(ENOUGH)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(ENOUGH)


def outlive(name: str) -> None:
    """Wait for longer than the ttl, in which nobody gets the lock."""
    began = time.monotonic()

    def over() -> bool:
        assert redlock(name).try_acquire() is None
        return time.monotonic() > began + 1.5 * TTL

    eventually(over, within=ENOUGH, every=0.1)


def test_each_child_renews_its_lock_and_leaves_it_free(broker, patient_nodes, tmp_path):
    """The first holds it for longer than its ttl, the second finds it free; the worker its own."""
    with working(broker, patient_nodes, tmp_path) as site:
        first = site.queue.enqueue(horses.hold, "long")
        second = site.queue.enqueue(horses.take, "long")
        child = site.begun("long")
        assert child != site.process.pid
        masters = redlock(MASTERS).state()
        outlive("long")
        site.enough("long")
        pid, fence = site.ended(first)
        assert pid == child
        other, higher = site.ended(second)
        assert other not in {child, site.process.pid}
        assert higher > fence
        last = redlock(MASTERS).state()
        assert (last.held, last.since, last.fence) == (True, masters.since, masters.fence)


def test_a_child_that_knows_nothing_of_the_fork_is_noticed(broker, patient_nodes, tmp_path):
    """The check can fail: it believes that the worker's thread renews."""
    with working(broker, patient_nodes, tmp_path, NAIVE="1") as site:
        job, began = site.queue.enqueue(horses.hold, "long"), time.monotonic()
        site.begun("long")
        eventually(lambda: time.monotonic() > began + 2 * TTL, within=ENOUGH, every=0.1)
        site.enough("long")
        assert site.ended(job) is JobStatus.FAILED


def test_a_child_that_is_killed_leaves_the_lock_to_its_ttl(broker, patient_nodes, tmp_path):
    """And the next child takes it then. The worker goes on, and keeps its own."""
    with working(broker, patient_nodes, tmp_path) as site:
        first = site.queue.enqueue(horses.hold, "long")
        os.kill(site.begun("long"), signal.SIGKILL)
        for node in patient_nodes:
            with closing(node.client()) as client:
                assert client.pttl("redlock:lock:long") <= TTL * 1000
        assert site.ended(first) is JobStatus.FAILED
        with redlock("long", wait=ENOUGH) as lease:
            assert lease.held
        pid, _ = site.ended(site.queue.enqueue(horses.take, "long"))
        assert pid != site.process.pid
        assert redlock(MASTERS).state().held


def test_a_job_that_takes_too_long_releases(broker, patient_nodes, tmp_path):
    """RQ raises an exception in the job, so the next job finds the name free."""
    with working(broker, patient_nodes, tmp_path) as site:
        first = site.queue.enqueue(horses.hold, "long", job_timeout=1)
        second = site.queue.enqueue(horses.take, "long")
        assert site.ended(first) is JobStatus.FAILED
        assert site.ended(second)[1] > 0


def test_a_worker_that_is_stopped_lets_the_job_release(broker, patient_nodes, tmp_path):
    """SIGTERM: the job goes on under its lock, and both names are free when the worker ends."""
    with working(broker, patient_nodes, tmp_path) as site:
        job = site.queue.enqueue(horses.hold, "long")
        site.begun("long")
        site.process.terminate()
        (worker,) = Worker.all(queue=site.queue)
        client, key = site.queue.connection, worker.key
        eventually(lambda: client.hexists(key, "shutdown_requested_date"), within=ENOUGH)
        assert redlock("long").state().held
        site.enough("long")
        assert site.process.wait(ENOUGH) == 0
        assert site.ended(job)[1] > 0
        for name in ("long", MASTERS):
            assert not redlock(name).state().held
