"""Messages that are not queued twice, in real prefork workers, some of them killed."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from celery import chain, chord, group

from django_redlock.core.quorum import majority_of
from tests.support.waiting import eventually

from . import marked, project
from .site import GET, TTL, Site, end
from .test_workers import (
    intervals,
    is_skipped,
    new_key,
    overlaps,
    wait_until_taken_for_lost,
)

pytestmark = pytest.mark.slow


def marks_of(site: Site, key: str) -> int:
    """On how many nodes a message with this key has a mark."""
    names = [f"redlock:mark:{task.name}:marked:{key}" for task in TASKS]
    return sum(client.exists(*names) > 0 for client in site.nodes)


def unmarked(site: Site, key: str) -> None:
    """Wait until no node has a mark: who takes it away waits for a majority of them."""
    eventually(lambda: marks_of(site, key) == 0, within=GET, what=f"no mark of {key}")


def minority_marked(site: Site, key: str) -> None:
    """Wait until no majority has a mark.

    A majority is enough to send: on a busy machine the last node may get a mark when the worker has
    removed the others. It keeps no message from being sent, for it takes a majority to do that.
    """
    eventually(lambda: marks_of(site, key) < majority_of(len(site.nodes)), within=GET)


TASKS = (
    marked.once,
    marked.anew,
    marked.soon,
    marked.quick,
    marked.late,
    marked.retrying,
    marked.failing,
)


def runs(site: Site, key: str) -> int:
    """How often a body has begun."""
    return len(site.notes("begin", key))


def test_one_of_twenty_messages_is_sent_and_runs(site):
    """The others are told its result."""
    key = new_key()
    results = [marked.once.delay(key) for _ in range(20)]
    assert [each.duplicate for each in results] == [False] + [True] * 19
    assert len({each.id for each in results}) == 1
    site.begun(key)
    assert marked.once.delay(key).duplicate is True  # it runs: the lock is the mark
    site.end_run(key)
    assert [each.get(timeout=GET) for each in results] == ["done"] * 20
    assert runs(site, key) == 1
    unmarked(site, key)
    assert marked.once.delay(key).duplicate is False
    site.end_run(key)


def test_a_queue_longer_than_the_ttl_of_the_lock(site):
    """A message with a countdown, and one that no worker takes, keep others out all the time."""
    key, other, queue = new_key(), new_key(), new_key()
    waiting = marked.quick.apply_async((key,), countdown=TTL + 2)
    stuck = marked.quick.apply_async((other,), queue=queue)
    began = time.monotonic()
    while time.monotonic() - began < TTL + 1:
        assert marked.quick.delay(key).id == waiting.id
        assert marked.quick.delay(other).id == stuck.id
        time.sleep(0.1)
    assert waiting.get(timeout=GET) == "done"
    with site.worker(1, queue):
        assert stuck.get(timeout=GET) == "done"
    assert (runs(site, key), runs(site, other)) == (1, 1)


@pytest.mark.load  # the second message is sent before the ttl is over
def test_a_killed_run_that_was_acknowledged_blocks_for_one_ttl(site):
    """Its mark went when it began, so the next message is sent when the lock has expired."""
    key = new_key()
    queue = new_key()
    first = marked.once.apply_async((key,), queue=queue)
    with site.worker(1, queue) as worker:
        site.begun(key)
        end(worker, signal.SIGKILL)
    again = marked.once.apply_async((key,), queue=queue)
    assert again.id == first.id  # the lock is there for a while
    site.ends_in_one_ttl(f"marked:{key}")
    again = sent(marked.once, key, queue)
    assert again
    with site.worker(1, queue):
        site.begun(key, times=2)
        site.end_run(key)
        assert again.get(timeout=GET) == "done"


def sent(task: Any, key: str, queue: str) -> Any:
    """The result of a message, if it was no duplicate."""
    result = task.apply_async((key,), queue=queue)
    return None if result.duplicate else result


def test_a_redelivered_message_runs_without_its_mark(site):
    """Killed in the middle, with acks_late: the mark is gone, and stops nothing."""
    key, queue = new_key(), new_key()
    result = marked.late.apply_async((key,), queue=queue)
    with site.worker(1, queue, lost_after=project.SOON) as worker:
        site.begun(key)
        end(worker, signal.SIGKILL)
    wait_until_taken_for_lost(site, result.id)
    with site.worker(1, queue, lost_after=project.SOON):
        site.begun(key, times=2)
        assert marked.late.apply_async((key,), queue=queue).id == result.id
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
    unmarked(site, key)


def test_terminating_frees_nothing_while_the_child_runs(site):
    """A child that does not hear the signal holds the key, and no second message is sent."""
    key, queue = new_key(), new_key()
    result = marked.stubborn.apply_async((key,), queue=queue)
    with site.worker(1, queue) as worker:
        (begun,) = site.begun(key)
        result.revoke(terminate=True)
        eventually(lambda: result.state == "REVOKED", within=GET)
        time.sleep(TTL + 0.5)
        assert marked.stubborn.apply_async((key,), queue=queue).id == result.id
        assert begun["pid"] != worker.pid
        end(worker, signal.SIGKILL)
    eventually(lambda: sent(marked.stubborn, key, queue), within=GET, every=0.1)
    site.client.delete(queue)


def test_groups_chords_and_chains_with_duplicates_finish(site):
    """Their parts are always sent; each ends as a success."""
    key = new_key()
    first = marked.once.delay(key)
    site.begun(key)
    all_of_one = [marked.once.s(key) for _ in range(3)]
    grouped = group(all_of_one)().get(timeout=GET)
    collected = chord(all_of_one)(project.collect.s()).get(timeout=GET)
    chained = chain(marked.once.si(key), project.collect.s())().get(timeout=GET)
    last = chain(project.collect.s([]), marked.once.si(key))().get(timeout=GET)
    assert all(map(is_skipped, [*grouped, *collected, chained, last]))
    assert (len(grouped), len(collected)) == (3, 3)
    site.end_run(key)
    assert first.get(timeout=GET) == "done"
    assert runs(site, key) == 1


def test_many_messages_run_after_the_last_was_asked_for(site):
    """300 messages for 5 keys: after the last of each key was asked for, a run has begun.

    With until_started that is what it is for: whatever changed before ``delay`` is seen by a run.
    """
    keys = [new_key() for _ in range(5)]
    asked: dict[str, float] = {}
    results = []
    for number in range(300):
        key = keys[number % 5]
        asked[key] = time.monotonic()
        results.append(marked.anew.delay(key))
        site.end_run(key)
    sent_ = [each for each in results if not each.duplicate]
    assert {each.id for each in results} == {each.id for each in sent_}
    assert [each.get(timeout=2 * GET) for each in sent_] == ["done"] * len(sent_)
    for key in keys:
        begun = [note["at"] for note in site.notes("begin", key)]
        assert max(begun) > asked[key]
        assert overlaps(intervals(site, [key])[key]) == 0
        minority_marked(site, key)
