"""Locks of somebody else, leases whose time is over, and assertions about names, for tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final, Self, TypeVar, overload

from django_redlock import conf, redlock
from django_redlock.backend import LABEL_BYTES
from django_redlock.core import hold
from django_redlock.core.names import check_alias
from django_redlock.core.reasons import printable
from django_redlock.inspection import HeldLock, LockStatus, survey
from django_redlock.inspection.survey import entries_of, slots_taken
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.locks.options import check_limit

from . import leaks

SOMEBODY: Final = "somebody else"
FREE: Final = frozenset({LockStatus.FREE, LockStatus.PARTIAL})


F = TypeVar("F", bound=Callable[..., Any])


@overload
def taken(
    *names: str, alias: str = "default", holder: str = SOMEBODY, limit: None = None
) -> Lock: ...
@overload
def taken(
    *names: str, alias: str = "default", holder: str = SOMEBODY, limit: int
) -> TakenSlots: ...
def taken(
    *names: str, alias: str = "default", holder: str = SOMEBODY, limit: int | None = None
) -> Lock | TakenSlots:
    """Let somebody else hold these names, all of them or none, in a ``with`` or ``async with``.

    The names are really taken: by a grant of the nodes, which is renewed until the block ends. So
    every attempt for one of them raises ``LockTaken``, in this process and in others; one that
    waits gets the lock when the block ends. The lease is not that of the running code:
    ``current_lease()`` and ``assert_locked()`` do not know it, and it sends no signal, metric or
    log line. It can also decorate a test function.

    Args:
        names: of locks, as text.
        alias: the alias whose nodes are asked.
        holder: the owner label that others find, 1 to 200 bytes of printable text.
        limit: that of a limited lock: the slots from 0 to ``limit - 1`` are taken. Fewer than the
            running code's limit leaves it the others. None: the locks have no limit.

    Raises:
        LockTaken: at the entry: a name is taken already.
        NodesUnavailable: at the entry: no majority of the nodes could be asked.
        TypeError, ValueError: an argument makes no sense; the text says which.
    """
    if not names or any(map(callable, names)):  # the function, of a decorator without parentheses
        raise TypeError("taken() needs the name of a lock: taken('report:7')")
    check_alias(alias)
    if not isinstance(holder, str):
        raise TypeError(f"holder must be text, not {type(holder).__name__}")
    if not (holder.isprintable() and 0 < len(holder.encode()) <= LABEL_BYTES):
        raise ValueError(f"holder must be 1 to {LABEL_BYTES} bytes of printable text")
    theirs = redlock.using(
        alias,
        label=holder,
        foreign=_foreign,
        wait=0,
        renew=True,
        max_hold=float("inf"),
        durable=False,  # a transaction of the test is not theirs
    )
    if limit is None:
        return theirs(list(names))
    check_limit(limit)
    return TakenSlots([theirs(name, limit=limit) for name in names for _ in range(limit)])


class TakenSlots:
    """All slots of limited locks, in the hands of somebody else; see ``taken``."""

    def __init__(self, locks: list[Lock]) -> None:
        self._locks = locks  # each takes one slot
        self._stack, self._async_stack = ExitStack(), AsyncExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for lock in self._locks:
                await stack.enter_async_context(lock)
            self._async_stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._async_stack.aclose()

    def __call__(self, function: F) -> F:
        """Take the slots around each call of a function, ``def`` or ``async def``.

        Fields of the names are filled from its arguments.
        """
        for lock in self._locks:
            function = lock(function)
        return function


def _foreign(lease: Lease) -> None:
    lease.tell_once()
    leaks.note(lease)


def stale(lease: Lease) -> None:
    """End the time of a lease now, as if its holder had been paused for longer than the ttl.

    When this returns, ``lease.remaining()`` is 0, ``lease.ensure()`` raises ``LeaseLost``, the
    signal ``lease_lost`` is sent and ``on_lost`` called, the watchdog renews the lease no more,
    and the nodes have forgotten it: a successor can take the name, with a higher fence. The
    ``with`` block of the lease may be open, and goes on.

    It asks the nodes by a blocking call, also in an event loop: for one round trip.

    Args:
        lease: one that is held; of one that is lost already no event is sent.

    Raises:
        TypeError: this is no lease.
        ValueError: the lease was released or given away, or belongs to the parent process.
    """
    if not hasattr(lease, "fence"):
        hint = ": write stale(run.lease)" if hasattr(lease, "lease") else ""
        raise TypeError(f"stale() takes a lease, not {type(lease).__name__}{hint}")
    if lease.ended:
        raise ValueError(f"{lease!r} has ended; stale() takes a lease that is held")
    backend = lease.backend
    lease.expire()  # first: a holder that relies on it while its key is gone would be a second one
    backend.run(hold.release(backend.policy, lease.grant))
    lease.tell_lost()


def assert_free(*names: str, alias: str = "default", limit: int | None = None) -> None:
    """Check that all these names are free, by asking the nodes: as a lock, and each of its slots.

    A name that ``min_hold`` keeps is not free, nor is one whose work is recorded as done; one that
    a minority of the nodes has is. It asks by a blocking call, also in an event loop.

    Args:
        names: of locks, as text.
        alias: the alias whose nodes are asked.
        limit: that of a limited lock: none of these slots is taken, and no other is looked at.
            ``state().each`` of the lock tells of single slots.

    Raises:
        AssertionError: a name is taken, and by which holder; or no majority of the nodes votes.
        TypeError, ValueError: an argument makes no sense; the text says which.
    """
    looked = _look("assert_free", names, alias, limit)
    if limit is None:
        backend = conf.backend(alias)
        looked += tuple(slot for name in names for slot in slots_taken(backend, name))
    for lock in looked:
        if lock.status not in FREE:
            raise AssertionError(_sentence(lock, alias))


def assert_taken(*names: str, alias: str = "default", limit: int | None = None) -> None:
    """Check that each of these names is taken, by asking the nodes as ``assert_free`` does.

    It does not matter by whom: ``assert_locked`` checks that the running code holds a name.

    Args:
        names: of locks, as text.
        alias: the alias whose nodes are asked.
        limit: that of a limited lock: all of its slots are taken.

    Raises:
        AssertionError: a name is free; or no majority of the nodes votes.
        TypeError, ValueError: an argument makes no sense; the text says which.
    """
    for lock in _look("assert_taken", names, alias, limit):
        if lock.status in FREE:
            raise AssertionError(f"{lock.quoted} of {alias!r} is free")


def _look(
    caller: str, names: tuple[str, ...], alias: str, limit: int | None
) -> tuple[HeldLock, ...]:
    if not names:
        raise TypeError(f"{caller}() needs the name of a lock: {caller}('report:7')")
    entries = list(names)
    if limit is not None:
        check_limit(limit)
        entries = [slot for name in names for slot in entries_of(name, limit)]
    found = survey(conf.backend(alias), entries)
    if not found.complete:
        raise AssertionError(f"no majority of the nodes of {alias!r} votes: {found.summary}")
    return found.locks


def _sentence(lock: HeldLock, alias: str) -> str:
    holder = f"by {printable(lock.holder)}" if lock.holder else "by a holder without a label"
    if lock.status is LockStatus.RESTING:
        holder = "by min_hold, though it is released"
    if lock.status is LockStatus.DONE:
        return f"{lock.quoted} of {alias!r} is not free: its work is recorded as done"
    left = "" if lock.highest is None else f", for {lock.highest:.1f} s unless it is renewed"
    return f"{lock.quoted} of {alias!r} is taken {holder}{left}"
