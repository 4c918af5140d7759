"""Which lease ends with which block, and what is left of a block that is torn open."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import threading
import unittest
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
)
from typing import Any, assert_type, cast

import pytest

from django_redlock import LockTaken, current_lease, events
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.core.reasons import ReasonCode
from django_redlock.events import Event, EventKind
from django_redlock.interruption import Block, blocks_by_hand
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import RenewalBatch
from django_redlock.locks.lock import Lock, ablock_exit, block_exit
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from tests.support.listening import heard
from tests.support.waiting import eventually


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
def torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is interrupted before the first statement of its end."""

    def interrupted(*_: object) -> None:
        raise Interruption

    for end in (block_exit, ablock_exit):
        monkeypatch.setattr(end, "_leave", interrupted)


@pytest.fixture
def frozen() -> Iterator[None]:
    """What is there so far is not looked at by the garbage collector: a collection is quick."""
    gc.freeze()
    yield
    gc.unfreeze()


def is_renewed(lease: Lease) -> bool:
    """Whether the watchdog will renew it."""
    return lease.held and lease.renew_at < math.inf


# -- torn open ------------------------------------------------------------------------------------


def tear(lock: Lock, in_it: Callable[[Lease], object], *, tasks: bool) -> Exception:
    """Enter a block that is interrupted at its end; return the exception."""

    def in_a_thread() -> None:
        with lock as lease:
            in_it(lease)

    async def in_a_task() -> None:
        async with lock as lease:
            in_it(lease)

    with pytest.raises(Interruption) as caught:
        asyncio.run(in_a_task()) if tasks else in_a_thread()
    return caught.value


in_both = pytest.mark.parametrize("tasks", [False, True], ids=["thread", "task"])


@in_both
@pytest.mark.usefixtures("torn")
def test_a_torn_block_is_renewed_no_more_although_its_lease_and_the_exception_are_kept(
    lock, redlock, tasks
):
    """Its name stays taken until the ttl, and the running code is in no block any more."""
    leases: list[Lease] = []
    renewed: list[bool] = []

    def in_it(lease: Lease) -> None:
        leases.append(lease)
        renewed.append(is_renewed(lease))

    kept = tear(lock, in_it, tasks=tasks)
    (lease,) = leases
    assert lease.torn
    assert (renewed, is_renewed(lease)) == ([True], False)
    assert not is_free(redlock)
    assert current_lease() is None
    assert RenewalBatch(lease.backend, [weakref.ref(lease)]).leases == []
    before = lease.grant.deadline
    lease.extend()
    assert lease.grant.deadline > before
    lease.release()
    assert is_free(redlock)
    assert kept.__traceback__  # until here


@in_both
@pytest.mark.usefixtures("torn", "frozen")
def test_the_name_of_a_torn_block_is_free_after_its_ttl(redlock, tasks):
    """The log and the listeners are told why; nothing keeps the lease any longer."""
    lost: list[Lease] = []
    lock = redlock("name", ttl=0.2, wait=60, on_lost=lost.append)
    with heard(EventKind.LOST) as told:
        tear(lock, bool, tasks=tasks)
        eventually(lambda: told)
    eventually(lambda: is_free(redlock))  # the nodes keep it for as long as clocks may differ
    assert [getattr(each.error, "code", "") for each in told] == [ReasonCode.NEVER_RELEASED]
    assert lost == []  # who held it has gone
    lease = weakref.ref(cast("Lease", told.pop().lease))
    eventually(lambda: gc.collect() >= 0 and lease() is None)


@pytest.mark.usefixtures("torn", "frozen")
def test_a_torn_exit_stack_is_renewed_no_longer_than_its_exception_is_kept(lock, redlock):
    """A stack keeps what it asked the class for as long as the exception is kept, and no longer."""
    with pytest.raises(Interruption) as caught, ExitStack() as stack:
        lease = stack.enter_context(lock)
    assert is_renewed(lease)
    del stack, caught
    gc.collect()
    assert lease.torn
    lease.release()
    assert is_free(redlock)


