"""``locked_task`` in a real worker of each pool: times, groups and revoked messages."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from django_redlock import redlock
from tests.celery import marked, project, varied
from tests.celery.site import (
    GET,
    came_back,
    intervals,
    is_skipped,
    new_key,
    overlaps,
    runs,
    unmarked,
)
from tests.celery.test_pools import pool, started
from tests.support.waiting import eventually

__all__ = ["pool", "started"]

pytestmark = pytest.mark.slow


def test_different_keys_run_at_once_where_the_pool_can(pool):
    """A key holds up no other one."""
    keys = [new_key() for _ in range(1 if pool.name == "solo" else 2)]
    sent = [pool.send(project.lasting, key) for key in keys]
    for key in keys:
        pool.site.begun(key)
    pool.site.enough(*keys)
    assert [each.get(timeout=GET) for each in sent] == ["done"] * len(keys)


def test_a_message_waits_for_a_holder_elsewhere(pool):
    """It comes back until the key is free, and counts no retry."""
    key = new_key()
    with redlock(f"work:{key}") as lease:
        result = pool.send(project.patient, key, 0)
        eventually(lambda: came_back(pool.site, result.id), within=GET, every=0.05)
        lease.ensure()
        assert runs(pool.site, key) == 0
    assert result.get(timeout=GET) == "done"
    assert [note["retries"] for note in pool.site.notes("begin", key)] == [0]


def test_groups_chords_and_chains_of_duplicates_finish(pool):
    """Duplicates are successes, and messages that come back stay in their chord."""
    key, other = new_key(), new_key()
    work = pool.signature(project.skipping, key, 0)
    collect = project.collect.s().set(queue=pool.queue)
    with redlock(f"work:{key}"):
        sent = [group([work] * 2)(), chord([work] * 2)(collect), chain(work, collect)()]
        grouped, collected, chained = [each.get(timeout=GET) for each in sent]
    assert all(map(is_skipped, [*grouped, *collected, chained]))
    patient = [pool.signature(project.patient, other, 0.1)] * 2
    assert chord(patient)(collect).get(timeout=GET) == ["done"] * 2


def test_until_started_sends_one_more(pool):
    """While one runs one more is sent, and only one; it runs afterwards."""
    key = new_key()
    first = pool.send(marked.anew, key)
    pool.site.begun(key)
    more = [pool.send(marked.anew, key) for _ in range(3)]
    assert [each.duplicate for each in more] == [False, True, True]
    for _ in range(2):
        pool.site.end_run(key)
    assert [each.get(timeout=GET) for each in (first, *more)] == ["done"] * 4
    assert runs(pool.site, key) == 2
    unmarked(pool.site, key)
    assert overlaps(intervals(pool.site, [key])[key]) == 0


def test_a_message_waits_for_its_time(pool):
    """With a countdown or an ETA it runs once, then, and is the one that counts until then."""
    sent = time.monotonic()
    soon: list[dict[str, Any]] = [
        {"countdown": 1},
        {"eta": datetime.now(UTC) + timedelta(seconds=1)},
    ]
    first = {key: pool.send(marked.quick, key, **soon.pop()) for key in (new_key(), new_key())}
    for key, result in first.items():
        assert pool.send(marked.quick, key).id == result.id
    for key, result in first.items():
        assert result.get(timeout=GET) == "done"
        (begun,) = pool.site.notes("begin", key)
        assert begun["at"] - sent > 0.8
        unmarked(pool.site, key)


def test_what_expires_never_runs(pool):
    """A message that is too late leaves no mark, and the next one is sent."""
    key = new_key()
    first = pool.send(marked.quick, key, countdown=1, expires=0.5)
    with pytest.raises(TaskRevokedError):
        first.get(timeout=GET)
    assert pool.send(marked.quick, key).get(timeout=GET) == "done"
    assert runs(pool.site, key) == 1
    unmarked(pool.site, key)


def test_an_eager_call_inside_the_body_does_not_wait_for_itself(pool):
    """``apply`` under the own key is a duplicate at once, not a deadlock."""
    result = pool.send(varied.nested, new_key())
    assert is_skipped(result.get(timeout=GET))


def test_a_revoked_message_leaves_no_mark(pool):
    """Revoked before its time: it does not run, and the next message is sent."""
    key = new_key()
    first = pool.send(marked.quick, key, countdown=2)
    first.revoke()
    with pytest.raises(TaskRevokedError):
        first.get(timeout=GET)
    unmarked(pool.site, key)
    assert pool.send(marked.quick, key).get(timeout=GET) == "done"
    assert runs(pool.site, key) == 1


def test_a_time_limit_ends_a_greenlet(site, started):
    """Under gevent the hard limit interrupts the body, whose key is free then."""
    pool, key = started["gevent"], new_key()
    result = pool.send(project.skipping, key, GET, time_limit=1)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=GET)
    with redlock(f"work:{key}", wait=GET):
        pass
    assert pool.site.notes("end", key)
