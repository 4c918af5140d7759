"""Work that is done once: on nodes in memory and real ones, by threads and by asyncio."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import pickle
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_redlock import LeaseLost, LockTaken, backend, conf, current_lease, redlock
from django_redlock.core import completion, hold
from django_redlock.core.commands import Look
from django_redlock.core.protocol import Sleep
from django_redlock.core.reasons import ReasonCode
from django_redlock.events import Event, EventKind, subscribe, unsubscribe
from django_redlock.leases.lease import Lease
from django_redlock.locks import once as once_module
from django_redlock.locks.once import OnceLock, OnceRun
from django_redlock.nodes.memory import MemoryNode
from tests.simulation.mutants import Patch, with_edits
from tests.support.waiting import eventually

from .test_contracts import MAX_TTL, World, is_free, nothing_held, style, world

__all__ = ["nothing_held", "style", "world"]  # fixtures
DAY = timedelta(days=1)


@pytest.fixture
def enter(style: str) -> Callable[..., OnceRun]:
    """What enters a block, calls something in it, and leaves it."""

    def entered(lock: OnceLock, body: Callable[[], object] = bool) -> OnceRun:
        with lock as run:
            if run.fresh:
                body()
            return run

    async def awaited(lock: OnceLock, body: Callable[[], object] = bool) -> OnceRun:
        async with lock as run:
            if run.fresh:
                body()
            return run

    def looped(*args: Any) -> OnceRun:
        return asyncio.run(awaited(*args))

    return looped if style == "asyncio" else entered


def records(world: World, name: str = "name") -> list[str]:
    """The records of a name on the nodes, without when and by whom."""
    return [found.value[:6] for found in world.look(name) if found.value.startswith("once::")]


def test_the_work_is_done_once_and_who_asks_again_is_told_when(world, enter):
    """The first block is fresh, and has the lease; the others have nothing to do."""
    before, done = datetime.now(UTC) - timedelta(milliseconds=1), []
    first = enter(redlock("name").once(keep=DAY), lambda: done.append(current_lease()))
    assert (first.fresh, first.at) == (True, None)
    assert first.lease is not None
    assert done == [first.lease]
    assert first.lease.ended
    eventually(lambda: len(records(world)) == 5)  # far longer than any ttl, on all nodes
    assert all(MAX_TTL * 1000 < found.pttl <= 86_400_000 for found in world.look("name"))
    for _ in range(2):
        again = enter(redlock("name").once(keep=DAY), lambda: done.append(None))
        assert (again.fresh, again.lease) == (False, None)
        assert again.at is not None
        assert before <= again.at <= datetime.now(UTC)
    assert len(done) == 1


def fails(enter: Callable[..., OnceRun]) -> None:
    """A body raises."""
    with pytest.raises(ZeroDivisionError):
        enter(redlock("name").once(keep=60), lambda: 1 / 0)


def test_a_body_that_raised_leaves_no_record(world, enter):
    """The name is free, and the next one does the work."""
    fails(enter)
    is_free(world, "name")
    assert enter(redlock("name").once(keep=60)).fresh


def test_a_lease_that_was_lost_leaves_no_record(world, enter, caplog):
    """Another may be at it: its body counts, and not this one."""

    def lose() -> None:
        lease = current_lease()
        assert lease is not None
        lease.expire()

    assert enter(redlock("name").once(keep=60), lose).fresh
    assert records(world) == []
    assert "has left no record" in caplog.text
    with pytest.raises(LeaseLost):
        enter(redlock("other", on_lost="raise").once(keep=60), lose)
    assert records(world, "other") == []


def test_a_lease_that_was_revoked_leaves_no_record(world, enter):
    """Whoever took it away wants the work to be done again, or not at all."""
    enter(redlock("name").once(keep=60), lambda: on_a_thread(lambda: redlock.revoke("name")))
    assert records(world) == []


def on_a_thread(job: Callable[[], object]) -> None:
    """Do it where no event loop runs."""
    thread = threading.Thread(target=job)
    thread.start()
    thread.join()


def test_a_lease_that_the_body_has_released_leaves_no_record(world, enter, caplog):
    """The name was free meanwhile."""

    def release() -> None:
        lease = current_lease()
        assert lease is not None
        on_a_thread(lease.release)

    enter(redlock("name").once(keep=60), release)
    assert records(world) == []
    assert "may be done again" in caplog.text


def test_a_name_that_is_held_is_refused_as_by_any_lock(world, enter):
    """It is not done yet: whoever asks may wait, or come back."""
    with redlock("name"), pytest.raises(LockTaken) as refused:
        enter(redlock("name").once(keep=60))
    assert refused.value.code == ReasonCode.HELD


def test_a_plain_lock_of_the_name_is_refused_by_the_record(world, enter):
    """With when to come back; give work that is done once a name of its own."""
    enter(redlock("name").once(keep=60))
    for wait in (0, math.inf):
        with pytest.raises(LockTaken) as refused:
            redlock("name").acquire(wait=wait)
        assert refused.value.code == ReasonCode.RECORDED
        assert refused.value.retry_after == pytest.approx(60, abs=30)


def met_after_wipes(world: World, enter: Callable[..., OnceRun]) -> int:
    """How often the work was done, while one node after the other loses its data."""
    done: list[int] = []
    enter(redlock("name").once(keep=DAY), lambda: done.append(1))
    eventually(lambda: len(world.look("name")) == 5)
    lasts = max(found.pttl for found in world.look("name"))  # not all were written at once
    for _ in range(4):
        world.wipe("name", on=4)
        enter(redlock("name").once(keep=DAY), lambda: done.append(1))
        eventually(lambda: len(world.look("name")) == 5)
        assert max(found.pttl for found in world.look("name")) <= lasts
    return len(done)


def test_whoever_meets_a_record_puts_it_back(world, enter):
    """Four of five nodes lose it, again and again: it is not forgotten, and not prolonged."""
    assert met_after_wipes(world, enter) == 1
    values = {found.value for found in world.look("name")}
    assert len(values) == 1  # with the same time, and who did it


def test_a_record_that_nobody_puts_back_is_noticed(world, enter):
    """Broken: callers leave the nodes as they were."""
    forgetful = Patch(completion, "put_back", lambda _: lambda *_, **__: None)
    with with_edits(forgetful):
        enter(redlock("name").once(keep=DAY))
        eventually(lambda: len(world.look("name")) == 5)
        world.wipe("name", on=4)
        assert not enter(redlock("name").once(keep=DAY)).fresh
        assert len(records(world)) == 1


def test_a_record_that_is_prolonged_is_noticed(world, enter):
    """Broken: it is put back for longer than was left of it."""
    prolonged = Patch(completion, "_left", lambda left: lambda vote: 2 * left(vote))
    with with_edits(prolonged), pytest.raises(AssertionError, match="assert 172"):
        met_after_wipes(world, enter)


def test_a_record_before_the_body_is_noticed(world, enter):
    """Broken: the work is recorded at its start. A body that raises is never done."""

    def hasty(begin: Callable[..., OnceRun]) -> Callable[..., OnceRun]:
        @functools.wraps(begin)
        def begun(self: OnceLock, block: Any) -> OnceRun:
            run = begin(self, block)
            if run.lease is not None:
                run.lease.backend.run(self.record(run.lease))
            return run

        return begun

    def of_tasks(begin: Callable[..., Any]) -> Callable[..., Any]:
        async def begun(self: OnceLock, block: Any) -> OnceRun:
            run: OnceRun = await begin(self, block)
            if run.lease is not None:
                await run.lease.backend.arun(self.record(run.lease))
            return run

        return begun

    with with_edits(Patch(OnceLock, "_begin", hasty), Patch(OnceLock, "_abegin", of_tasks)):
        fails(enter)
        assert not enter(redlock("name").once(keep=60)).fresh


def test_when_the_record_is_over_the_work_is_done_again(world, enter):
    """Each record lasts for what its own run says."""
    assert enter(redlock("name").once(keep=timedelta(milliseconds=200))).fresh
    eventually(lambda: world.look("name") == [])
    assert enter(redlock("name").once(keep=DAY)).fresh
    assert not enter(redlock("name").once(keep=0.001)).fresh


def test_all_who_wait_hear_that_the_work_is_done(world, enter, caplog):
    """Nobody waits until its time is over: one wakes the next."""
    caplog.set_level(logging.ERROR)
    found: list[OnceRun] = []
    lock = redlock("name", wait=MAX_TTL * 10)
    threads = [
        threading.Thread(target=lambda: found.append(enter(lock.once(keep=DAY)))) for _ in range(4)
    ]

    def wait_for_all() -> None:
        for each in threads:
            each.start()
        group = conf.backend("default").group
        eventually(lambda: sum(group.waiting().values()) == 4, within=MAX_TTL)

    assert enter(redlock("name").once(keep=DAY), wait_for_all).fresh
    for each in threads:
        each.join(MAX_TTL)
    assert [run.fresh for run in found] == [False] * 4


def unwoken(enter: Callable[..., OnceRun], within: float) -> None:
    """The holder is killed behind the record, and wakes nobody."""
    found: list[OnceRun] = []
    lock = redlock("name", wait=MAX_TTL * 10)
    threads = [
        threading.Thread(target=lambda: found.append(enter(lock.once(keep=0.5 * MAX_TTL))))
        for _ in range(2)
    ]

    def wait_for_both() -> None:
        for each in threads:
            each.start()
        group = conf.backend("default").group
        eventually(lambda: sum(group.waiting().values()) == 2, within=MAX_TTL)

    silent = Patch(hold, "wake_next", lambda _: lambda *_: Sleep(0.0))
    try:
        with with_edits(silent):
            enter(redlock("name").once(keep=DAY), wait_for_both)
            eventually(lambda: len(found) == 2, within=within)
    finally:
        redlock.revoke("name")
        for each in threads:
            each.join(MAX_TTL)
    assert [run.fresh for run in found] == [False] * 2


def test_who_waits_finds_the_record_though_nobody_wakes_it(world, enter):
    """It looks now and then, and a look tells it: else it would wait for as long as the record."""
    unwoken(enter, MAX_TTL)


def test_a_look_that_takes_a_record_for_a_holder_is_noticed(world, enter, request):
    """A broken variant."""
    if request.node.callspec.params["world"] != "memory":
        pytest.skip("the nodes in memory are broken, and no others")

    def blind(look: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def looking(node: MemoryNode, request: Look) -> list[Any]:
            look(node, request)
            return ["LOOKED", node.pttl(request.target.keys[request.which])]

        return looking

    with (
        with_edits(Patch(MemoryNode, "_look", blind)),
        pytest.raises(AssertionError, match="not within"),
    ):
        unwoken(enter, 2.0)


def test_a_decorated_function_runs_once_and_returns_none_then(world, style):
    """For each lock that its arguments make; the result of a run is its caller's."""
    ran: list[int] = []

    def report(day: int) -> int:
        ran.append(day)
        return day

    async def areport(day: int) -> int:
        return report(day)

    call: Callable[[int], Any] = redlock("report:{day}").once(keep=DAY)(report)
    if style == "asyncio":
        acall = redlock("report:{day}").once(keep=DAY)(areport)

        def call(day: int) -> Any:
            return asyncio.run(acall(day))

    assert [call(1), call(1), call(2), call(1)] == [1, None, 2, None]
    assert ran == [1, 2]