def test_an_end_that_is_never_awaited_ends_the_renewal(lock: Lock) -> None:
    """The coroutine of a block's end is dropped before it ran: nothing is released."""

    async def main() -> None:
        end = lock.__aexit__
        lease = await lock.__aenter__()
        coroutine: Any = end(None, None, None)
        assert is_renewed(lease)
        del end
        assert lease.torn
        coroutine.close()
        assert lease.torn
        await lease.arelease()

    asyncio.run(main())


@pytest.mark.parametrize("way", ["block", "stack", "by hand"])
@pytest.mark.parametrize("interruptions", [1, 2])
def test_how_many_interruptions_an_end_survives(lock, redlock, monkeypatch, way, interruptions):
    """After one the name is free; after two its lease, if something keeps it, is not renewed."""
    left = [Interruption() for _ in range(interruptions)]
    release = Lease.release
    kept: list[Lease] = []

    def interrupted(self: Lease) -> None:
        if left:
            raise left.pop()
        release(self)

    def work() -> None:
        if way == "by hand":
            kept.append(lock.__enter__())
            lock.__exit__(None, None, None)
        elif way == "stack":
            with ExitStack() as stack:
                kept.append(stack.enter_context(lock))
        else:
            with lock as lease:
                kept.append(lease)

    monkeypatch.setattr(Lease, "release", interrupted)
    with pytest.raises(Interruption) as caught:
        work()
    (lease,) = kept
    assert not is_renewed(lease)
    assert blocks_by_hand(lock) == []
    assert is_free(redlock) == (interruptions == 1)
    lease.release()
    del caught  # until here, it keeps the frames of the end


def test_a_task_that_is_cancelled_at_its_end_releases(lock: Lock, redlock: LockTemplate) -> None:
    """The request is sent before it is awaited; a second cancellation ends the waiting alone."""

    async def main() -> None:
        for cancellations in (1, 2):
            inside = asyncio.Event()

            async def work(inside: asyncio.Event = inside) -> None:
                async with lock:
                    inside.set()
                    await asyncio.sleep(60)

            task = asyncio.ensure_future(work())
            await inside.wait()
            for _ in range(cancellations):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            async with redlock("name", wait=20):
                pass

    asyncio.run(main())


@pytest.mark.usefixtures("frozen")
def test_a_lease_that_a_program_forgets_is_renewed_no_more(redlock: LockTemplate) -> None:
    """Whether it was acquired or entered by hand: no schedule keeps it."""
    leases = [
        weakref.ref(redlock("acquired").acquire()),
        weakref.ref(redlock("by hand").__enter__()),
    ]
    gc.collect()
    assert [lease() for lease in leases] == [None, None]
    assert not is_free(redlock, "acquired")
    assert not is_free(redlock, "by hand")


# -- closed by the garbage collector --------------------------------------------------------------


class Cycle:
    """Something that refers to itself, and so lives until garbage is collected."""

    def __init__(self) -> None:
        self.kept: list[Any] = [self]

    def keep(self, *kept: Any) -> None:
        """Hold these."""
        self.kept += kept


def in_a_block(lock: Lock, last: Callable[[], None]) -> Iterator[None]:
    """Hold the lock until this is closed."""
    with lock:
        try:
            yield
        finally:
            last()


def by_stack(lock: Lock, last: Callable[[], None]) -> Iterator[None]:
    """The same with an ``ExitStack``."""
    with ExitStack() as stack:
        stack.enter_context(lock)
        try:
            yield
        finally:
            last()


def closed_generator(lock: Lock, last: Callable[[], None]) -> None:
    """A generator that is dropped in a cycle."""
    generator = in_a_block(lock, last)
    next(generator)
    Cycle().keep(generator)


def closed_manager(lock: Lock, last: Callable[[], None]) -> None:
    """A context manager that is a generator, which was entered and dropped in a cycle."""
    manager = contextmanager(in_a_block)(lock, last)
    manager.__enter__()
    Cycle().keep(manager)


def closed_stack(lock: Lock, last: Callable[[], None]) -> None:
    """A generator that holds the lock by a stack."""
    generator = by_stack(lock, last)
    next(generator)
    Cycle().keep(generator)


