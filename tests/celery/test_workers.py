"""``locked_task`` in real prefork workers, with a Redis broker, killed and limited."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

from django_redlock import redlock
from django_redlock.testing import EmbeddedNodes
from tests.support.inherited import children, shared, to_nodes
from tests.support.waiting import eventually

from . import project
from .site import (
    CHILDREN,
    GET,
    TTL,
    Site,
    came_back,
    end,
    is_alive,
    kill_child,
    new_key,
    wait_until_taken_for_lost,
)

pytestmark = pytest.mark.slow


def test_waiting_uses_up_no_retry(site):
    """A task that had to wait twice and more still retries as often as it may."""
    key = new_key()
    with redlock(f"work:{key}") as lease:
        result = project.failing.delay(key)
        eventually(lambda: came_back(site, result.id) >= 2, within=GET, every=0.05)
        lease.ensure()
    with pytest.raises(Exception, match="Can't retry"):
        result.get(timeout=GET)
    assert [note["retries"] for note in site.notes("begin", key)] == [0, 1, 2]


def test_the_fourth_message_of_a_limit_comes_back_and_runs(site):
    """``limit=3`` and nothing else: it waits for a slot, and is not taken for done."""
    key = new_key()
    results = [project.few.delay(key) for _ in range(4)]
    first = {note["id"] for note in site.begun(key, times=3)}
    (fourth,) = (each for each in results if each.id not in first)
    eventually(lambda: came_back(site, fourth.id), within=GET, every=0.05)
    for _ in results:
        site.end_run(key)
    assert [each.get(timeout=GET) for each in results] == ["done"] * 4
    assert {note["id"] for note in site.notes("begin", key)} == {each.id for each in results}


def test_a_soft_limit_releases_at_once(site):
    """The exception of the soft time limit ends the body, and the lease with it."""
    key = new_key()
    result = project.skipping.apply_async((key, GET), soft_time_limit=5)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=GET)
    assert site.notes("interrupted", key)
    with redlock(f"work:{key}"):  # at once; a lease that is left to its ttl lives on
        pass


@contextmanager
def limited(site: Site, task: Any, **env: Any) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """A key and its lock, and what sends a message whose soft limit is 5 s to a connected child."""
    key, queue = new_key(), new_key()
    with site.worker(1, queue, TEST_LOCKS=site.long_locks(), **env):
        project.strict.apply_async((new_key(),), queue=queue).get(timeout=GET)
        yield (
            key,
            redlock(f"work:{key}"),
            lambda: task.apply_async((key,), queue=queue, soft_time_limit=5),
        )


@contextmanager
def hanging(nodes: EmbeddedNodes) -> Iterator[None]:
    """A majority hangs, for less than a node timeout."""
    for number in range(3):
        nodes.pause(number)
    try:
        yield
    finally:
        for number in range(3):
            nodes.resume(number)


def test_a_soft_limit_ends_the_wait_for_a_holder(site):
    """The task fails, its body does not run, and the name is free when its holder releases it."""
    with limited(site, project.waiting) as (key, lock, send):
        with lock as lease, pytest.raises(SoftTimeLimitExceeded):
            send().get(timeout=GET)
        assert lease.lost is False
        lock.acquire().release()
        assert site.notes("begin", key) == []


@pytest.mark.parametrize("broken", [{}, {"TEST_CARELESS": "1"}], ids=["well", "broken"])
def test_a_soft_limit_while_nodes_are_waited_for_frees_the_name(site, redlock_embedded, broken):
    """What they grant when they go on is undone; a broken variant leaves it to the ttl."""
    with limited(site, project.waiting, **broken) as (key, lock, send):
        with hanging(redlock_embedded), pytest.raises(SoftTimeLimitExceeded):
            send().get(timeout=GET)
        name = f"work:{key}"
        if broken:
            eventually(lambda: len(site.ends(name)) >= 3, what=lambda: f"{site.ends(name)}")
            assert lock.try_acquire() is None
        else:
            eventually(lambda: site.ends(name) == {})
        assert site.notes("begin", key) == []


def test_a_soft_limit_while_nodes_are_waited_for_at_the_end_frees_the_name(site, redlock_embedded):
    """The body is over, and its release on its way."""
    with limited(site, project.lasting) as (key, _, send):
        result = send()
        site.begun(key)
        with hanging(redlock_embedded):
            site.enough(key)
            with pytest.raises(SoftTimeLimitExceeded):
                result.get(timeout=GET)
        eventually(lambda: site.ends(f"work:{key}") == {})
        assert site.notes("interrupted", key) == []
        assert len(site.notes("end", key)) == 1


def test_a_hard_limit_leaves_the_lock_to_its_ttl(site):
    """While a child may still run its key stays; one ttl after its death it is free."""
    key = new_key()
    result = project.stubborn.apply_async((key, GET), time_limit=5)
    (begun,) = site.begun(key)
    alive = site.ends(f"work:{key}")
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=GET)
    eventually(lambda: not is_alive(begun["pid"]), within=GET)  # it is told first, and then done
    site.ends_in_one_ttl(f"work:{key}", alive)
    with redlock(f"work:{key}", wait=GET):
        assert not is_alive(begun["pid"])
    assert site.notes("end", key) == []


def late(site: Site) -> tuple[str, str, Any]:
    """A message that is acknowledged when it is done, in a queue of its own: key, queue, result."""
    key, queue = new_key(), new_key()
    return key, queue, project.late.apply_async((key, 10 * GET), queue=queue)


def test_a_redelivered_message_outlives_the_run_that_it_waited_for(site):
    """Redelivered while its first run lives, it waits; the run is killed, it runs."""
    key, queue, result = late(site)
    with site.worker(1, queue, lost_after=project.SOON) as first:
        site.begun(key)
        wait_until_taken_for_lost(site, result.id)
        with site.worker(1, queue, lost_after=project.SOON):
            eventually(lambda: came_back(site, result.id), within=GET, every=0.05)
            assert len(site.notes("begin", key)) == 1
            end(first, signal.SIGKILL)
            assert result.get(timeout=GET) == "done"
    assert [note["id"] for note in site.notes("begin", key)] == [result.id] * 2


# -- a killed child -------------------------------------------------------------------------------


def sent(task: Any) -> tuple[str, str, Any]:
    """A message in a queue of its own, for work that ends when it is told: key, queue, result."""
    key, queue = new_key(), new_key()
    return key, queue, task.apply_async((key,), queue=queue)


def test_late_acknowledgement_alone_loses_the_message_of_a_killed_child(site):
    """With acks_late alone the task fails, its message is gone, and its key is free in one ttl."""
    key, queue, result = sent(project.long)
    with site.worker(1, queue):
        kill_child(site, key)
        site.ends_in_one_ttl(f"work:{key}")
        with redlock(f"work:{key}", wait=GET):
            pass
        with pytest.raises(WorkerLostError):
            result.get(timeout=GET)
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


def test_the_rejected_message_of_a_killed_child_runs_again(site):
    """With task_reject_on_worker_lost it runs when the lock of the dead child is over."""
    key, queue, result = sent(project.rejecting)
    with site.worker(1, queue):
        killed = kill_child(site, key)
        _, second = site.begun(key, times=2)
        assert second["at"] > killed
        assert redlock(f"work:{key}").try_acquire() is None
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 2


# -- completion records ---------------------------------------------------------------------------


def crash(site: Site, when: str) -> list[dict[str, Any]]:
    """Kill a worker at the end of a run, and deliver its message again; return all runs."""
    key, queue, result = sent(project.recorded)
    site.client.set(f"crash:{when}:{key}", 1)
    with site.worker(1, queue, lost_after=project.SOON) as worker:
        site.begun(key)
        site.end_run(key)
        eventually(lambda: worker.poll() is not None, within=GET)
    assert result.get(timeout=GET) == "done"
    wait_until_taken_for_lost(site, result.id)
    with site.worker(1, queue, lost_after=project.SOON):
        site.end_run(key)  # if there is another one
        eventually(lambda: site.notes("redelivered", key), within=GET, every=0.05)
        eventually(partial(site.has_none, queue, result.id), within=GET, every=0.05)
    assert result.state == "SUCCESS"
    return site.notes("begin", key)


def test_a_crash_between_the_record_and_the_acknowledgement(site):
    """The record comes first: the message that is delivered again does not run."""
    assert len(crash(site, "recorded")) == 1


# -- children of a main process that has connections, and a lease ----------------------------------


def test_children_make_connections_of_their_own(site, patient_nodes):
    """They lock for their tasks, and the main process keeps its lease for several ttls."""
    held, key, queue = f"main:{new_key()}", new_key(), new_key()
    with site.worker(queue=queue, TEST_HELD=held) as worker:
        began, first = time.monotonic(), redlock(held).state()
        assert first.holder.endswith(f":{worker.pid}")
        assert len(to_nodes(worker.pid, patient_nodes)) >= 5
        assert len(children(worker.pid)) == CHILDREN
        eventually(lambda: shared(worker.pid, patient_nodes) == 0, what="connections of their own")
        sent = [
            project.patient.apply_async((f"{key}:{number % 3}", 0.1), queue=queue)
            for number in range(16)
        ]
        assert [result.get(timeout=GET) for result in sent] == ["done"] * 16
        eventually(lambda: time.monotonic() > began + 2 * TTL, within=GET)
        last = redlock(held).state()
        assert (last.held, last.since, last.fence) == (True, first.since, first.fence)
        assert shared(worker.pid, patient_nodes) == 0


def test_children_that_know_nothing_of_the_fork_are_noticed(site, patient_nodes):
    """The check can fail: they have the connections of the main process."""
    with site.worker(queue=new_key(), TEST_HELD=f"main:{new_key()}", TEST_NAIVE="1") as worker:
        assert len(children(worker.pid)) == CHILDREN
        assert shared(worker.pid, patient_nodes) >= 5 * CHILDREN
