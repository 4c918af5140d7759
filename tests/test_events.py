"""The core's hooks and its log: what is told, to whom, and that it costs nothing otherwise."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, conf, events, redlock
from django_redlock.events import Event, EventKind, NodeTiming, VoteCount

from .support.listening import memory, nobody, told
from .support.loops import owing
from .support.waiting import eventually

__all__ = ["memory", "nobody", "told"]

SHORT = 1.0  # seconds: a ttl that a test outlives, and no attempt
HOSTILE = "a%sb %(x)s \u2028 \u2029 \u202e '\"\\"


# -- what is told ---------------------------------------------------------------------------------


def test_a_block_is_acquired_extended_and_released(told):
    """Each event says where, what, which fence, for how long, and how the nodes voted."""
    began = time.monotonic()
    with redlock("name") as lease:
        lease.extend()
    whole = time.monotonic() - began
    assert told.kinds() == [EventKind.ACQUIRED, EventKind.EXTENDED, EventKind.RELEASED]
    for event in told:
        assert (event.alias, event.name, event.fence) == ("default", "name", lease.fence)
        assert event.lease is lease
        assert event.error is None
        assert event.votes == VoteCount(5, 0, 0)
    acquiring, held, held_at_last = (event.seconds for event in told)
    assert 0 < acquiring <= whole
    assert 0 < held < held_at_last <= whole


def test_a_refusal_is_told_with_its_error_and_the_wait(told):
    """A refusal counts the seconds from the first attempt to giving up, once."""
    began = time.monotonic()
    with redlock("name"), pytest.raises(LockTaken) as caught:
        redlock("name").acquire(wait=0.1)
    whole = time.monotonic() - began
    refused = told[1]
    assert told.kinds() == [EventKind.ACQUIRED, EventKind.REFUSED, EventKind.RELEASED]
    assert refused.error is caught.value
    assert (refused.fence, refused.lease, refused.votes) == (None, None, VoteCount(0, 5, 0))
    assert 0.1 <= refused.seconds <= whole


def test_work_that_is_done_is_no_refusal(told, caplog):
    """Neither to a listener nor in the log, which says it at DEBUG: nothing has to be done."""
    for fresh in (True, False):
        with (
            caplog.at_level(logging.DEBUG, "django_redlock"),
            redlock("digest").once(keep=60) as run,
        ):
            assert run.fresh is fresh
    assert told.kinds() == [EventKind.ACQUIRED, EventKind.RELEASED, EventKind.DONE]
    record: Any = caplog.records[-1]
    assert (record.levelname, record.redlock_event) == ("DEBUG", "done")
    assert record.redlock_code == "recorded"
    assert record.getMessage().startswith("lock done: alias='default' name='digest' ")
    assert "refused" not in caplog.text


def test_a_lock_without_once_is_refused_by_a_record_and_told_why_once(told, caplog):
    """To such a caller the name is taken; the nodes would repeat the reason."""
    with redlock("digest").once(keep=60) as run:
        assert run.fresh
    with pytest.raises(LockTaken), caplog.at_level(logging.INFO, "django_redlock"):
        redlock("digest").acquire()
    assert told.kinds()[-1] is EventKind.REFUSED
    assert caplog.text.count("its work is recorded as done") == 1


def test_unavailable_is_not_refused(told, memory):
    """What nobody knows is told as another kind than what somebody holds."""
    memory.down = {0, 1, 2}
    with pytest.raises(NodesUnavailable) as caught:
        redlock("name").acquire()
    assert told.kinds() == [EventKind.UNAVAILABLE]
    assert told[0].error is caught.value
    assert told[0].votes == VoteCount(2, 0, 3)


@pytest.mark.slow
def test_a_loss_at_the_deadline_is_told_by_itself(told):
    """Without renewal and on_lost, a listener is told at the deadline all the same."""
    lease = redlock("name", ttl=SHORT, renew=False).acquire()
    eventually(lambda: EventKind.LOST in told.kinds())
    lost = told[-1]
    assert lost.lease is lease
    assert isinstance(lost.error, LeaseLost)
    assert "time" in lost.error.reason
    assert lost.seconds == pytest.approx(SHORT * 0.99 - 0.002)
    lease.release()
    assert told.kinds() == [EventKind.ACQUIRED, EventKind.LOST]


def test_a_release_that_finds_nothing_is_a_loss(told, memory):
    """A lease whose keys were gone ends as lost, and is not told as released."""
    lease = redlock("name", renew=False).acquire()
    for node in memory.nodes:
        node.keys.clear()
    lease.release()
    lease.release()
    assert told.kinds() == [EventKind.ACQUIRED, EventKind.LOST]
    assert told[-1].error is not None
    assert "majority" in told[-1].error.reason


def test_an_extension_that_finds_nothing_is_a_loss(told, memory):
    """A refused extension is the end of the lease, once."""
    lease = redlock("name", renew=False).acquire()
    for node in memory.nodes:
        node.keys.clear()
    with pytest.raises(LeaseLost):
        lease.extend()
    lease.release()
    assert told.kinds() == [EventKind.ACQUIRED, EventKind.LOST]


def test_giving_away_ends_one_lease_and_adopting_begins_another(told):
    """A lease given away has an end of its own; adopting too late is a refusal."""
    handle = redlock("name").acquire().handle()
    redlock.adopt(handle).release()
    with pytest.raises(LeaseLost):
        redlock.adopt(handle)
    expected = [
        EventKind.ACQUIRED,
        EventKind.GIVEN,
        EventKind.ACQUIRED,
        EventKind.RELEASED,
        EventKind.REFUSED,
    ]
    assert told.kinds() == expected


# -- listeners that fail --------------------------------------------------------------------------


def test_a_listener_that_fails_breaks_no_lock(told, caplog):
    """What a listener raises is logged; the lock is had and released, and others are told."""

    def fail(event: Event) -> None:
        raise KeyError(event.kind)

    events.unsubscribe(told.append)
    events.subscribe(fail)
    events.subscribe(told.append)
    try:
        with redlock("name") as lease:
            lease.ensure()
    finally:
        events.unsubscribe(fail)
    assert told.kinds() == [EventKind.ACQUIRED, EventKind.RELEASED]
    assert caplog.text.count("a listener failed") == 2
    assert redlock("name").try_acquire() is not None


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_listener_leaves_nothing(memory, interruption):
    """Ctrl-C while a listener is told of a grant goes on, and the name is free."""

    def interrupt(event: Event) -> None:
        raise interruption

    events.subscribe(interrupt, [EventKind.ACQUIRED])
    try:
        with pytest.raises(interruption):
            redlock("name").acquire()
    finally:
        events.unsubscribe(interrupt)
    assert all(not node.keys for node in memory.nodes)


def test_a_task_cancelled_by_a_listener_leaves_nothing(memory):
    """The same for a cancellation in a task."""

    def cancel(event: Event) -> None:
        raise asyncio.CancelledError

    async def work() -> None:
        await redlock("name").aacquire()

    events.subscribe(cancel, [EventKind.ACQUIRED])
    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(work())
    finally:
        events.unsubscribe(cancel)
    assert all(not node.keys for node in memory.nodes)


# -- what it costs --------------------------------------------------------------------------------


def test_no_event_is_made_for_nobody(nobody, monkeypatch):
    """With nobody listening, no event and no tally is made and nobody is called."""
    here = threading.get_ident()

    def never(*_: object, **__: object) -> None:
        assert threading.get_ident() != here

    for name in ("tell", "tell_of_node", "_log"):
        monkeypatch.setattr(events, name, never)
    monkeypatch.setattr(VoteCount, "of", never)
    with redlock("name") as lease:
        lease.extend()
        assert redlock("name").try_acquire() is None
    redlock.adopt(redlock("name").acquire().handle()).release()


# -- nodes ----------------------------------------------------------------------------------------


@pytest.fixture
def figures(patient_nodes) -> Iterator[list[NodeTiming]]:
    """What a watcher is told of these nodes; they have answered what was asked before."""
    with redlock("warm"):
        pass
    group: Any = conf.backend("default").group
    eventually(lambda: owing(group.nodes) == [0] * 5)
    labels = {node.label for node in group.nodes}
    seen: list[NodeTiming] = []

    def watch(figure: NodeTiming) -> None:
        if figure.node in labels:
            seen.append(figure)

    events.watch_nodes(watch)
    yield seen
    events.unwatch_nodes(watch)


def test_answers_of_nodes_are_timed(figures, patient_nodes):
    """A watcher is told which node answered, and after how many seconds, of each in its turn."""
    labels = {f"{node.host}:{node.port}/0" for node in patient_nodes}

    def answered() -> bool:
        redlock("name").acquire().release()
        return {figure.node for figure in figures if figure.seconds is not None} == labels

    eventually(answered)
    assert {figure.alias for figure in figures} == {"default"}
    for figure in figures:
        assert figure.seconds is not None
        assert figure.seconds > 0
        assert figure.why == ""


def test_answers_of_nodes_are_timed_in_tasks(figures, patient_nodes):
    """A loop reads what arrives, so each answer of each node is timed, late ones, too."""

    async def work() -> None:
        lease = await redlock("name").aacquire()
        await lease.arelease()
        while len(figures) < 2 * len(patient_nodes):  # noqa: ASYNC110 - the deadline is pytest's
            await asyncio.sleep(0.001)

    asyncio.run(work())
    assert len(figures) == 10
    assert all(figure.seconds is not None for figure in figures)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_failures_of_nodes_are_told(figures, patient_nodes, how):
    """Only the node that is dead or hung fails, and its figure says why."""
    getattr(patient_nodes, how)(2)
    label = f"{patient_nodes[2].host}:{patient_nodes[2].port}/0"

    def failed() -> list[NodeTiming]:
        redlock("name").acquire().release()
        return [figure for figure in figures if figure.seconds is None]

    assert {figure.node for figure in eventually(failed, within=60)} == {label}
    assert all(figure.why for figure in failed())


# -- the log --------------------------------------------------------------------------------------


def test_each_event_is_one_record_with_its_facts(caplog):
    """Records carry the event, alias, name, fence, seconds and votes as fields, on one line."""
    caplog.set_level(logging.DEBUG, logger="django_redlock")
    with redlock("name") as lease:
        assert redlock("name").try_acquire() is None
    levels = [(record.levelname, record.redlock_event) for record in caplog.records]
    assert levels == [("DEBUG", "acquired"), ("INFO", "refused"), ("DEBUG", "released")]
    for record in caplog.records:
        assert record.name == "django_redlock"
        assert (record.redlock_alias, record.redlock_name) == ("default", "name")
        assert record.redlock_seconds > 0
    acquired, refused, _ = caplog.records
    assert acquired.redlock_fence == lease.fence
    assert acquired.redlock_votes == {"yes": 5, "no": 0, "unknown": 0}
    assert refused.redlock_fence is None
    assert refused.redlock_votes == {"yes": 0, "no": 5, "unknown": 0}
    assert f"fence={lease.fence}" in acquired.message


def test_by_default_only_trouble_is_logged(caplog, memory):
    """At the level WARNING, refusals and the everyday are silent; losses and dead nodes are not."""
    caplog.set_level(logging.WARNING, logger="django_redlock")
    with redlock("name"):
        assert redlock("name").try_acquire() is None
    assert caplog.records == []
    lease = redlock("name", renew=False).acquire()
    for node in memory.nodes:
        node.keys.clear()
    lease.release()
    memory.down = {0, 1, 2}
    with pytest.raises(NodesUnavailable):
        redlock("name").acquire()
    assert [record.redlock_event for record in caplog.records] == ["lost", "unavailable"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


@pytest.mark.parametrize("name", [HOSTILE, [HOSTILE, "b"]])
def test_a_record_is_one_line_whatever_the_name(caplog, name):
    """Names with percent signs, separators and quotes neither break nor forge a line."""
    caplog.set_level(logging.DEBUG, logger="django_redlock")
    redlock(name).acquire().release()
    assert len([each for each in caplog.records if "looks unfilled" not in each.msg]) == 2
    assert all(len(record.message.splitlines()) == 1 for record in caplog.records)


def test_a_holder_cannot_forge_a_line(caplog, memory):
    """The label of a foreign holder is quoted: its line breaks stay in one line."""
    caplog.set_level(logging.INFO, logger="django_redlock")
    for node in memory.nodes:
        node.keys["redlock:lock:name"] = ("ff:1:evil\nWARNING forged\r\n", None)
    assert redlock("name").try_acquire() is None
    (record,) = caplog.records
    assert "forged" in record.message
    assert len(record.message.splitlines()) == 1


def test_no_record_holds_the_power_to_release(caplog, told, memory):
    """Neither nonce nor handle stands in a record or an event."""
    caplog.set_level(logging.DEBUG, logger="django_redlock")
    lease = redlock("name").acquire()
    nonce = memory.nodes[0].keys["redlock:lock:name"][0].split(":")[0]
    assert redlock("name").try_acquire() is None
    lease.extend()
    handle = lease.handle()
    redlock.adopt(handle).release()
    said = "".join(f"{record.message}{vars(record)}" for record in caplog.records)
    said += "".join(map(repr, told))
    assert len(told) == 6
    assert "name" in said
    assert nonce not in said
    assert handle not in said
