"""``taken``, ``stale`` and the assertions about names: states of locks that a test asks for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction

from django_redlock import (
    LeaseLost,
    LockTaken,
    assert_locked,
    current_lease,
    events,
    redlock,
)
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import decorated
from django_redlock.signals import lease_lost
from django_redlock.testing import assert_free, assert_taken, locks, stale, taken, unavailable
from tests.support.loops import soon
from tests.support.waiting import eventually, waiters

ATTEMPT = """
from django.conf import settings
settings.configure(REDLOCK={})
from django_redlock import LockTaken, redlock
try:
    redlock("report:7").acquire().release()
except LockTaken as error:
    print(error.holder)
"""


def refused(name: str = "report:7", alias: str = "default") -> str | None:
    """Whom an attempt finds."""
    with pytest.raises(LockTaken) as caught:
        redlock.using(alias)(name).acquire()
    return caught.value.holder


async def arefused(name: str = "report:7") -> str | None:
    """The same of a task."""
    with pytest.raises(LockTaken) as caught:
        await redlock(name).aacquire()
    return caught.value.holder


def test_every_thread_is_refused_until_the_block_ends(aliases):
    """In the thread of the block and in another one; the error names the holder."""
    with ThreadPoolExecutor(1) as others:
        with taken("report:7") as theirs:
            assert refused() == "somebody else"
            assert others.submit(refused).result() == "somebody else"
        with redlock("report:7") as lease:
            assert lease.fence > theirs.fence


def test_every_task_is_refused_until_the_block_ends(aliases):
    """In the task of the block, in another one, and in a thread."""

    async def main() -> None:
        async with taken("report:7", holder="worker-3"):
            assert await arefused() == "worker-3"
            assert await asyncio.create_task(arefused()) == "worker-3"
            assert await asyncio.to_thread(refused) == "worker-3"
        async with redlock("report:7"):
            pass

    asyncio.run(main())


@pytest.mark.slow
def test_another_process_is_refused(patient_nodes):
    """On real nodes the name is taken for every process."""
    script = ATTEMPT.replace("REDLOCK={}", f"REDLOCK={settings.REDLOCK!r}")
    with taken("report:7"):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
    assert done.stdout == "somebody else\n"


def test_a_waiter_has_the_name_when_the_block_ends(aliases):
    """It is woken; it does not find out when the lease would have run out."""
    with ThreadPoolExecutor(1) as others:
        with taken("report:7") as theirs:
            waiter = others.submit(redlock("report:7").acquire, 60)
            eventually(lambda: waiters(theirs))
            assert not waiter.done()
        lease = waiter.result(10)
        assert lease.fence > theirs.fence
        lease.release()


def test_a_waiting_task_has_the_name_when_the_block_ends(aliases):
    """It is woken, too."""

    async def main() -> None:
        async with taken("report:7") as theirs:
            waiter = asyncio.create_task(redlock("report:7").aacquire(60))
            await soon(lambda: waiters(theirs))
        await (await asyncio.wait_for(waiter, 10)).arelease()

    asyncio.run(main())


def test_the_running_code_does_not_hold_what_is_taken(aliases):
    """Code that is called without its lock is found out, though somebody has the lock."""
    with redlock("mine") as mine, taken("report:7"):
        assert current_lease() is mine
        with pytest.raises(LeaseLost):
            assert_locked("report:7")


def test_nothing_is_told_of_what_is_taken(aliases):
    """Only of the attempt that it refuses: no listener hears of another process's lock."""
    told: list[events.Event] = []
    events.subscribe(told.append)
    try:
        with taken("report:7") as theirs:
            theirs.extend()
            refused()
            with pytest.raises(LockTaken), taken("report:7"):
                pass
    finally:
        events.unsubscribe(told.append)
    assert [event.kind for event in told] == [events.EventKind.REFUSED]


def test_several_names_and_an_alias(aliases):
    """All of them are taken, of this alias and of no other."""
    with taken("a", "b", alias="other"):
        refused("a", "other")
        refused("b", "other")
        assert_taken("a", "b", alias="other")
        assert_free("a", "b")
    assert_free("a", "b", alias="other")


