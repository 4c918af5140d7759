"""``locked_task`` in a real worker of each pool; of one pool, one worker runs all of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest

from django_redlock import redlock
from django_redlock.testing import assert_free
from tests.support.waiting import eventually

from . import marked, project, varied
from .site import (
    GET,
    Site,
    ended_silently,
    intervals,
    new_key,
    overlaps,
    runs,
    unmarked,
    wait_until_taken_for_lost,
)

pytestmark = pytest.mark.slow

GREEN = ("gevent", "eventlet")
POOLS = ("prefork", "threads", *GREEN, "solo")


def often(*names: str) -> list[Any]:
    """All pools: these, and at night the others."""
    return [
        pytest.param(name, marks=() if name in names else pytest.mark.nightly) for name in POOLS
    ]


class Pool(NamedTuple):
    """A worker of one pool.

    Attributes:
        queue: the only one that it takes messages from.
    """

    site: Site
    name: str
    queue: str

    def send(self, task: Any, *args: Any, **options: Any) -> Any:
        """Send a message to this worker."""
        return task.apply_async(args, queue=self.queue, **options)

    def signature(self, task: Any, *args: Any, **options: Any) -> Any:
        """A part of a group, chord or chain, for this worker."""
        return task.si(*args).set(queue=self.queue, **options)


@pytest.fixture(scope="module")
def started(shared: Site) -> Iterator[dict[str, Pool]]:
    """The workers that tests have asked for so far; each goes on until the end."""
    with ExitStack() as stack:

        class Started(dict[str, Pool]):
            def __missing__(self, name: str) -> Pool:
                queue = new_key()
                stack.enter_context(shared.worker(4, queue, pool=name))
                self[name] = Pool(shared, name, queue)
                return self[name]

        yield Started()


@pytest.fixture(params=often("prefork"))
def pool(request: Any, site: Site, started: dict[str, Pool]) -> Pool:
    """The worker of a pool, with lock nodes that are as new."""
    return started[request.param]


def at_once(pool: Pool, task: Any) -> tuple[list[int], int]:
    """Send 8 messages for 2 keys: runs of each, and how many began before one had ended."""
    keys = [new_key() for _ in range(2)]
    sent = [pool.send(task, keys[number // 4], 0.1) for number in range(8)]
    assert [each.get(timeout=GET) for each in sent] == ["done"] * 8
    found = intervals(pool.site, keys)
    return [len(found[key]) for key in keys], sum(map(overlaps, found.values()))


@pytest.mark.parametrize("name", POOLS)
def test_one_of_a_key_at_a_time(site, started, name):
    """All messages run, of each key one at a time."""
    assert at_once(started[name], project.patient) == ([4, 4], 0)


def test_without_the_decorator_two_run_at_once(pool):
    """The check above can fail: without a lock the second one begins while the first one runs."""
    key = new_key()
    sent = [pool.send(project.unlocked_lasting, key) for _ in range(1 + (pool.name != "solo"))]
    pool.site.begun(key, times=len(sent))
    assert pool.site.notes("end", key) == []
    for _ in sent:
        pool.site.end_run(key)
    assert [each.get(timeout=GET) for each in sent] == ["done"] * len(sent)


@pytest.mark.parametrize("name", often("prefork", *GREEN))
def test_a_lock_outlives_its_ttl_while_the_body_runs(site, started, name):
    """It is renewed, also by a greenlet of the body's thread, and no second message is sent."""
    key, pool = new_key(), started[name]
    first = pool.send(marked.once, key)
    pool.site.begun(key)
    ends = pool.site.ends(f"marked:{key}")

    def outlived() -> bool:
        assert redlock(f"marked:{key}").try_acquire() is None
        assert pool.send(marked.once, key).id == first.id
        return bool(pool.site.is_past(ends))

    eventually(outlived, within=GET, every=0.1)
    pool.site.end_run(key)
    assert first.get(timeout=GET) == "done"
    assert runs(pool.site, key) == 1
    unmarked(pool.site, key)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(marked.retrying, id="retry"),
        pytest.param(varied.retried, id="autoretry_for", marks=pytest.mark.nightly),
    ],
)
def test_a_retry_meets_no_lock_of_its_own(pool, task):
    """It runs at its time, no other message is sent until then, and none is counted twice."""
    key = new_key()
    first = pool.send(task, key)
    eventually(lambda: first.state == "RETRY", within=GET, every=0.02)
    assert pool.send(task, key).id == first.id
    assert first.get(timeout=GET) == "done"
    assert [note["retries"] for note in pool.site.notes("begin", key)] == [0, 1]
    unmarked(pool.site, key)


