"""``locked_task`` in real prefork workers, with a Redis broker, killed and limited."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import pytest
from celery import chord
from celery.exceptions import ChordError, SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError

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
    ended_silently,
    intervals,
    is_alive,
    kill_child,
    new_key,
    overlaps,
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


@pytest.mark.nightly
def test_a_limit_is_used_and_others_do_not_wait(site):
    """Forty runs of 3 s, two at a time, by four children, beside others that are short.

    They take 75 s at most, where 60 s are ideal, and ten deliveries each; 19 of 20 of the others
    begin within a second.
    """
    key, queue = new_key(), new_key()
    asked: dict[str, float] = {}
    with site.worker(4, queue):
        results = [project.steady.apply_async((key, 3.0), queue=queue) for _ in range(40)]
        while len(asked) < 120:
            other = new_key()
            asked[other] = time.monotonic()
            project.unlocked.apply_async((other, 0.1), queue=queue)
            time.sleep(0.5)
        assert [each.get(timeout=5 * GET) for each in results] == ["done"] * 40
        late = sorted(site.begun(other)[0]["at"] - at for other, at in asked.items())
    runs = intervals(site, [key])[key]
    took = runs[-1][1] - runs[0][0]
    deliveries = 1 + sum(came_back(site, each.id) for each in results) / len(results)
    print(f"\n{took:.1f} s, {deliveries:.1f} deliveries each, others {late[114]:.2f} s")
    assert took <= 1.25 * 60
    assert deliveries <= 10
    assert late[114] <= 1


def test_a_second_copy_of_a_message_waits_for_the_first(site):
    """Of two copies with one task id one runs, the other after it; none is lost."""
    key, task_id = new_key(), new_key()
    first = project.lasting.apply_async((key,), task_id=task_id)
    site.begun(key)
    project.lasting.apply_async((key,), task_id=task_id)
    eventually(lambda: came_back(site, task_id), within=GET, every=0.05)
    assert len(site.notes("begin", key)) == 1
    site.enough(key)
    begun = site.begun(key, times=2)
    assert {note["id"] for note in begun} == {task_id}
    eventually(lambda: len(site.notes("end", key)) == 2, within=GET)
    assert overlaps(intervals(site, [key])[key]) == 0
    assert first.get(timeout=GET) == "done"


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


@pytest.mark.nightly
def test_copies_of_what_has_finished_do_not_run(site):
    """SUCCESS or FAILURE, with or without STARTED, alone or in a chord: the first result stays.

    The copies come while the runs live, and wait; when these have finished, they end.
    """
    queue, singles, chords = new_key(), {}, {}
    for which, task in project.RECORDED.items():
        key = new_key()
        singles[which] = key, task.apply_async((key,), queue=queue)
        key = new_key()
        header = [task.s(key).set(queue=queue), project.unlocked.s(new_key(), 0)]
        chords[which] = key, chord(header)(project.collect.s())
    ids = [result.id for _, result in singles.values()]
    ids += [result.parent.results[0].id for _, result in chords.values()]
    keys = [key for key, _ in (*singles.values(), *chords.values())]
    with site.worker(len(keys), queue, lost_after=project.SOON):
        for key in keys:
            site.begun(key)
        for task_id in ids:
            wait_until_taken_for_lost(site, task_id)
        with site.worker(len(keys), queue, lost_after=project.SOON):
            for task_id in ids:
                eventually(partial(ended_silently, site, task_id), within=GET, every=0.1)
            states = {which: result.state for which, (_, result) in singles.items()}
            assert states == {
                (fails, tracked): "STARTED" if tracked else "PENDING" for fails, tracked in states
            }
            for key in keys:
                site.end_run(key)
            check_first_results(singles, chords)
            for task_id in ids:
                eventually(partial(site.has_none, queue, task_id), within=GET, every=0.1)
    check_first_results(singles, chords)
    assert [len(site.notes("begin", key)) for key in keys] == [1] * len(keys)


def check_first_results(singles: dict[Any, Any], chords: dict[Any, Any]) -> None:
    """See that all results are those of the first runs."""
    for (fails, _), (key, result) in singles.items():
        if fails:
            with pytest.raises(ValueError, match=key):
                result.get(timeout=GET)
        else:
            assert result.get(timeout=GET) == "done"
        assert result.state == ("FAILURE" if fails else "SUCCESS")
    for (fails, _), (_, result) in chords.items():
        if fails:
            with pytest.raises((ChordError, ValueError)):
                result.get(timeout=GET)
        else:
            assert result.get(timeout=GET) == ["done", "done"]


@pytest.mark.nightly
def test_the_message_of_a_killed_child_runs_though_its_copy_has_waited(site):
    """The first run lives, and its copy waits; it is killed, and the copy runs."""
    with outlast(site, project.recorded) as (key, queue, result):
        (begun,) = site.notes("begin", key)
        eventually(lambda: ended_silently(site, result.id), within=GET, every=0.05)
        os.kill(begun["pid"], signal.SIGKILL)
        site.begun(key, times=2)
        site.end_run(key)
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
        assert len(site.notes("begin", key)) == 2


@pytest.mark.nightly
def test_a_record_outlives_nodes_that_restart_empty(site, redlock_embedded):
    """The copy comes when two nodes have lost the record, and one of the others tells of it."""
    with outlast(site, project.recorded) as (key, queue, result):
        eventually(lambda: ended_silently(site, result.id), within=GET, every=0.05)
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
        lose_records(redlock_embedded, but=1)
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


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


@pytest.mark.nightly
def test_a_crash_between_the_work_and_the_record(site):
    """No order of the two covers this: the message runs again."""
    assert len(crash(site, "stored")) == 2


def lose_records(nodes: EmbeddedNodes, *, but: int) -> None:
    """Delete the one record on the nodes, but so many of them, when it is written on all."""
    with ExitStack() as stack:
        clients: list[Any] = [
            stack.enter_context(closing(node.client(decode_responses=True))) for node in nodes
        ]
        kept = list(clients[0].scan_iter("redlock:lock:run:*"))
        assert len(kept) == 1
        eventually(
            lambda: all(str(client.get(*kept)).startswith("done::") for client in clients),
            within=GET,
            every=0.02,
        )
        for client in clients[but:]:
            client.delete(*kept)


@contextmanager
def outlast(site: Site, task: Any, **env: str) -> Iterator[tuple[str, str, Any]]:
    """Work that runs when a second worker has delivered its message again: key, queue, result.

    A worker looks for lost messages when it starts, and afterwards every hundred seconds.
    """
    key, queue, result = sent(task)
    with site.worker(1, queue, lost_after=project.SOON, **env):
        site.begun(key)
        wait_until_taken_for_lost(site, result.id)
        with site.worker(1, queue, lost_after=project.SOON, **env):
            yield key, queue, result


def wait_until_it_came_back(site: Site, task_id: str, *, more_than: int) -> None:
    """Return when a worker has sent a message again for later, more often than before."""
    eventually(lambda: came_back(site, task_id) > more_than, within=GET, every=0.05)


@pytest.mark.nightly
def test_a_task_longer_than_the_visibility_timeout_runs_again_and_again(site):
    """Each run is delivered again, and the copy runs after it, never beside it."""
    with outlast(site, project.long) as (key, queue, result), ExitStack() as workers:
        for runs in (1, 2, 3):
            before = came_back(site, result.id)
            if runs > 1:
                wait_until_taken_for_lost(site, result.id)
                workers.enter_context(site.worker(1, queue, lost_after=project.SOON))
            wait_until_it_came_back(site, result.id, more_than=before)
            assert len(site.notes("begin", key)) == runs
            site.end_run(key)
            site.begun(key, times=runs + 1)
        site.end_run(key)
        eventually(lambda: len(site.notes("end", key)) == 4, within=GET)
        assert overlaps(intervals(site, [key])[key]) == 0
        assert {note["id"] for note in site.notes("begin", key)} == {result.id}


@pytest.mark.nightly
def test_a_copy_is_dropped_where_celery_drops_copies_of_a_success(site):
    """With worker_deduplicate_successful_tasks the copy that waited for a success does not run."""
    with outlast(site, project.long, TEST_DROP_COPIES="1") as (key, queue, result):
        eventually(lambda: came_back(site, result.id), within=GET, every=0.05)
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


@pytest.mark.nightly
def test_a_longer_visibility_timeout_delivers_once(site):
    """Where the broker waits for longer than the run takes, the message is not delivered again."""
    key, queue, result = sent(project.long)
    with site.worker(1, queue):
        site.begun(key)
        with site.worker(1, queue):
            other = project.skipping.apply_async((new_key(), 0), queue=queue)
            assert other.get(timeout=GET) == "done"  # so the second worker has looked
            assert came_back(site, result.id) == 0
            site.end_run(key)
            assert result.get(timeout=GET) == "done"
            eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


@pytest.mark.nightly
def test_a_time_limit_below_the_visibility_timeout_delivers_once(site):
    """A hard limit ends the run before the broker takes it for lost, and its message is gone."""
    key, queue, result = sent(project.limited)
    with site.worker(1, queue, lost_after=project.SOON):
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=GET)
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


@pytest.mark.nightly
def test_max_hold_lets_the_copy_run_beside_the_first(site):
    """A lock that ends before its run keeps the copy out no longer."""
    with outlast(site, project.let_go) as (key, _, _):
        site.begun(key, times=2)
        assert site.notes("end", key) == []
        site.end_run(key)
        site.end_run(key)


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
