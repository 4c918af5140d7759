"""Give each ``with`` block an object of its own, and release its lease when that object is dropped.

A signal handler may raise at any call, also in the calls between the end of a block's body and
the first statement of ``__exit__``. No code of ours runs then. But Python drops what the block has
left on the stack of its frame, and that is what ``type(lock).__exit__`` gave when the block began.
So ``__exit__`` is a descriptor: it gives each block a function of its own, and a weak reference
to that function (``Block``) releases the lease when the function goes without having been called
to its end. The function is a ``functools.partial``: while it is called no Python frame holds it, so
a traceback does not keep it.

``with`` asks for ``__exit__`` before it calls ``__enter__``, in the same thread. So ``__enter__``
takes the newest function that was given for its lock in this thread. Where nobody asked, since a
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


class Held(Protocol):
    """A lease, as far as its block uses it; see ``lease``."""

    block: Block | None

    @property
    def backend(self) -> Backend:
        """Whose nodes have it."""

    @property
    def tenancy(self) -> Grant:
        """What the nodes granted."""

    def abandon(self) -> None:
        """Release it in the middle of anything."""


class Block(weakref.ref[Any]):
    """A block that is entered: a weak reference to what ends with it.

    Attributes:
        number: by which its function finds it.
        lock: which ``Lock`` is entered; None: any, since ``Lock.__exit__`` was asked for.
        where: the frame and its code that asked for that.
        lease: what to release; None: the lease itself is what this refers to.
        grant, backend, pid: how to release it then, and in which process.
    """

    __slots__ = ("backend", "grant", "lease", "lock", "number", "pid", "where")

    number: int
    lock: object
    where: tuple[int, CodeType] | None
    lease: Any
    grant: Grant
    backend: Backend
    pid: int

    def keep(self, lease: Held) -> None:
        """Hold the lease until the block ends."""
        self.lease = lease
        lease.block = self
        _open[self.number] = self


class Leaving:
    """``__exit__`` or ``__aexit__`` of ``Lock``: gives each block a function of its own.

    Args:
        leave: called with the lock, the block's number, and what ``__exit__`` is called with.
        leave_any: the same with number and lock exchanged, for those who ask the class for
            ``__exit__`` and pass the lock, as ``contextlib.ExitStack`` does.
    """

    def __init__(self, leave: Callable[..., Any], leave_any: Callable[..., Any]) -> None:
        self._leave = leave
        self._leave_any = leave_any
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
        self._given.blocks.append(block)
        return function

    def entered(self, lock: object) -> Block | None:
        """The block that is being entered; None: ``__enter__`` is called by hand.

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


def _where(frame: FrameType) -> tuple[int, CodeType]:
    """The frame, which must not be kept; others that have its number later run other code."""
    return id(frame), frame.f_code


class _Given(threading.local):
    """The functions of a thread that await an ``__enter__``, the newest last."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque(maxlen=MOST_GIVEN)


def lease_of(number: int, lock: object) -> Any:
    """The lease that this block of the lock holds; None: it was entered by hand."""
    block = _open.get(number)
    return block.lease if block is not None and block.lock is lock else None


def hold_by(guard: object, lease: Held) -> None:
    """Release the lease when ``guard`` is dropped, instead of what held it so far."""
    block, before = Block(guard, _dropped), lease.block
    block.number, block.lock = next(_numbers), None
    block.keep(lease)
    if before is not None:
        _open.pop(before.number, None)


def release_if_forgotten(lease: Held) -> None:
    """Release when the last reference to the lease goes.

    A weak reference, not ``__del__``: that would run for every lease, and swallow a Ctrl-C that
    arrives in it.
    """
    block = Block(lease, _dropped)
    block.number, block.lease, block.pid = next(_numbers), None, os.getpid()
    block.backend, block.grant = lease.backend, lease.tenancy
    lease.block = block
    _open[block.number] = block


def need_no_more(lease: Held) -> None:
    """Note that a lease was let go, so that nobody has to release it who forgets it."""
    if lease.block is not None and lease.block.lease is None:
        close(lease)


def close(lease: Held) -> None:
    """Note that the block of the lease has ended."""
    block, lease.block = lease.block, None
    if block is not None:
        _open.pop(block.number, None)


def abandon(number: int) -> None:
    """Release what this block holds, if it has not ended."""
    block = _open.pop(number, None)
    if block is None:
        return
    if block.lease is not None:
        block.lease.abandon()
    elif block.pid == os.getpid():
        give_back(block.backend, block.grant)


def _dropped(block: Block) -> None:
    abandon(block.number)


def give_back(backend: Backend, grant: Grant) -> None:
    """Release in the middle of anything: in an event loop later, and never blocking."""
    loop = running_loop()
    if loop is None:
        backend.run(hold.release(backend.policy, grant))
    else:
        ask = hand_over(backend.policy, grant.target, grant.nonce, grant.touched)
        loop.call_soon(backend.group.aask, ask)
