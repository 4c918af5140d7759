"""``on_lost="cancel"``: a loss cancels the task of the block, and no other request gets lost."""

# ruff: noqa: PT012 - the blocks of these tests are what raises

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_redlock import LeaseLost, current_lease, redlock
from django_redlock.leases.lease import Lease
from django_redlock.locks import cancelling
from django_redlock.locks.cancelling import LossCancels
from django_redlock.testing import assert_free, stale
from django_redlock.views import single_flight
from tests.simulation.mutants import Patch, with_edits
from tests.support.loops import soon

pytestmark = pytest.mark.usefixtures("memory")
REFUSED = r"'async with' block.*give on_lost a function there, or 'raise'"


def in_a_loop(main: Callable[[], Awaitable[object]]) -> None:
    """Run a coroutine to its end, within a deadline; it leaves no request to cancel."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(bounded())


def locked(name: str) -> Any:
    """A block whose task is cancelled when it loses its lease."""
    return redlock(name, on_lost="cancel")


async def for_ever() -> None:
    """Wait for something that does not come."""
    await asyncio.get_running_loop().create_future()


async def lose(lease: Lease) -> None:
    """Lose it, and wait to be cancelled."""
    stale(lease)
    await for_ever()


# -- one block ------------------------------------------------------------------------------------


def test_the_block_of_a_lost_lease_is_cancelled_and_ends_in_lease_lost(nodes):
    """Its clean-up runs, the error names the lock, and the task works on as if nothing had been."""

    async def main() -> None:
        cleaned = []
        with pytest.raises(LeaseLost, match="the lease was lost before the block ended") as lost:
            async with locked("job") as lease:
                try:
                    await lose(lease)
                finally:
                    await asyncio.sleep(0)
                    cleaned.append(lease)
        assert lost.value.name == "job"
        assert isinstance(lost.value.__context__, asyncio.CancelledError)
        assert cleaned == [lease]
        await asyncio.sleep(0)
        async with locked("job"):
            await asyncio.sleep(0)

    in_a_loop(main)
    assert_free("job")


def test_a_decorated_coroutine_function_is_cancelled():
    """A lock that is made for each call is as one that is written in a block."""
    reached = []

    @redlock("report:{year}", on_lost="cancel")
    async def build(year: int) -> None:
        lease = current_lease()
        assert lease is not None
        reached.append(year)
        await lose(lease)
        reached.append(0)

    async def main() -> None:
        with pytest.raises(LeaseLost) as lost:
            await build(2026)
        assert lost.value.name == "report:2026"

    in_a_loop(main)
    assert reached == [2026]


@pytest.mark.parametrize("is_once", [False, True])
@pytest.mark.parametrize("swallows", [False, True])
def test_a_body_that_is_through_all_the_same_ends_in_lease_lost(swallows, is_once):
    """It came to its end before it could be cancelled, or it swallowed that."""

    async def main() -> None:
        with pytest.raises(LeaseLost):
            async with locked("job").once(60) if is_once else locked("job") as entered:
                assert not is_once or entered.fresh
                lease = current_lease()
                assert lease is not None
                if not swallows:
                    stale(lease)
                else:
                    with pytest.raises(asyncio.CancelledError):
                        await lose(lease)
        await asyncio.sleep(0)  # what came too late cancels nothing

    in_a_loop(main)
    assert_free("job")  # and nothing is recorded


# -- several blocks, and other requests -----------------------------------------------------------


def test_only_the_block_of_the_lost_lease_turns_the_cancellation_into_lease_lost():
    """An inner block lets it through; an outer one goes on once its body has handled the error."""

    async def main() -> None:
        with pytest.raises(LeaseLost) as lost:
            async with locked("outer") as outer:
                with pytest.raises(LeaseLost) as inside:
                    async with locked("inner") as inner:
                        await lose(inner)
                assert inside.value.name == "inner"
                outer.ensure()
                with pytest.raises(asyncio.CancelledError):
                    async with locked("inner") as inner:
                        await lose(outer)
                assert not inner.lost
                raise asyncio.CancelledError
        assert lost.value.name == "outer"

    in_a_loop(main)


async def cancelled_from_outside() -> None:
    """A task loses its lease and is cancelled by somebody else at the same moment."""
    ready: list[Lease] = []

    async def work() -> None:
        async with locked("job") as lease:
            ready.append(lease)
            await for_ever()

    task = asyncio.ensure_future(work())
    await soon(lambda: ready)
    stale(ready[0])
    await asyncio.sleep(0)  # now the loss has asked, and the task has not run
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_a_cancellation_from_outside_at_the_same_moment_wins():
    """Who cancels the task sees it cancelled."""
    in_a_loop(cancelled_from_outside)


def test_a_timeout_at_the_same_moment_is_the_timeouts():
    """An outer one ends in TimeoutError; an inner one makes way for the loss."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as outer, locked("job") as lease:
                outer.reschedule(loop.time())
                await lose(lease)
        with pytest.raises(LeaseLost):
            async with locked("job") as lease, asyncio.timeout(None) as inner:
                inner.reschedule(loop.time())
                await lose(lease)

    in_a_loop(main)


