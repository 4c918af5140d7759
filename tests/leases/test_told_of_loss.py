"""Who is told of a loss, and of a renewal that failed: everybody, in time, and once."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import re
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_redlock import LeaseLost, NodesUnavailable, events
from django_redlock.core import hold
from django_redlock.core.protocol import Command, Request
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import MOST_TOLD
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.background import WorkerThreads
from tests.support.listening import heard
from tests.support.waiting import eventually

from .test_renewal import Memory, made, prolonged


@pytest.fixture
def redlock() -> LockTemplate:
    """Locks over nodes of this test alone."""
    return made(Memory())


# -- of a loss ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_callbacks_that_never_return_stop_neither_losses_nor_renewals_of_others(redlock):
    """Each holder is told at its own deadline, whatever the others do with the news."""
    free, blocked, told = threading.Event(), [], threading.Event()

    def block(lease: Lease) -> None:
        blocked.append(lease)
        free.wait(120)

    try:
        stuck = [
            redlock(f"stuck {i}", ttl=1, wait=60, renew=False, on_lost=block).acquire()
            for i in range(3)
        ]
        eventually(lambda: len(blocked) == 3)
        lock = redlock("other", ttl=1, wait=60, renew=False, on_lost=lambda _: told.set())
        lease = lock.acquire()
        assert told.wait(60)
        assert lease.lost
        assert all(each.lost for each in stuck)
        with redlock("kept") as kept:
            prolonged(kept)
    finally:
        free.set()


@pytest.mark.slow
def test_so_many_are_told_at_once_and_no_more(redlock):
    """Ten thousand losses are no ten thousand threads."""
    free, told = threading.Event(), []

    def block(lease: Lease) -> None:
        told.append(lease)
        free.wait(120)

    try:
        lost = [
            redlock(f"many {i}", ttl=1, wait=60, renew=False, on_lost=block).acquire()
            for i in range(MOST_TOLD + 8)
        ]
        eventually(lambda: len(told) == MOST_TOLD)
    finally:
        free.set()
    eventually(lambda: len(told) == len(lost))


def test_jobs_of_one_kind_are_done_in_turns():
    """By one thread, unless more are allowed; and none is left when there is nothing to do."""
    done: list[object] = []
    workers, free = WorkerThreads(), threading.Event()
    workers.do("one", lambda: free.wait(120))
    for i in range(5):
        workers.do("one", functools.partial(done.append, i))
    workers.do("other", lambda: done.append("other"))
    eventually(lambda: done == ["other"])
    free.set()
    eventually(lambda: done == ["other", 0, 1, 2, 3, 4])
    eventually(lambda: not workers._workers and not workers._jobs)


@pytest.mark.slow
def test_the_log_tells_of_a_loss_that_nobody_asked_to_be_told_of(redlock, caplog):
    """At the deadline, not at the release: also of a lease that is not renewed."""
    with caplog.at_level(logging.WARNING, "django_redlock"):
        lease = redlock("name", ttl=1, wait=60, renew=False).acquire()
        eventually(lambda: caplog.records)
        assert lease.lost
    assert [record.redlock_event for record in caplog.records] == ["lost"]


class Awaited:
    """Called like a function, but to be awaited."""

    async def __call__(self, lease: Lease) -> None:
        """Do nothing, if awaited."""


async def awaited(lease: Lease) -> None:
    """Do nothing, if awaited."""


@pytest.mark.parametrize("on_lost", [awaited, Awaited(), functools.partial(awaited)])
def test_a_callback_that_had_to_be_awaited_is_refused(redlock, on_lost):
    """Nobody could await it where no event loop runs, and it would never run."""
    with pytest.raises(TypeError, match=r"on_lost must be a plain function.*threadsafe"):
        redlock("name", on_lost=on_lost)


# -- of a renewal that failed ---------------------------------------------------------------------


def deaf(ask: Request) -> None:
    """Prolong nothing."""
    if ask.command is Command.EXTEND:
        raise OSError("no network")


def renews_after(lease: Lease, when: float) -> Callable[[], bool]:
    """What tells whether its next renewal is later than then."""
    return lambda: lease.renew_at > when


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_a_renewal_that_fails_is_told_once_for_each_outage(caplog):
    """The lease is unknown, and stands: there is time to do something before it is lost."""
    group, kinds = Memory(), events.EventKind
    with (
        caplog.at_level(logging.WARNING, "django_redlock"),
        made(group)("name") as lease,
        heard(kinds.UNKNOWN, kinds.EXTENDED, kinds.LOST) as told,
    ):
        for outage in range(1, 3):
            group.before = deaf
            eventually(lambda: told and told[-1].kind is kinds.UNKNOWN)
            eventually(renews_after(lease, lease.renew_at))  # once more, and is not told
            group.before = lambda _: None
            eventually(lambda: told[-1].kind is kinds.EXTENDED)
            unknown = [event for event in told if event.kind is kinds.UNKNOWN]
            assert len(unknown) == outage
            assert unknown[-1].lease is lease
            assert "could not be asked" in str(unknown[-1].error)
        assert not lease.lost
    logged = [getattr(record, "redlock_event", None) for record in caplog.records]
    assert logged.count("not renewed") == 2


def test_what_another_has_prolonged_since_is_not_unknown(redlock):
    """A renewal that comes too late proves nothing; and ``extend`` ends an outage, too."""
    lease = redlock("name", renew=False).acquire()
    asked, clock = lease.grant.since, lease.backend.policy.clock
    lease.extend()
    with heard(events.EventKind.UNKNOWN) as told:
        lease.hear_renewal(LeaseLost("over before a majority extended it"), asked)
        lease.hear_renewal(NodesUnavailable("nobody answered"), asked)
        assert told == []
        for outage in range(1, 3):
            for _ in range(2):
                lease.hear_renewal(NodesUnavailable("nobody answered"), clock() + 1)
            assert len(told) == outage
            lease.extend()
    lease.release()


# -- whose lease ends with a block ----------------------------------------------------------------


def test_a_block_that_ends_in_another_thread_releases_nobody_elses_lease(redlock):
    """One ``Lock`` for two: the end of a block whose lease was lost leaves the other's alone."""
    lock = redlock("name")
    first = lock.__enter__()
    first.backend.run(hold.release(first.backend.policy, first.grant))  # by force
    with pytest.raises(LeaseLost):
        first.extend()
    with ThreadPoolExecutor(1) as elsewhere, ThreadPoolExecutor(1) as knows_neither:
        second = elsewhere.submit(lock.__enter__).result()
        knows_neither.submit(lock.__exit__, None, None, None).result()
        assert not second.ended
        elsewhere.submit(lock.__exit__, None, None, None).result()
    assert second.ended


