"""Messages that are not queued twice, sent oddly, or not at all, and real workers."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import WorkerLostError
from django.db import transaction
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from django_redlock import redlock
from django_redlock.testing import assert_free
from tests.support.waiting import eventually

from . import marked, project, varied
from .site import (
    GET,
    ROUNDING,
    TTL,
    Site,
    end,
    if_sent,
    intervals,
    is_skipped,
    marks_of,
    new_key,
    overlaps,
    runs,
    unmarked,
)

pytestmark = pytest.mark.slow


# -- what is not sent twice ----------------------------------------------------------------------


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
    waiting = marked.quick.apply_async((key,), countdown=1000)
    stuck = marked.quick.apply_async((other,), queue=queue)
    eventually(lambda: site.is_taken(waiting.id), within=GET)
    began = time.monotonic()

    def kept_out() -> bool:
        assert marked.quick.delay(key).id == waiting.id
        assert marked.quick.delay(other).id == stuck.id
        return time.monotonic() > began + TTL + 1

    eventually(kept_out, within=GET, every=0.1)
    marked.quick.unmark((key,))
    with site.worker(1, queue):
        assert stuck.get(timeout=GET) == "done"
    assert (runs(site, key), runs(site, other)) == (0, 1)


def test_a_killed_run_that_was_acknowledged_blocks_for_one_ttl(site):
    """Its mark went when it began, so the next message is sent when the lock has expired."""
    key, queue = new_key(), new_key()
    first = marked.once.apply_async((key,), queue=queue)
    with site.worker(1, queue, TEST_LOCKS=site.long_locks()) as worker:
        site.begun(key)
        unmarked(site, key)  # the run removes its mark beside the body: the kill may come first
        end(worker, signal.SIGKILL)
    again = marked.once.apply_async((key,), queue=queue)
    assert again.id == first.id  # the lock is there for a while
    site.let_time_pass(f"marked:{key}")
    again = if_sent(marked.once, key, queue)
    assert again
    with site.worker(1, queue):
        site.begun(key, times=2)
        site.end_run(key)
        assert again.get(timeout=GET) == "done"


def nonces(site: Site, key: str) -> set[bytes]:
    """The nonces of the marks of messages with this key."""
    name = f"redlock:mark:{marked.rejecting.name}:marked:{key}"
    found = [client.get(name) for client in site.nodes]
    return {value.partition(b":")[0] for value in found if value}


def test_a_child_killed_before_it_puts_a_message_off_leaves_no_mark(site):
    """It has marked the message that it was to send anew; the broker delivers the old one again.

    That one has another nonce in its header. It must remove the mark of the message that was never
    sent, for else nothing runs for this key until ``queue_ttl`` is over.
    """
    key, queue = new_key(), new_key()
    with redlock(f"marked:{key}"):
        first = marked.rejecting.apply_async((key,), queue=queue)
        (nonce,) = nonces(site, key)
        with site.worker(1, queue, TEST_DIES_BEFORE_SENDING="1"):  # and is killed
            eventually(lambda: nonces(site, key) not in ({nonce}, set()), within=GET)
    with site.worker(1, queue):
        assert first.get(timeout=GET) == "done"
        unmarked(site, key)
        assert if_sent(marked.rejecting, key, queue).get(timeout=GET) == "done"


def test_the_mark_of_a_killed_child_is_removed_when_its_message_has_failed(site):
    """The main process knows that the child is lost, and that no other run will come."""
    key, queue = new_key(), new_key()
    first = marked.once.apply_async((key,), queue=queue)
    with site.worker(1, queue, TEST_DIES_AT_THE_START="1"):
        with pytest.raises(WorkerLostError):
            first.get(timeout=GET)
        unmarked(site, key)
    assert marked.once.apply_async((key,), queue=queue).duplicate is False


def is_renewed(site: Site, key: str, last: dict[int, float]) -> bool:
    """Whether the lock ends later than it did, on each node."""
    ends = site.ends(f"marked:{key}")
    return all(ends[number] > last[number] + ROUNDING for number in last)


def test_terminating_frees_nothing_while_the_child_runs(site):
    """A child that does not hear the signal holds the key, and no second message is sent."""
    key, queue = new_key(), new_key()
    result = marked.stubborn.apply_async((key,), queue=queue)
    with site.worker(1, queue, TEST_LOCKS=site.long_locks()) as worker:
        (begun,) = site.begun(key)
        result.revoke(terminate=True)
        eventually(lambda: result.state == "REVOKED", within=GET)
        last = site.ends(f"marked:{key}")
        eventually(lambda: is_renewed(site, key, last), within=GET, every=0.1)
        assert marked.stubborn.apply_async((key,), queue=queue).id == result.id
        assert begun["pid"] != worker.pid
        end(worker, signal.SIGKILL)
    site.let_time_pass(f"marked:{key}")
    assert if_sent(marked.stubborn, key, queue)
    site.client.delete(queue)
    marked.stubborn.unmark((key,))


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


def test_debounced_saves_are_one_run_and_a_save_during_it_is_another(site):
    """A burst is one message, whose run begins after the last of it; later saves are not lost."""
    key = new_key()

    def save() -> Any:
        return marked.anew.apply_async((key,), countdown=1)

    with redlock(f"marked:{key}"):  # however slow this machine is, the burst is over before the run
        burst = [save() for _ in range(5)]
        assert not site.notes("begin", key)
    site.begun(key)
    during = [save() for _ in range(3)]
    assert len({each.id for each in burst}) == 1
    assert len({each.id for each in during} - {burst[0].id}) == 1
    for result in (burst[0], during[0]):
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
    assert len(site.notes("begin", key)) == 2
    assert overlaps(intervals(site, [key])[key]) == 0


# -- what is sent oddly, or not at all ------------------------------------------------------------


def test_messages_of_a_transaction_are_sent_after_the_commit(site, transactional):
    """After a rollback there is neither mark nor message; after a COMMIT one is sent, and runs."""
    key, queue = new_key(), new_key()
    for committed in (False, True):
        with transaction.atomic():
            first = marked.once.apply_async((key,), queue=queue)
            marked.once.apply_async((key,), queue=queue)
            marked.once.apply_async_on_commit((key,), queue=queue)
            assert (first.duplicate, marks_of(site, key), site.client.llen(queue)) == (None, 0, 0)
            transaction.set_rollback(not committed)
        assert site.client.llen(queue) == committed
        if committed:
            eventually(lambda: marks_of(site, key) == 5, within=GET)  # the last node, too
        assert committed or marks_of(site, key) == 0
    with site.worker(1, queue):
        site.end_run(key)
        assert first.get(timeout=GET) == "done"
        eventually(lambda: site.has_none(queue, first.id), within=GET)
    assert runs(site, key) == 1
    unmarked(site, key)


def nowhere() -> Any:
    """A connection to a broker that is down, which tries once."""
    once = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    return closing(Connection("redis://127.0.0.1:1/0", transport_options=once))


def test_a_broker_that_is_down_leaves_no_mark(site):
    """The error of the broker is raised, and the next message is sent and runs."""
    key = new_key()
    with nowhere() as broker:
        for _ in range(2):
            with pytest.raises(OperationalError):
                marked.quick.apply_async((key,), connection=broker, retry=False)
            unmarked(site, key)
    assert marked.quick.delay(key).get(timeout=GET) == "done"
    assert runs(site, key) == 1


def test_a_retry_leaves_the_mark_of_another_message(site):
    """Its own mark is gone, and a later message has one: the retry removes only its own."""
    key, idle = new_key(), new_key()
    first = marked.retrying.delay(key)
    eventually(lambda: first.state == "RETRY", within=GET, every=0.02)
    marked.retrying.unmark((key,))
    second = marked.retrying.apply_async((key,), queue=idle)
    assert second.duplicate is False
    assert first.get(timeout=GET) == "done"
    eventually(lambda: marks_of(site, key) == 5, within=GET)  # the last node, too
    assert marked.retrying.delay(key).id == second.id
    marked.retrying.unmark((key,))
    site.client.delete(idle)


def test_a_run_that_lost_its_lock_leaves_that_of_the_next_holder(site):
    """Its end releases nothing that is not its own."""
    key = new_key()
    result = project.let_go.delay(key)
    site.begun(key)
    with redlock(f"work:{key}", wait=GET) as lease:
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
        lease.ensure()
        lease.extend()
        assert redlock(f"work:{key}").try_acquire() is None


@contextmanager
def commands(site: Site) -> Iterator[list[list[str]]]:
    """What each node is asked within the block about marks of the task ``once``.

    Not what it is told: a node that answers late is told to undo, and nobody waits for that.
    """
    told: list[list[str]] = []
    with ExitStack() as stack:
        watched = [stack.enter_context(node.monitor()) for node in site.nodes]
        yield told
        for node, monitor in zip(site.nodes, watched, strict=True):
            sentinel = new_key()
            node.echo(sentinel)
            found = []
            while sentinel not in (command := monitor.next_command())["command"]:
                asks = f" {marked.once.name} " in command["command"]  # an argument of that script
                if asks and command["client_type"] != "lua":
                    found.append(command["command"])
            told.append(found)


def test_a_duplicate_is_known_in_one_round_trip(site):
    """While a run holds the key, ``delay`` asks each node once, and waits for nothing."""
    key = new_key()
    first = marked.once.delay(key)
    site.begun(key)
    unmarked(site, key)
    with commands(site) as told:
        assert marked.once.delay(key).id == first.id
    assert [len(found) for found in told] == [1] * len(site.nodes)
    site.end_run(key)
    assert first.get(timeout=GET) == "done"


def test_eager_tasks_do_not_wait_for_themselves(site):
    """With task_always_eager: alone, nested, in groups, chains and chords, with a retry."""
    keys = [new_key() for _ in range(5)]
    with eager():
        assert marked.quick.delay(keys[0]).get() == "done"
        assert project.patient.delay(keys[0], 0).get() == "done"
        assert is_skipped(varied.nested.delay(keys[1]).get())
        work = project.skipping.si(keys[2], 0)
        assert group([work] * 2)().get() == ["done"] * 2
        assert chain(work, project.collect.s())().get() == "done"
        assert chord([work] * 2)(project.collect.s()).get() == ["done"] * 2
        for task, key in ((marked.retrying, keys[3]), (varied.retried, keys[4])):
            assert task.delay(key).get() == "done"
            assert [note["retries"] for note in site.notes("begin", key)] == [0, 1]
    for key in keys:
        unmarked(site, key)
        assert_free(f"work:{key}", f"marked:{key}")


@contextmanager
def eager() -> Iterator[None]:
    """Run tasks where they are called."""
    project.app.conf.task_always_eager = True
    try:
        yield
    finally:
        project.app.conf.task_always_eager = False