def test_a_coroutine_that_no_task_runs_is_refused():
    """As ``asyncio.timeout`` does it: there is nothing to cancel. No lock stays behind."""

    async def main() -> None:
        done = asyncio.get_running_loop().create_future()
        enter = locked("job").__aenter__()

        def step() -> None:
            try:
                enter.send(None)
            except RuntimeError as error:
                done.set_result(str(error))

        asyncio.get_running_loop().call_soon(step)
        assert await done == "on_lost='cancel' needs a task: call this from a coroutine"

    in_a_loop(main)
    assert_free("job")


def test_a_loss_that_is_told_as_the_block_ends_cancels_nothing():
    """What the loop has not got to by then is dropped: the task has left the block."""

    async def main() -> None:
        async with locked("job") as lease:
            told = LossCancels()
        told.end(None)
        told(lease)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    in_a_loop(main)


@pytest.mark.parametrize("strong", [False, True])
def test_a_task_that_is_forgotten_in_its_block_gives_the_lock_back(strong):
    """Its lease keeps neither the task nor the loop; a variant that does is renewed for ever."""
    leases: list[Lease] = []

    async def work() -> None:
        async with locked("job") as lease:
            leases.append(lease)
            await for_ever()

    def forget() -> weakref.ref[Any]:
        loop = asyncio.new_event_loop()
        task = loop.create_task(work())
        while not leases:
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        return weakref.ref(task)

    def strongly(_: Any) -> Any:
        return SimpleNamespace(ref=lambda task: lambda: task)

    with with_edits(*[Patch(cancelling, "weakref", strongly)] * strong):
        task = forget()
    gc.collect()
    (lease,) = leases
    assert (task() is None, lease.held) == (not strong, strong)
    lease.release()
    leases.clear()
    del lease
    gc.collect()  # here, and not in the midst of another test
    assert task() is None


# -- broken variants ------------------------------------------------------------------------------


def deaf(self: LossCancels, kind: type[BaseException] | None) -> bool:
    """Claims each cancellation, whoever wanted it besides."""
    self._over = True
    task = asyncio.current_task()
    if self._requested and task is not None:
        task.uncancel()
    return self._requested and kind is asyncio.CancelledError


def test_a_block_that_claims_every_cancellation_is_caught():
    """It would hide from the one who cancelled the task that it goes on."""
    with with_edits(Patch(LossCancels, "end", lambda _: deaf)), pytest.raises(LeaseLost):
        in_a_loop(cancelled_from_outside)


# -- work that is done once ------------------------------------------------------------------------


def test_the_block_of_work_that_is_done_once_is_cancelled_as_any_other(nodes):
    """It leaves no record, so the work is begun again; where it is done, nothing is cancelled."""

    async def main() -> None:
        with pytest.raises(LeaseLost, match="the lease was lost before the block ended"):
            async with locked("job").once(60) as run:
                assert run.lease is not None
                await lose(run.lease)
        assert_free("job")
        for fresh in (True, False):
            async with locked("job").once(60) as run:
                assert run.fresh is fresh
                await asyncio.sleep(0)

    in_a_loop(main)


def test_whoever_else_cancels_such_work_sees_it_cancelled():
    """Nothing is recorded, and the name is free."""

    async def main() -> None:
        ready = asyncio.Event()

        @locked("job:{number}").once(60)
        async def work(number: int) -> None:
            ready.set()
            await for_ever()

        task = asyncio.ensure_future(work(1))
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_a_loop(main)
    assert_free("job:1")


# -- where it makes no sense ----------------------------------------------------------------------


def test_it_is_refused_where_no_task_runs_the_block():
    """Before any node is asked, and with what to write."""
    lock = locked("job")
    for call in (lock.acquire, lock.try_acquire, lock.__enter__, lock.atomic):
        with pytest.raises(TypeError, match=REFUSED):
            call()
    for describe in (lock, lock.once(60)):
        with pytest.raises(TypeError, match=REFUSED):
            describe(lambda: None)
    for call in (lock.once(60).__enter__, lock.once(60).atomic):
        with pytest.raises(TypeError, match=REFUSED):
            call()
    with pytest.raises(TypeError, match=r"on_lost already: give it to leader\(on_lost=...\)"):
        lock.leader()
    with pytest.raises(TypeError, match=REFUSED):
        redlock.using(on_lost="cancel").adopt("a handle")
    with pytest.raises(TypeError, match="a view's lock may outlive the view"):
        single_flight("job", on_lost="cancel")
    with pytest.raises(TypeError, match="'raise', 'cancel' or something to call"):
        redlock("job", on_lost="abort")  # type: ignore[arg-type]

    async def main() -> None:
        for call in (lock.aacquire, lock.atry_acquire):
            with pytest.raises(TypeError, match=REFUSED):
                await call()

    in_a_loop(main)
    assert_free("job")
