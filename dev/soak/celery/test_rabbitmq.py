"""``locked_task`` with a real RabbitMQ: many messages, and kills at chosen moments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from celery.signals import after_task_publish
from kombu.entity import Exchange, Queue

from django_redlock import redlock
from tests.celery import marked, project, varied
from tests.celery.site import (
    GET,
    Site,
    came_back,
    ended_silently,
    intervals,
    is_skipped,
    kill_child,
    new_key,
    overlaps,
    runs,
    unmarked,
)
from tests.celery.test_rabbitmq import rabbit, server
from tests.support.rabbitmq import why_not
from tests.support.waiting import eventually

__all__ = ["rabbit", "server"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"RabbitMQ cannot be started: {why_not()}"),
]


@contextmanager
def published() -> Iterator[list[str]]:
    """The ids of the messages that this process sends in the block, in order."""
    found: list[str] = []

    def tell(headers: Any, **_: object) -> None:
        found.append(headers["id"])

    after_task_publish.connect(tell)
    try:
        yield found
    finally:
        after_task_publish.disconnect(tell)


def test_of_many_messages_each_key_runs_one_at_a_time(rabbit):
    """Messages that come back wait in RabbitMQ, duplicates are skipped, and none is left."""
    key, other, queue = new_key(), new_key(), new_key()
    with rabbit.worker(4, queue):
        patient = [rabbit.send(project.patient, key, 0.1, queue=queue) for _ in range(8)]
        first = rabbit.send(project.lasting, other, queue=queue)
        rabbit.site.begun(other)
        second = rabbit.send(project.skipping, other, 0, queue=queue)
        assert is_skipped(second.get(timeout=GET))
        rabbit.site.enough(other)
        assert [each.get(timeout=GET) for each in (*patient, first)] == ["done"] * 9
    rabbit.comes_to(0, queue)
    (found,) = intervals(rabbit.site, [key]).values()
    assert (len(found), overlaps(found), runs(rabbit.site, other)) == (8, 0, 1)


def test_no_second_message_is_queued(rabbit):
    """With a mode, one message is in the queue, runs, and keeps out what is not wanted."""
    finished, started, queue = new_key(), new_key(), new_key()
    with published() as sent:
        one = [rabbit.send(marked.once, finished, queue=queue) for _ in range(5)]
        two = [rabbit.send(marked.anew, started, queue=queue) for _ in range(5)]
    assert sent == [one[0].id, two[0].id]
    rabbit.comes_to(2, queue)
    with rabbit.worker(4, queue):
        for key in (finished, started):
            rabbit.site.begun(key)
        one.append(rabbit.send(marked.once, finished, queue=queue))
        two += [rabbit.send(marked.anew, started, queue=queue) for _ in range(2)]
        assert [each.duplicate for each in one] == [False] + [True] * 5
        assert [each.duplicate for each in two] == [False] + [True] * 4 + [False, True]
        for key in (finished, started, started):
            rabbit.site.end_run(key)
        assert {each.get(timeout=GET) for each in one + two} == {"done"}
    for key, count in ((finished, 1), (started, 2)):
        assert runs(rabbit.site, key) == count
        unmarked(rabbit.site, key)
    rabbit.comes_to(0, queue)


def test_the_message_of_a_killed_child_is_delivered_again_and_runs(rabbit):
    """With task_reject_on_worker_lost the worker that goes on gives it back to RabbitMQ."""
    key, queue = new_key(), new_key()
    result = rabbit.send(varied.kept, key, queue=queue)
    with rabbit.worker(1, queue):
        kill_child(rabbit.site, key)
        rabbit.site.begun(key, times=2)
        assert rabbit.redelivered(key) >= 1
        rabbit.site.end_run(key)
        assert result.get(timeout=GET) == "done"
    assert runs(rabbit.site, key) == 2
    rabbit.comes_to(0, queue)


@pytest.mark.parametrize(("when", "count"), [("recorded", 1), ("stored", 2)])
def test_a_worker_is_killed_before_it_acknowledges(rabbit, when, count):
    """After the record the copy does not run. Before it, which no order covers, it does."""
    key, queue, site = new_key(), new_key(), rabbit.site
    site.client.set(f"crash:{when}:{key}", 1)
    result = rabbit.send(project.recorded, key, queue=queue)
    with rabbit.worker(1, queue) as worker:
        site.end_run(key)
        eventually(lambda: worker.poll() is not None, within=GET)
    assert result.get(timeout=GET) == "done"
    # The broker gives it back to the queue when it notices that its worker is gone.
    rabbit.comes_to(1, queue)
    with rabbit.worker(1, queue):
        eventually(lambda: rabbit.redelivered(key), within=GET, every=0.05)
        site.end_run(key)  # if there is another run
        eventually(lambda: len(site.notes("end", key)) == count, within=GET, every=0.05)
        if when == "recorded":
            eventually(lambda: ended_silently(site, result.id), within=GET, every=0.05)
    assert (runs(site, key), result.state) == (count, "SUCCESS")
    rabbit.comes_to(0, queue)


def test_messages_come_back_to_a_quorum_queue(rabbit):
    """RabbitMQ delays them for whole seconds, each time anew, and drops none of them."""
    key, name, site = new_key(), new_key(), rabbit.site
    arguments = {"x-queue-type": "quorum"}
    queue: Any = Queue(name, Exchange(name, "topic"), name, queue_arguments=arguments)
    with rabbit.worker(2, name, TEST_QUORUM=name):
        with redlock(f"work:{key}"):
            patient = rabbit.send(project.patient, key, 0, queue=queue)
            # Up to 4 and 8 s: they pass through delaying queues that they have passed before.
            unreachable = project.app.signature("tests.celery.varied.unreachable")
            others = [rabbit.send(unreachable, key, queue=queue) for _ in range(4)]
            for result, times in ((patient, 3), *((other, 5) for other in others)):
                enough = partial(times_back, site, result.id, times)
                eventually(enough, within=2 * GET, every=0.1)
        assert patient.get(timeout=GET) == "done"


def times_back(site: Site, task_id: str, times: int) -> bool:
    """Whether a worker has sent a message again for later so often."""
    return came_back(site, task_id) >= times
