"""Which lease ends with which block, also where a block is torn open before it could end."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import unittest
from collections.abc import Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
)
from typing import Any, assert_type, cast

import pytest

from django_redlock import LockTaken, events
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.events import Event
from django_redlock.fanout.memory.group import MemoryNode, MemoryNodes
from django_redlock.leases import with_blocks
from django_redlock.leases.lease import Lease
from django_redlock.locks import exits
from django_redlock.locks.lock import Lock
from django_redlock.locks.template import LockTemplate


class Interruption(Exception):  # noqa: N818 - it is one
    """What a signal handler raises."""


@pytest.fixture
def backend() -> Backend:
    """Three nodes in memory."""
    group = MemoryNodes([MemoryNode() for _ in range(3)])
    return Backend("blocks", group, Policy(size=3))


@pytest.fixture
def redlock(backend: Backend) -> LockTemplate:
    """What makes locks on them."""
    return LockTemplate(lambda _: backend)


@pytest.fixture
def lock(redlock: LockTemplate) -> Lock:
    """A lock that all share."""
    return redlock("name")


def is_free(redlock: LockTemplate, name: str = "name") -> bool:
    """Whether somebody else could have the name."""
    try:
        redlock(name).acquire().release()
    except LockTaken:
        return False
    return True


@pytest.fixture
def torn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each block is interrupted before the first statement of its end."""

    def interrupted(*_: object) -> None:
        raise Interruption

    def get(leave: Any) -> Any:
        monkeypatch.setattr(leave, "_leave", interrupted)
        monkeypatch.setattr(leave, "_leave_any", interrupted)

    get(exits.leave)
    get(exits.aleave)
    yield
    gc.collect()


# -- torn open ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("torn")
def test_a_torn_block_releases_although_its_lease_and_the_exception_are_kept(
    lock: Lock, redlock: LockTemplate
) -> None:
    """Nothing is held, nor renewed, whose block has ended, however it ended."""
    kept: list[object] = []
    try:
        with lock as lease:
            kept.append(lease)
    except Interruption as error:
        kept.append(error)
    assert lease.ended
    assert not lease.held
    assert is_free(redlock)
    assert len(kept) == 2


@pytest.mark.usefixtures("torn")
def test_a_torn_block_of_a_task_releases(lock: Lock, redlock: LockTemplate) -> None:
    """The same in an event loop, without blocking it."""

    async def main() -> Lease:
        kept: list[BaseException] = []
        try:
            async with lock as lease:
                pass
        except Interruption as error:
            kept.append(error)
        assert lease.ended
        await (await redlock("name", wait=20).aacquire()).arelease()
        return lease

    assert asyncio.run(main()).ended
    assert is_free(redlock)


@pytest.mark.slow
@pytest.mark.usefixtures("torn")
def test_a_torn_exit_stack_releases_when_the_exception_is_forgotten(
    lock: Lock, redlock: LockTemplate
) -> None:
    """A stack keeps what it asked the class for as long as the exception is kept, and no longer."""
    with pytest.raises(Interruption), ExitStack() as stack:
        stack.enter_context(lock)
    del stack
    gc.collect()
    assert is_free(redlock)


def test_an_end_that_is_never_awaited_releases(lock: Lock, redlock: LockTemplate) -> None:
    """The coroutine of a block's end that is dropped before it ran gives the name back."""

    async def main() -> None:
        lease = await lock.__aenter__()
        with pytest.warns(RuntimeWarning, match="never awaited"):
            lock.__aexit__(None, None, None)  # type: ignore[unused-coroutine]
        assert lease.ended
        async with redlock("name", wait=20):
            pass

    asyncio.run(main())


def test_a_refused_attempt_leaves_no_block(lock: Lock, redlock: LockTemplate) -> None:
    """Where the lock is not had, nothing is kept for the block."""
    before = len(with_blocks._open)
    with redlock("name"):
        for _ in range(3):
            with pytest.raises(LockTaken), lock:
                pass
        assert len(with_blocks._open) == before + 1
    assert len(with_blocks._open) == before
    assert not exits.leave._given.blocks or exits.leave._given.blocks[-1]() is None


def test_a_lease_whose_attempt_was_interrupted_is_not_told_to_be_lost(lock: Lock) -> None:
    """It is given back at once, and neither renewed nor told of, though its exception is kept."""
    told: list[Event] = []
    leases: list[Lease] = []

    def listen(event: Event) -> None:
        told.append(event)
        if event.kind is events.EventKind.ACQUIRED:
            assert event.lease is not None
            leases.append(cast("Lease", event.lease))
            raise KeyboardInterrupt

    events.subscribe(listen)
    try:
        with pytest.raises(KeyboardInterrupt), lock:
            pass
        assert [event.kind for event in told] == [events.EventKind.ACQUIRED]
        (lease,) = leases
        assert lease.ended
        assert not lease.held
    finally:
        events.unsubscribe(listen)


# -- which block ----------------------------------------------------------------------------------


