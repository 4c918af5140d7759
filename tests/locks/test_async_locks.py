"""What only asyncio has: many tasks in one thread, timeouts, groups that fail, contexts."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_redlock import LeaseLost, LockTaken, assert_locked, current_lease, redlock
from django_redlock.interruption import blocks_by_hand
from django_redlock.leases.lease import Lease

pytestmark = pytest.mark.usefixtures("nodes")


async def is_free(name: str) -> bool:
    """Whether nobody holds the name."""
    lease = await redlock(name).atry_acquire()
    if lease is not None:
        await lease.arelease()
    return lease is not None


def test_a_decorated_coroutine_function_runs_under_the_lock():
    """Fields are filled, it stays a coroutine function, and its end, or error, ends the lock."""

    @redlock("report:{year}")
    async def build(year: int, fail: bool = False) -> tuple[str, ...]:
        """Say who."""
        await asyncio.sleep(0)
        if fail:
            raise ZeroDivisionError
        with pytest.raises(LockTaken):
            await build(year)
        lease = current_lease()
        assert lease is not None
        return lease.names

    async def main() -> None:
        assert inspect.iscoroutinefunction(build)
        assert (build.__name__, build.__doc__) == ("build", "Say who.")
        assert await build(2026) == ("report:2026",)
        with pytest.raises(ZeroDivisionError):
            await build(year=2027, fail=True)
        assert await is_free("report:2026")
        assert await is_free("report:2027")

    asyncio.run(main())


def test_what_is_awaited_is_locked_while_it_is_awaited():
    """Objects with ``async def __call__``, and Django's ``sync_to_async``, run under the lock."""

    class Build:
        async def __call__(self) -> bool:
            return await is_free("name")

    def plain() -> str:
        return str(assert_locked("name").name)

    async def main() -> None:
        assert not await redlock("name")(Build())()
        assert await redlock("name")(sync_to_async(plain))() == "name"
        assert await is_free("name")

    asyncio.run(main())
    decorated = redlock("name")(Build())
    assert asyncio.run(decorated()) is False  # called where no loop runs yet


def test_a_function_that_returns_a_coroutine_is_refused():
    """Its body would run after the release: TypeError, and it does not run."""
    ran = []

    async def later() -> None:
        ran.append(1)

    @redlock("name")
    def build() -> Any:
        return later()

    with pytest.raises(TypeError, match=r"build returned a coroutine.* decorate the 'async def'"):
        asyncio.run(build())
    assert ran == []
    assert asyncio.run(is_free("name"))


def test_one_lock_is_entered_by_many_tasks():
    """Tasks that share a Lock enter one at a time, and each leaves its own lease."""
    lock = redlock("shared", wait=30)
    inside: list[int] = []
    fences: list[int] = []

    async def work(number: int) -> None:
        async with lock as lease:
            assert inside == []
            inside.append(number)
            assert current_lease() is lease
            await asyncio.sleep(0.001)
            inside.remove(number)
            fences.append(lease.fence)
        assert lease.ended
        assert not lease.lost

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(20)))
        assert await is_free("shared")

    asyncio.run(main())
    assert len(fences) == 20
    assert fences == sorted(fences)
    assert blocks_by_hand(lock) == []


def test_the_current_lease_is_of_this_task():
    """Tasks see their own leases; one that is created inside a block sees the block's, too."""

    async def seen() -> Lease | None:
        return current_lease()

    async def main() -> None:
        ready = asyncio.Event()

        async def other() -> None:
            async with redlock("other"):
                ready.set()
                await asyncio.sleep(30)

        async with redlock("name") as lease:
            task = asyncio.create_task(other())
            await ready.wait()
            assert current_lease() is lease
            assert await asyncio.create_task(seen()) is lease
            assert await asyncio.create_task(seen(), context=contextvars.Context()) is None
            assert assert_locked("name") is lease
            with pytest.raises(LeaseLost):
                assert_locked("other")
            task.cancel()
            await asyncio.wait([task])
        assert current_lease() is None
        assert await asyncio.create_task(seen()) is None

    asyncio.run(main())


@pytest.mark.parametrize("how", ["timeout", "wait_for"])
def test_a_timeout_around_acquire_leaves_nothing(how):
    """Who gives up by a timeout of asyncio's gets TimeoutError, and takes nothing later."""

    async def impatient() -> None:
        waiting = redlock("name", wait=3600).aacquire()
        if how == "wait_for":
            await asyncio.wait_for(waiting, 0.05)
        else:
            async with asyncio.timeout(0.05):
                await waiting

    async def main() -> None:
        async with redlock("name"):
            with pytest.raises(TimeoutError):
                await impatient()
        assert await is_free("name")
        async with asyncio.timeout(120), redlock("name"):
            assert not await is_free("name")
        assert await is_free("name")

    asyncio.run(main())


def test_a_task_group_that_fails_frees_all_names():
    """The error of one task cancels its siblings, wherever they are, and nothing stays."""

    async def hold(number: int) -> None:
        async with redlock(f"group:{number}"):
            await asyncio.sleep(30)

    async def wait(number: int) -> None:
        async with redlock(f"group:{number}", wait=30):
            await asyncio.sleep(30)

    async def fail() -> None:
        async with redlock("group:failing"):
            await asyncio.sleep(0.03)
            raise ZeroDivisionError

    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(hold(number))
                group.create_task(wait(number))
            group.create_task(fail())

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as errors:
            await together()
        assert [type(error) for error in errors.value.exceptions] == [ZeroDivisionError]
        names = [f"group:{number}" for number in range(10)] + ["group:failing"]
        assert await asyncio.gather(*map(is_free, names)) == [True] * 11

    asyncio.run(main())


def test_of_many_tasks_one_gets_the_name():
    """Of a hundred tasks that try one name in one tick, one gets it, as all nodes agree."""

    async def main() -> None:
        tries: list[Any] = await asyncio.gather(
            *(redlock("name").atry_acquire() for _ in range(100))
        )
        (lease,) = [each for each in tries if each is not None]
        lease.ensure()
        await lease.arelease()

    asyncio.run(main())


def test_blocking_methods_are_refused_in_a_loop():
    """`with`, `acquire`, `state` and `adopt` raise in a running loop, and take nothing."""
    lock = redlock("name")

    async def main() -> None:
        for call in (lock.acquire, lock.try_acquire, lock.__enter__, lock.state):
            with pytest.raises(SynchronousOnlyOperation):
                call()
        handle = (await lock.aacquire()).handle()
        with pytest.raises(SynchronousOnlyOperation):
            redlock.adopt(handle)
        await (await redlock.aadopt(handle)).arelease()

    asyncio.run(main())