# -- of a lease that nobody released --------------------------------------------------------------


def forgets(redlock: LockTemplate) -> None:
    """Take a lock, and keep nothing of it."""
    redlock("forgotten").acquire()


def forgets_what_never_renews(redlock: LockTemplate) -> None:
    """The same of a lease that is looked at when its ttl is over."""
    redlock("forgotten", ttl=0.3, wait=60, renew=False).acquire()


def forgets_in_a_loop(redlock: LockTemplate) -> None:
    """The same in a loop that is closed at once."""

    async def main() -> None:
        await redlock("forgotten").aacquire()

    asyncio.run(main())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("forget", [forgets, forgets_what_never_renews, forgets_in_a_loop])
def test_a_lease_that_was_forgotten_is_a_resource_warning(redlock, forget):
    """Once, by a thread of the package: a finalizer would swallow what a signal handler raises."""

    def of_ours() -> list[str]:  # other tests of the process forget some, too
        texts = [str(each.message) for each in caught if each.category is ResourceWarning]
        return [text for text in texts if "'forgotten'" in text]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forget(redlock)
        gc.collect()
        eventually(of_ours)
    (text,) = of_ours()
    assert re.search("'forgotten' was forgotten .*: keep what", text)


@pytest.mark.usefixtures("often")
def test_no_other_lease_is_told_as_forgotten(redlock, recwarn):
    """One that was released, left, given away or lost."""
    with redlock("left"):
        pass
    redlock("released").acquire().release()
    redlock("given").acquire().handle()
    with heard(events.EventKind.LOST) as told:
        lease = redlock("lost", ttl=0.3, wait=60, renew=False).acquire()
        eventually(lambda: told)
        del lease
    gc.collect()
    with redlock("later") as later:  # the schedule is looked at for this one
        prolonged(later)
    ours = ("'released'", "'left'", "'given'", "'lost'")
    assert not [each for each in recwarn if any(name in str(each.message) for name in ours)]