def test_a_signal_handler_may_enter_blocks_between_the_steps_of_another(
    lock: Lock, redlock: LockTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that runs while a block is being entered enters and leaves blocks of its own."""
    entered: list[Lease] = []
    before = signal.getsignal(signal.SIGUSR1)

    def handler(*_: object) -> None:
        with redlock("other") as lease:
            entered.append(lease)

    enter = Lock.__enter__

    def interrupted(self: Lock) -> Lease:
        if self is lock and not entered:
            signal.raise_signal(signal.SIGUSR1)
        return enter(self)

    signal.signal(signal.SIGUSR1, handler)
    monkeypatch.setattr(Lock, "__enter__", interrupted)
    try:
        with lock as lease:
            seen = [each.ended for each in (*entered, lease)]
        assert seen == [True, False]
        assert lock.by_hand == []
        assert lease.ended
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert is_free(redlock)


def test_a_block_ends_in_another_thread_than_it_began(lock: Lock, redlock: LockTemplate) -> None:
    """A generator's block may end in any thread: it ends its own lease, not that of another."""

    def hold() -> Iterator[Lease]:
        with lock as lease:
            yield lease

    generator = hold()
    lease = next(generator)
    with redlock("other") as other:
        thread = threading.Thread(target=lambda: next(generator, None))
        thread.start()
        thread.join(60)
        assert lease.ended
        assert not other.ended


def test_a_block_in_a_block_of_the_same_lock(redlock: LockTemplate, backend: Any) -> None:
    """Two tenancies by one ``Lock`` end in turn, the inner one first."""
    lock = redlock("name")
    with lock as outer:
        backend.group.nodes[0].keys.clear()
        backend.group.nodes[1].keys.clear()
        with lock as inner:
            pass
        assert (inner.ended, outer.ended) == (True, False)
    assert outer.ended


def test_stacks_and_test_cases_enter_a_lock(lock: Lock, redlock: LockTemplate) -> None:
    """What asks the class for ``__exit__`` and passes the lock releases it, too."""
    with ExitStack() as stack:
        lease = assert_type(stack.enter_context(lock), Lease)
        assert not is_free(redlock)
        assert lock.by_hand == []
    assert lease.ended

    class Case(unittest.TestCase):
        def test(self) -> None:
            self.enterContext(lock)
            assert not is_free(redlock)

    class Tasks(unittest.IsolatedAsyncioTestCase):
        async def test(self) -> None:
            await self.enterAsyncContext(lock)
            with pytest.raises(LockTaken):
                await redlock("name").aacquire()

    for case in (Case("test"), Tasks("test")):
        result = case.run()
        assert result is not None
        assert (result.errors, result.failures) == ([], [])
        assert is_free(redlock)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(lock)
            assert lock.by_hand == []
        assert lease.ended

    asyncio.run(main())


def test_a_lock_is_a_context_manager_for_people_and_type_checkers(lock: Lock) -> None:
    """``with`` and ``async with`` give a ``Lease``, and a ``Lock`` counts as a context manager."""
    plain: AbstractContextManager[Lease] = lock
    awaited: AbstractAsyncContextManager[Lease] = lock
    assert issubclass(Lock, AbstractContextManager)
    assert issubclass(Lock, AbstractAsyncContextManager)

    async def main() -> None:
        async with awaited as lease:
            assert_type(lease, Lease)

    with plain as lease:
        assert_type(lease, Lease)
    asyncio.run(main())


# -- by hand --------------------------------------------------------------------------------------


def test_a_lock_is_entered_and_left_by_hand(lock: Lock, redlock: LockTemplate) -> None:
    """Who calls ``__enter__`` and ``__exit__`` itself has the lock in between."""
    lease = lock.__enter__()
    assert not is_free(redlock)
    assert lock.__exit__(None, None, None) is None  # type: ignore[func-returns-value]
    assert lease.ended
    assert is_free(redlock)
    leave = lock.__exit__
    lock.__enter__()
    leave(None, None, None)
    assert is_free(redlock)


def test_an_end_that_was_never_begun_is_told(lock: Lock) -> None:
    """Leaving a lock that nobody entered is a RuntimeError that names it."""
    with pytest.raises(RuntimeError, match=r"<Lock 'name' .*> is left, but nothing entered it"):
        lock.__exit__(None, None, None)


def test_who_replaces_the_end_keeps_the_old_one(
    lock: Lock, redlock: LockTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that wraps ``Lock.__exit__`` calls what it found there, for each block."""
    old: Any = Lock.__exit__
    ended: list[Lock] = []

    def wrapped(self: Lock, *error: Any) -> None:
        ended.append(self)
        old(self, *error)

    monkeypatch.setattr(Lock, "__exit__", wrapped)
    for _ in range(2):
        with lock, redlock("other"):
            assert not is_free(redlock)
        assert is_free(redlock)
        assert is_free(redlock, "other")
    assert len(ended) >= 4