def test_what_is_taken_cannot_be_taken_again(aliases):
    """A test whose name is taken already hears by whom, and takes none of the names."""
    with redlock("b"), pytest.raises(LockTaken), taken("a", "b"):
        pass
    assert_free("a", "b")


def test_a_function_in_which_it_is_taken(aliases):
    """It decorates functions and coroutine functions."""
    assert taken("report:7")(refused)() == "somebody else"
    assert asyncio.run(taken("report:7")(arefused)()) == "somebody else"
    assert_free("report:7")


def test_a_cancelled_task_leaves_nothing_taken(aliases):
    """The same of a task in the middle of its block."""

    async def main() -> None:
        async def body() -> None:
            async with taken("report:7"):
                entered.set()
                await asyncio.sleep(60)

        entered = asyncio.Event()
        task = asyncio.create_task(body())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await (await redlock("report:7").aacquire(10)).arelease()

    asyncio.run(main())


@pytest.mark.django_db
def test_a_transaction_does_not_matter():
    """The lock is not the code's: it may be taken and freed inside a transaction, unwarned."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with transaction.atomic(), taken("report:7"):
            assert_taken("report:7")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((), {}, TypeError, "needs the name"),
        (("a",), {"holder": ""}, ValueError, "1 to 200 bytes"),
        (("a",), {"holder": "x" * 201}, ValueError, "1 to 200 bytes"),
        (("a",), {"holder": "a\nb"}, ValueError, "printable"),
        (("a",), {"holder": 7}, TypeError, "must be text, not int"),
        (("a",), {"alias": None}, TypeError, "alias"),
        (("",), {}, ValueError, "name"),
        ((print,), {}, TypeError, "needs the name"),
    ],
)
def test_bad_arguments_of_taken(arguments, options, error, text):
    """A clear error names the argument."""
    with pytest.raises(error, match=text):
        taken(*arguments, **options)


# -- stale ----------------------------------------------------------------------------------------


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


def test_a_waiter_is_the_successor(aliases):
    """One that waits for the name has it at once."""
    with redlock("report:7") as old, ThreadPoolExecutor(1) as others:
        waiter = others.submit(redlock("report:7").acquire, 60)
        eventually(lambda: waiters(old))
        stale(old)
        new = waiter.result(10)
        assert new.fence > old.fence
        new.release()


def test_bad_arguments_of_stale():
    """A lease that is not held any more, or something else, is refused."""
    lease = redlock("report:7").acquire()
    lease.release()
    with pytest.raises(ValueError, match="has ended"):
        stale(lease)
    with pytest.raises(TypeError, match="takes a lease, not str"):
        stale("report:7")  # type: ignore[arg-type]
    with redlock("report:8").once(keep=60) as run, pytest.raises(TypeError, match=r"\(run.lease"):
        stale(run)  # type: ignore[arg-type]


@pytest.mark.parametrize("decorate", [taken("a"), taken("a", limit=2), unavailable()])
def test_a_class_is_no_function(decorate):
    """Of the decorators of tests none is for a whole class."""
    with pytest.raises(TypeError, match="is no function: write the decorator right above 'def'"):
        decorate(SimpleNamespace)


def asks_nobody() -> Generator[Any, Any, list[Any]]:
    """A release that no node hears of."""
    yield from ()
    return []


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Lease, "expire", lambda lease: None),  # its time is not over
        (locks, "hold", SimpleNamespace(release=lambda *_: asks_nobody())),  # the nodes have it
        (Lease, "tell_lost", lambda lease: None),  # nobody is told
    ],
)
def test_a_broken_variant_of_stale_is_noticed(memory, monkeypatch, owner, name, broken):
    """The tests above can fail."""
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((AssertionError, LockTaken, pytest.fail.Exception)):  # noqa: PT012 - either
        test_a_successor_enters_with_a_higher_fence("memory")
        test_it_is_told_as_if_its_time_had_run_out("memory")


# -- assert_free, assert_taken --------------------------------------------------------------------


def test_a_taken_name(aliases):
    """It is taken, and the error says by whom and for how long."""
    with taken("a", holder="worker-3"):
        assert_taken("a")
        assert_free("a", alias="other")
        with pytest.raises(AssertionError, match=r"'a' of 'default' is taken by worker-3, for \d"):
            assert_free("b", "a")
        with pytest.raises(AssertionError, match="'b' of 'default' is free"):
            assert_taken("a", "b")


def test_a_name_that_is_kept(aliases):
    """Until ``min_hold`` is over, a released name is not free."""
    with redlock("a", min_hold=20):
        pass
    assert_taken("a")
    with pytest.raises(AssertionError, match="by min_hold, though it is released"):
        assert_free("a")


def test_a_name_whose_work_is_recorded(aliases):
    """Nobody holds it, and it is not free."""
    with redlock("a").once(keep=20) as run:
        assert run.fresh
    assert_taken("a")
    with pytest.raises(AssertionError, match="'a' of 'default' is not free: its work is recorded"):
        assert_free("a")


def test_without_a_majority(aliases):
    """Nothing is known then, so both fail."""
    with unavailable():
        for check in (assert_free, assert_taken):
            with pytest.raises(AssertionError, match="no majority of the nodes of 'default'"):
                check("a")


@pytest.mark.parametrize("check", [assert_free, assert_taken])
def test_bad_arguments_of_assertions(check):
    """A clear error names what is missing."""
    with pytest.raises(TypeError, match=f"{check.__name__}.. needs the name of a lock"):
        check()
    with pytest.raises(ValueError, match="name"):
        check("")


# -- limited locks --------------------------------------------------------------------------------


def test_all_slots_are_taken_or_some(aliases):
    """With the limit of the code nobody gets a slot; with less, those that are left."""
    with taken("openai", limit=3, holder="web-2"):
        with pytest.raises(LockTaken, match="'openai': all 3 slots are held") as refused:
            redlock("openai", limit=3).acquire(wait=0)
        assert refused.value.holder == "web-2"
        assert_taken("openai", limit=3)
        assert not redlock("openai").state().held  # the lock without a limit
        with pytest.raises(
            AssertionError, match=r"^'openai' \(slot 0 of 3\) of 'default' is taken"
        ):
            assert_free("openai")
        with redlock("openai", limit=4) as lease:
            assert lease.slot == 3
        with pytest.raises(AssertionError, match=r"^'openai' \(slot 3\) of 'default' is free"):
            assert_taken("openai", limit=4)
        with pytest.raises(
            AssertionError, match=r"^'openai' \(slot 0 of 3\) of 'default' is taken by web-2"
        ):
            assert_free("openai", limit=4)
    assert_free("openai", limit=128)


def test_slots_are_all_taken_or_none(aliases):
    """Where one is taken already, the others are free again."""
    with redlock("openai", limit=2):
        with pytest.raises(LockTaken), taken("openai", limit=2):
            raise AssertionError
        assert sum(each.held for each in redlock("openai", limit=2).state().each) == 1


def test_taken_slots_decorate(aliases):
    """Of a function and of a coroutine function, each time; no check takes it for the program's."""
    known = set(decorated)

    @taken("openai", limit=2)
    def check():
        assert_taken("openai", limit=2)
        return 1

    @taken("openai", limit=2)
    async def acheck():
        with pytest.raises(LockTaken):
            await redlock("openai", limit=2).aacquire(wait=0)
        return 2

    @taken("openai:{model}", limit=2)
    def check_one(model):
        assert_taken(f"openai:{model}", limit=2)

    check_one("o1")
    assert set(decorated) <= known
    assert_free("openai:o1", limit=2)
    assert [check(), check(), asyncio.run(acheck()), asyncio.run(acheck())] == [1, 1, 2, 2]
    assert_free("openai", limit=2)


@pytest.mark.parametrize("ask", [taken, assert_free, assert_taken])
@pytest.mark.parametrize("limit", [0, 129, True, "5"])
def test_a_limit_that_makes_no_sense(aliases, ask, limit):
    """It is named."""
    with pytest.raises((TypeError, ValueError), match="limit must be"):
        ask("openai", limit=limit)
