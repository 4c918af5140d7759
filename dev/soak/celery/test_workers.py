"""``locked_task`` in real prefork workers: copies of messages, and visibility timeouts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import pytest
from celery import chord
from celery.exceptions import ChordError, TimeLimitExceeded

from django_redlock.testing import EmbeddedNodes
from tests.celery import project
from tests.celery.site import (
    GET,
    Site,
    came_back,
    ended_silently,
    intervals,
    new_key,
    overlaps,
    wait_until_taken_for_lost,
)
from tests.celery.test_workers import crash, sent
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


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


def test_a_record_outlives_nodes_that_restart_empty(site, redlock_embedded):
    """The copy comes when two nodes have lost the record, and one of the others tells of it."""
    with outlast(site, project.recorded) as (key, queue, result):
        eventually(lambda: ended_silently(site, result.id), within=GET, every=0.05)
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
        lose_records(redlock_embedded, but=1)
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


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


def test_a_copy_is_dropped_where_celery_drops_copies_of_a_success(site):
    """With worker_deduplicate_successful_tasks the copy that waited for a success does not run."""
    with outlast(site, project.long, TEST_DROP_COPIES="1") as (key, queue, result):
        eventually(lambda: came_back(site, result.id), within=GET, every=0.05)
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


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


def test_a_time_limit_below_the_visibility_timeout_delivers_once(site):
    """A hard limit ends the run before the broker takes it for lost, and its message is gone."""
    key, queue, result = sent(project.limited)
    with site.worker(1, queue, lost_after=project.SOON):
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=GET)
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


def test_max_hold_lets_the_copy_run_beside_the_first(site):
    """A lock that ends before its run keeps the copy out no longer."""
    with outlast(site, project.let_go) as (key, _, _):
        site.begun(key, times=2)
        assert site.notes("end", key) == []
        site.end_run(key)
        site.end_run(key)