def unpack(run: OnceRun) -> object:
    """Look at both."""
    lease, at = run
    return lease or at


def match(run: OnceRun) -> object:
    """Look by a pattern."""
    match run:
        case OnceRun(None, at):
            return at
        case _:
            return None


LOOKS: dict[str, Callable[[OnceRun], object]] = {
    "fresh": lambda run: run.fresh,
    "lease": lambda run: run.lease,
    "at": lambda run: run.at,
    "unpacking": unpack,
    "an index": lambda run: run[0],
    "a pattern": match,
}
NOT_LOOKED: dict[str, Callable[[OnceRun], object]] = {
    "nothing": id,
    "a line of a log": str,
    "a comparison": lambda run: run == run,  # noqa: PLR0124 - how a tuple compares
}


@pytest.fixture
def enter_and(style: str) -> Callable[..., None]:
    """What enters a block, calls something with the run, and leaves the block."""

    def entered(lock: OnceLock, body: Callable[[Any], object]) -> None:
        with lock as run:
            body(run)

    async def awaited(lock: OnceLock, body: Callable[[Any], object]) -> None:
        async with lock as run:
            body(run)

    return (lambda *args: asyncio.run(awaited(*args))) if style == "asyncio" else entered


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_body_that_has_looked_is_told_nothing(world, enter_and, look, caplog):
    """Whichever way it has asked; a run that is not fresh as well."""
    for _ in range(2):
        enter_and(redlock("name").once(keep=DAY), look)
    assert caplog.text == ""
    eventually(lambda: len(records(world)) == 5)