def test_a_task_that_is_replaced_ends_with_the_result_of_the_other(pool):
    """The message that takes its place has the same id and key, and is sent and runs."""
    key = new_key()
    first = pool.send(varied.replaced, key)
    assert first.get(timeout=GET) == "done"
    assert runs(pool.site, key) == 2
    unmarked(pool.site, key)


def test_what_has_finished_does_not_run_again(pool):
    """A message that is in the queue a second time ends without a run."""
    key, queue = new_key(), pool.queue
    hold = new_key()
    result = project.recorded.apply_async((key,), queue=hold)
    (message,) = pool.site.client.lrange(hold, 0, -1)
    pool.site.client.rename(hold, queue)
    pool.site.end_run(key)
    assert result.get(timeout=GET) == "done"
    eventually(partial(pool.site.has_none, queue, result.id), within=GET, every=0.05)
    pool.site.client.lpush(queue, message)
    eventually(lambda: ended_silently(pool.site, result.id), within=GET, every=0.05)
    assert len(pool.site.notes("begin", key)) == 1


@pytest.mark.parametrize("name", often("prefork"))
def test_a_warm_shutdown_lets_the_body_end(site, name):
    """SIGTERM: the body ends, its key is free at once, and its message is gone."""
    key, queue = new_key(), new_key()
    result = varied.asleep.apply_async((key, 1.5), queue=queue)
    with site.worker(2, queue, pool=name) as worker:
        site.begun(key)
        worker.terminate()
        worker.wait(GET)
    assert result.get(timeout=GET) == "done"
    assert_free(f"work:{key}")
    assert (len(site.notes("begin", key)), site.keeps(queue, result.id)) == (1, 0)


# In the other pools Celery itself breaks down at a SIGQUIT, or ends as at a SIGTERM.
COLD = ("prefork", signal.SIGQUIT)
KILLED = [(name, signal.SIGKILL) for name in POOLS]


@pytest.mark.parametrize(
    ("name", "sign"),
    [KILLED[0], *(pytest.param(*each, marks=pytest.mark.nightly) for each in (COLD, *KILLED[1:]))],
)
def test_a_worker_that_ends_at_once_loses_nothing(site, name, sign):
    """SIGKILL, or a cold shutdown: free within one ttl, and the message comes back and runs."""
    key, queue = new_key(), new_key()
    result = varied.asleep.apply_async((key, 10 * GET), queue=queue)
    with site.worker(2, queue, pool=name, lost_after=project.SOON) as worker:
        site.begun(key)
        alive = site.ends(f"work:{key}")
        worker.send_signal(sign)
        worker.wait(GET)
    site.ends_in_one_ttl(f"work:{key}", alive if sign is signal.SIGKILL else None)
    with redlock(f"work:{key}", wait=GET):
        pass
    if not site.client.llen(queue):
        wait_until_taken_for_lost(site, result.id)
    with site.worker(1, queue, lost_after=project.SOON):  # gevent would not look for it
        assert result.get(timeout=GET) == "done"
        eventually(partial(site.has_none, queue, result.id), within=GET, every=0.05)
    assert len(site.notes("begin", key)) == 2
