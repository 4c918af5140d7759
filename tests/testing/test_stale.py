"""``stale``: the time of a lease is over now, for its holder and for the nodes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_redlock import LeaseLost, NodesUnavailable, current_lease, redlock
from django_redlock.leases.lease import Lease
from django_redlock.signals import lease_lost
from django_redlock.testing import assert_free, locks, stale, unavailable
from tests.simulation.mutants.edits import Edit, with_edits
from tests.support.loops import soon
from tests.support.waiting import eventually, waiters


def is_over(lease: Lease) -> None:
    """See that its holder cannot rely on it any more."""
    assert lease.lost
    assert lease.remaining() <= 0
    with pytest.raises(LeaseLost):
        lease.ensure()


def test_a_successor_enters_with_a_higher_fence(aliases):
    """The block of the old holder is open; the new one holds the name at the same time."""
    with redlock("report:7") as old:
        stale(old)
        is_over(old)
        assert current_lease() is old
        with redlock("report:7") as new:
            assert new.fence > old.fence
            new.ensure()
            with pytest.raises(LeaseLost):
                old.extend()
            new.extend()
    assert_free("report:7")


def test_a_successor_keeps_the_name_when_the_old_block_ends(aliases):
    """The release of the stale lease frees nothing."""
    with redlock("report:7") as old:
        stale(old)
        new = redlock("report:7").acquire()
    new.extend()
    new.release()


def test_a_task_s_lease(aliases):
    """In the loop of its block, and in a thread."""

    async def main() -> None:
        async with redlock("report:7") as old:
            stale(old)
            is_over(old)
            async with redlock("report:7") as new:
                assert new.fence > old.fence
                await asyncio.to_thread(stale, new)
                is_over(new)
        await (await redlock("report:7").aacquire()).arelease()

    asyncio.run(main())


def test_an_adopted_lease_and_one_of_several_names(aliases):
    """Whatever the way by which it came to its holder."""
    old = redlock.adopt(redlock(["a", "b"]).acquire().handle())
    stale(old)
    is_over(old)
    assert_free("a", "b")


def test_it_is_told_as_if_its_time_had_run_out(aliases):
    """``on_lost`` and the signal, once, before ``stale`` returns; the reason is that it ran out."""
    lost: list[Any] = []
    signals: list[Any] = []

    def hear(error: LeaseLost, **_: object) -> None:
        signals.append(error.code)

    lease_lost.connect(hear)
    try:
        with redlock("report:7", on_lost=lost.append) as lease:
            stale(lease)
            assert (lost, signals) == ([lease], ["ran_out"])
            stale(lease)
    finally:
        lease_lost.disconnect(hear)
    assert (lost, signals) == ([lease], ["ran_out"])


def test_a_block_that_shall_raise_raises(aliases):
    """``on_lost="raise"``: the end of a block that succeeded is a LeaseLost."""
    with pytest.raises(LeaseLost), redlock("report:7", on_lost="raise") as lease:
        stale(lease)


def test_it_is_not_renewed(aliases, often):
    """The watchdog leaves it alone, and renews the successor."""
    old = redlock("report:7").acquire()
    eventually(lambda: old.grant.deadline > old.grant.since + 30)
    stale(old)
    before = old.grant.deadline
    with redlock("report:7") as new:
        first = new.grant.deadline
        eventually(lambda: new.grant.deadline > first)
    assert old.grant.deadline == before
    old.release()


def test_a_loop_does_not_renew_it(aliases, often):
    """The same of a lease that a loop renews."""

    async def main() -> None:
        old = await redlock("report:7").aacquire()
        stale(old)
        before = old.grant.deadline
        async with redlock("report:7") as new:
            first = new.grant.deadline
            await soon(lambda: new.grant.deadline > first)
        assert old.grant.deadline == before
        await old.arelease()

    asyncio.run(main())


def test_a_waiter_is_the_successor(aliases):
    """One that waits for the name has it at once."""
    with redlock("report:7") as old, ThreadPoolExecutor(1) as others:
        waiter = others.submit(redlock("report:7").acquire, 60)
        eventually(lambda: waiters(old))
        stale(old)
        new = waiter.result(10)
        assert new.fence > old.fence
        new.release()


def test_the_lease_of_another_thread(aliases):
    """The holder finds out by ``ensure``."""
    leases: list[Lease] = []
    entered, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with redlock("report:7") as lease:
            leases.append(lease)
            entered.set()
            assert go_on.wait(30)
            is_over(lease)

    with ThreadPoolExecutor(1) as others:
        holder = others.submit(work)
        assert entered.wait(30)
        stale(leases[0])
        go_on.set()
        holder.result(30)


def test_in_an_outage(aliases):
    """The nodes forget it when they can be asked again."""
    with redlock("report:7") as old:
        with unavailable():
            stale(old)
            is_over(old)
            with pytest.raises(NodesUnavailable):
                redlock("report:7").acquire()
        redlock("report:7").acquire().release()


def test_bad_arguments():
    """A lease that is not held any more, or something else, is refused."""
    lease = redlock("report:7").acquire()
    lease.release()
    with pytest.raises(ValueError, match="has ended"):
        stale(lease)
    with pytest.raises(TypeError, match="takes a lease, not str"):
        stale("report:7")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(
            Edit(Lease, "expire", "self.backend.policy.clock()", "math.inf"), id="not over"
        ),
        pytest.param(
            Edit(locks, "stale", "backend.run(", "("),
            id="the nodes have it",
        ),
    ],
)
def test_a_broken_variant_is_noticed(aliases, edit, monkeypatch):
    """The tests above can fail."""
    with with_edits(edit):
        monkeypatch.setitem(globals(), "stale", locks.stale)
        with pytest.raises((AssertionError, LeaseLost, Exception)):
            test_a_successor_enters_with_a_higher_fence(aliases)


def test_telling_nobody_is_noticed(aliases, monkeypatch):
    """So can the test of what is told."""
    with with_edits(Edit(locks, "stale", "lease.tell_lost()", "pass")):
        monkeypatch.setitem(globals(), "stale", locks.stale)
        with pytest.raises(AssertionError):
            test_it_is_told_as_if_its_time_had_run_out(aliases)