@pytest.mark.parametrize("body", NOT_LOOKED.values(), ids=NOT_LOOKED)
def test_a_body_that_has_not_looked_raises_in_tests(world, enter_and, body):
    """It would do the work each time; as of any block that raises, there is no record."""
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"around the work, 'if run\.fresh:'"):
            enter_and(redlock("name").once(keep=DAY), body)
    is_free(world, "name")


def test_a_body_that_has_not_looked_is_logged_where_it_is_deployed(
    world, enter_and, monkeypatch, caplog
):
    """Its work is done and recorded; only who does it again gets the error."""
    monkeypatch.setattr(backend, "TESTING", "not imported")
    enter_and(redlock("name").once(keep=DAY), id)
    (told,) = caplog.records
    assert told.levelno == logging.ERROR
    assert "'if run.fresh:'" in told.getMessage()
    eventually(lambda: len(records(world)) == 5)
    with pytest.raises(RuntimeError, match=r"if run\.fresh:"):
        enter_and(redlock("name").once(keep=DAY), id)
    assert len(caplog.records) == 1


def test_the_error_of_a_body_that_has_not_looked_is_the_one_that_is_told(world, enter_and):
    """Fresh or not: what the body raises goes on alone."""
    lock = redlock("name").once(keep=DAY)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            enter_and(lock, lambda _: 1 / 0)
        assert caught.value.__context__ is None
        enter_and(lock, LOOKS["fresh"])


