"""Give each ``with`` block an object of its own, and release its lease when that object is dropped.

A signal handler may raise at any call, also between the end of a block's body and the first
statement of ``__exit__``. No code of this package runs then. But Python drops what the block has
left on the stack of its frame: what ``type(lock).__exit__`` returned when the block began.
So ``__exit__`` is a descriptor: it gives each block a function of its own, and a weak reference
to that function (``Block``) releases the lease when the function goes without having been called
to its end. The function is a ``functools.partial``: while it is called no Python frame holds it, so
a traceback does not keep it.

``with`` looks ``__exit__`` up before it calls ``__enter__``, in the same thread. So ``__enter__``
takes the newest function that was made for its lock in this thread. If there is none, since the
program calls ``lock.__enter__()`` itself, no object tells when the block is over: the ``Lock`` then
holds the lease until ``lock.__exit__()``, and a weak reference to the lease releases it when both
are forgotten.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from django_redlock.concurrency.loops import running_loop
from django_redlock.core import hold
from django_redlock.core.hold import hand_over

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Grant

MOST_GIVEN: Final = 16  # functions of a thread that await an ``__enter__``; nearly always one does
_numbers: Final = itertools.count()
_open: Final[dict[int, Block]] = {}  # blocks that hold a lease


class Schedule(Protocol):
    """The part of a ``RenewalSchedule`` in which a lease is: what its end uses."""

    def forget(self, lease: Any) -> None:
        """Drop a lease that has ended."""


class Held(Protocol):
    """The part of a lease that its block uses; see ``lease``."""

    block: Block | None
    schedules: tuple[Schedule, ...]

    @property
    def backend(self) -> Backend:
        """The backend of its alias."""

    @property
    def grant(self) -> Grant:
        """What the nodes granted."""

    def abandon(self) -> None:
        """Release the lease; may be called in the middle of anything."""


class Inside(Protocol):
    """What a block has begun inside its lock, and ends before the release."""

    def roll_back(self) -> None:
        """Undo it, unless it has ended; may be called in the middle of anything."""


class Block(weakref.ref[Any]):
    """A block that is entered: a weak reference to the object that is dropped with it.

    Attributes:
        number: by which its function finds it.
        lock: the ``Lock`` that is entered; None: any, since ``__exit__`` of the class was read.
        where: the frame and its code that read that.
        lease: what to release; None: the lease itself is the object that this refers to.
        inside: what to roll back before that, if anything.
        grant, backend, pid: how to release it then, and in which process.
    """

    __slots__ = ("backend", "grant", "inside", "lease", "lock", "number", "pid", "where")

    number: int
    lock: object
    where: tuple[int, CodeType] | None
    lease: Any
    inside: Inside | None
    grant: Grant
    backend: Backend
    pid: int

    def keep(self, lease: Held) -> None:
        """Hold the lease until the block ends."""
        self.lease = lease
        lease.block = self
        _open[self.number] = self


class BlockExit:
    """The descriptor ``__exit__`` or ``__aexit__`` of ``Lock``: gives each block a function.

    Args:
        leave: called with the lock, the block's number, and what ``__exit__`` is called with.
        awaited: whether it is ``__aexit__``, so that ``leave`` returns an awaitable.
    """

    def __init__(self, leave: Callable[..., Any], *, awaited: bool = False) -> None:
        self._leave = leave
        self._leave_any = functools.partial(_aleave_any if awaited else _leave_any, leave)
        self._given = _Given()

    def __get__(self, lock: object, _: type | None = None) -> functools.partial[Any]:
        number, where = next(_numbers), None
        if lock is None:
            function = functools.partial(self._leave_any, number)
            where = _where(sys._getframe(1))  # noqa: SLF001 - inspect's name for it is slow
        else:
            function = functools.partial(self._leave, lock, number)
        block = Block(function, _dropped)
        block.number, block.lock, block.lease, block.where = number, lock, None, where
        block.inside = None
        self._given.blocks.append(block)
        return function

    def entered(self, lock: object) -> Block | None:
        """Return the block that is being entered; None: ``__enter__`` is called by hand.

        A signal handler may have entered others since.
        """
        given = self._given.blocks
        for block in reversed(tuple(given)):
            if block() is None:
                given.remove(block)
            elif block.lock is lock or (
                block.where is not None and block.where == _where(sys._getframe(2))  # noqa: SLF001 - as above
            ):
                given.remove(block)
                block.lock = lock
                return block
        return None


def _leave_any(leave: Callable[..., Any], number: int, lock: object, *error: Any) -> None:
    """Leave for a caller that reads ``__exit__`` of the class, as ``contextlib.ExitStack`` does."""
    try:
        leave(lock, number, *error)
    except BaseException:  # the caller may keep this function for long
        abandon(number)
        raise


async def _aleave_any(leave: Callable[..., Any], number: int, lock: object, *error: Any) -> None:
    """Do the same in a task."""
    try:
        await leave(lock, number, *error)
    except BaseException:  # as above
        abandon(number)
        raise


def _where(frame: FrameType) -> tuple[int, CodeType]:
    """Identify the frame without keeping it; a later frame with its id runs other code."""
    return id(frame), frame.f_code


class _Given(threading.local):
    """The blocks of a thread whose functions await an ``__enter__``, the newest last."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque(maxlen=MOST_GIVEN)


def lease_of(number: int, lock: object) -> Any:
    """Return the lease that this block of the lock holds; None: it was entered by hand."""
    block = _open.get(number)
    return block.lease if block is not None and block.lock is lock else None


def hold_by(guard: object, lease: Held) -> None:
    """Release the lease when ``guard`` is dropped, and no more with its block so far."""
    block, before = Block(guard, _dropped), lease.block
    block.number, block.lock, block.inside = next(_numbers), None, None
    block.keep(lease)
    if before is not None:
        _open.pop(before.number, None)


def release_if_forgotten(lease: Held) -> None:
    """Release the lease when the last reference to it goes.

    A weak reference, not ``__del__``: that would run for every lease, and swallow a Ctrl-C that
    arrives in it.
    """
    block = Block(lease, _dropped)
    block.number, block.lease, block.pid = next(_numbers), None, os.getpid()
    block.inside = None
    block.backend, block.grant = lease.backend, lease.grant
    lease.block = block
    _open[block.number] = block


def need_no_more(lease: Held) -> None:
    """Note that a lease has ended: nothing watches it, nor releases it when it is forgotten."""
    for schedule in lease.schedules:
        schedule.forget(lease)
    if lease.block is not None and lease.block.lease is None:
        close(lease)


def close(lease: Held) -> None:
    """Note that the block of the lease has ended."""
    block, lease.block = lease.block, None
    if block is not None:
        _open.pop(block.number, None)


def abandon(number: int) -> None:
    """Release the lease of this block, unless the block has ended."""
    block = _open.pop(number, None)
    if block is None:
        return
    try:
        if block.inside is not None:
            block.inside.roll_back()
    finally:
        if block.lease is not None:
            block.lease.abandon()
        elif block.pid == os.getpid():
            give_back(block.backend, block.grant)


def _dropped(block: Block) -> None:
    abandon(block.number)


def give_back(backend: Backend, grant: Grant) -> None:
    """Release a grant in the middle of anything; in an event loop later, without blocking."""
    loop = running_loop()
    if loop is None:
        backend.run(hold.release(backend.policy, grant))
    else:
        ask = hand_over(backend.policy, grant.target, grant.nonce, grant.touched)
        loop.call_soon(backend.group.aask, ask)