def closed_task(lock: Lock, last: Callable[[], None]) -> None:
    """A task that nobody keeps, and that waits for what nobody keeps."""

    async def work(inside: asyncio.Event) -> None:
        async with lock:
            inside.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                last()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        inside = asyncio.Event()
        asyncio.ensure_future(work(inside))  # noqa: RUF006 - that is the mistake
        await inside.wait()
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())


def closed_async_generator(lock: Lock, last: Callable[[], None]) -> None:
    """An asynchronous generator that is dropped in a cycle; its loop closes it."""

    async def work() -> AsyncIterator[None]:
        async with lock:
            try:
                yield
            finally:
                last()

    async def main() -> None:
        generator = work()
        await anext(generator)
        Cycle().keep(generator)
        del generator
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())


CLOSED = [closed_generator, closed_manager, closed_stack, closed_task, closed_async_generator]


def elsewhere(job: Callable[[], object]) -> None:
    """Do a job that the garbage collector may not do."""
    thread = threading.Thread(target=job)
    thread.start()
    thread.join()


def second_holders(
    close: Callable[[Lock, Callable[[], None]], None], redlock: LockTemplate
) -> list[bool]:
    """Whether a second holder got in while the rest of such a block ran."""
    entered: list[bool] = []

    def last() -> None:
        elsewhere(lambda: entered.append(is_free(redlock)))

    close(redlock("name"), last)
    gc.collect()
    return entered


@pytest.mark.usefixtures("frozen")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of asyncio
@pytest.mark.parametrize("close", CLOSED)
def test_the_rest_of_a_block_that_the_collector_closes_runs_under_the_lock(redlock, close):
    """Weak references are cleared before a generator is closed; nothing is freed by that."""
    assert second_holders(close, redlock) == [False]
    eventually(lambda: is_free(redlock))  # a thread of the background releases


@pytest.mark.usefixtures("frozen")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("close", CLOSED)
def test_a_callback_that_releases_is_noticed(redlock, monkeypatch, close):
    """The test above fails where the death of a block's function releases."""
    kept: list[object] = []
    keep = Block.keep

    def keeping(self: Block, lease: Lease) -> None:
        keep(self, lease)
        assert self.function is not None
        kept.append(weakref.ref(self.function(), lambda _: elsewhere(lease.release)))

    monkeypatch.setattr(Block, "keep", keeping)
    assert second_holders(close, redlock) == [True]


def test_a_lease_whose_attempt_was_interrupted_is_not_told_to_be_lost(lock: Lock) -> None:
    """It is given back at once, and neither renewed nor told of, though its exception is kept."""
    told: list[Event] = []
    leases: list[Lease] = []

    def listen(event: Event) -> None:
        told.append(event)
        if event.kind is EventKind.ACQUIRED:
            assert event.lease is not None
            leases.append(cast("Lease", event.lease))
            raise KeyboardInterrupt

    events.subscribe(listen)
    try:
        with pytest.raises(KeyboardInterrupt), lock:
            pass
        assert [event.kind for event in told] == [EventKind.ACQUIRED]
        (lease,) = leases
        assert lease.ended
        assert not lease.held
    finally:
        events.unsubscribe(listen)


# -- which block ----------------------------------------------------------------------------------


def test_a_signal_handler_may_enter_blocks_between_the_steps_of_another(lock, redlock, monkeypatch):
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
        assert blocks_by_hand(lock) == []
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
        elsewhere(lambda: next(generator, None))
        assert lease.ended
        assert not other.ended


def test_stacks_and_test_cases_enter_a_lock(lock: Lock, redlock: LockTemplate) -> None:
    """What asks the class for ``__exit__`` and passes the lock releases it, too."""
    with ExitStack() as stack:
        lease = assert_type(stack.enter_context(lock), Lease)
        assert not is_free(redlock)
        assert blocks_by_hand(lock) == []
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
            assert blocks_by_hand(lock) == []
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
    end = lock.__exit__
    lock.__enter__()
    end(None, None, None)
    assert is_free(redlock)


def test_who_replaces_the_end_keeps_the_old_one(lock, redlock, monkeypatch):
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