def test_a_run_is_a_tuple_that_does_not_change():
    """It compares, shows and unpacks as one."""
    at = datetime.now(UTC)
    run = OnceRun(None, at)
    assert run == (None, at) == tuple(run)
    assert repr(run) == f"OnceRun(lease=None, at={at!r})"
    for name in ("lease", "at", "fresh"):
        with pytest.raises(AttributeError):
            setattr(run, name, True)
    assert not pickle.loads(pickle.dumps(run)).fresh  # noqa: S301 - our own


def test_a_revoked_record_lets_the_work_be_done_again(world, enter):
    """``revoke`` and ``redlock_release`` take a record away as they take a lock."""
    enter(redlock("name").once(keep=DAY))
    eventually(lambda: len(records(world)) == 5)
    found = redlock.revoke("name")
    assert (found.done, found.on, found.free_in) == (True, 5, 0.0)
    assert enter(redlock("name").once(keep=DAY)).fresh


def test_the_state_says_that_it_is_done_and_when(world, enter):
    """As the pages do; one node that has the record is enough."""
    enter(redlock("name").once(keep=DAY))
    eventually(lambda: len(records(world)) == 5)
    world.wipe("name", on=4)
    state = redlock("name").state()
    assert (state.kind, state.held, state.holder, state.fence) == ("done", False, "", None)
    assert state.remaining is not None
    assert 86_000 < state.remaining <= 86_400
    run = enter(redlock("name").once(keep=DAY))
    assert state.since == run.at


def test_an_end_that_is_interrupted_records_all_the_same(world, enter, monkeypatch):
    """The work is done: an exception at the record's first step does not undo that."""
    record, calls = OnceLock.record, []

    def interrupted(self: OnceLock, lease: Any) -> Any:
        calls.append(lease)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return record(self, lease)

    monkeypatch.setattr(OnceLock, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        enter(redlock("name").once(keep=DAY))
    eventually(lambda: len(records(world)) == 5)


def interrupted_behind_the_record(enter: Callable[..., OnceRun]) -> list[object]:
    """What is told of the lease whose record is on all nodes when an exception comes."""
    heard: list[object] = []
    calls: list[int] = []

    def interrupts(real: Callable[..., object]) -> Callable[..., object]:
        def wake_next(*args: object) -> object:
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return real(*args)

        return wake_next

    def hear(event: Event) -> None:
        heard.append(event.kind)

    subscribe(hear, (EventKind.LOST, EventKind.RELEASED))
    try:
        with with_edits(Patch(hold, "wake_next", interrupts)), pytest.raises(KeyboardInterrupt):
            enter(redlock("name", on_lost=heard.append).once(keep=DAY))
    finally:
        unsubscribe(hear, (EventKind.LOST, EventKind.RELEASED))
    return heard


def test_an_end_that_is_interrupted_makes_up_no_loss(world, enter):
    """The second time the names are records already: nobody else has had them."""
    assert interrupted_behind_the_record(enter) == [EventKind.RELEASED]
    eventually(lambda: len(records(world)) == 5)


def test_a_loss_that_is_made_up_is_noticed(world, enter):
    """Broken: the end does not note that it has begun."""
    hasty = Patch(Lease, "disown", lambda _: lambda lease: None)
    with with_edits(hasty):
        assert EventKind.LOST in interrupted_behind_the_record(enter)


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        (0, "keep must be more than 0 seconds"),
        (timedelta(days=-1), "keep must be more than 0 seconds"),
        (math.inf, "finite"),
        (math.nan, "keep must be"),
        (2e9, "keep must be at most"),
        ("1d", "keep must be a timedelta or a number of seconds, not str"),
        (True, "keep must be a timedelta or a number of seconds, not bool"),
        (None, "keep must be a timedelta or a number of seconds, not NoneType"),
    ],
)
def test_a_time_that_makes_no_sense_is_refused(keep, text):
    """With the argument's name and what it may be."""
    with pytest.raises((TypeError, ValueError), match=text):
        redlock("name").once(keep=keep)


def test_what_makes_no_sense_is_refused():
    """Several names, an answer in ``if``, and a transaction for a coroutine."""
    with pytest.raises(ValueError, match="once takes one name, not 2"):
        redlock(["a", "b"]).once(keep=60)
    with pytest.raises(TypeError, match=r"write 'if run\.fresh:'"):
        bool(OnceRun(None, datetime.now(UTC)))
    with pytest.raises(TypeError, match="is a description"):
        bool(redlock("name").once(keep=60))
    with pytest.raises(TypeError, match="Django has no transactions for coroutines"):
        redlock("name").once(keep=60).atomic()(asyncio.sleep)
    with pytest.raises(TypeError, match="generator function"):
        redlock("name").once(keep=60)(lambda: (yield))
    assert "for 60 s" in repr(redlock("name").once(keep=60))
    assert once_module.EPOCH.tzinfo is UTC
