"""Give each ``with`` block an object that lives as long as the block, so that renewal ends with it.

A signal handler may raise at any call, also between the end of a block's body and the first
statement of ``__exit__``. No code of this package runs then. But Python drops what the block has
left on the stack of its frame: what ``type(lock).__exit__`` returned when the block began. So
``__exit__`` is a descriptor: it gives each block a function of its own, and a weak reference to
that function tells whether the block is still there. The watchdog asks it, and renews no lease
whose block is gone. Nothing else happens: a weak reference has no callback here, and nobody guesses
that a block has ended. The garbage collector clears weak references before it closes a generator,
whose ``finally`` then still runs under the lease, and whose ``__exit__`` still releases it.

The function is a ``functools.partial``, which holds the ``Block`` and thereby the lease. While it
is called no Python frame holds it, so a traceback does not keep it.

``with`` looks ``__exit__`` up before it calls ``__enter__``, in the same thread. So ``__enter__``
takes the newest function that was made for its lock in this thread. If there is none, the program
calls ``lock.__enter__()`` itself, and no object tells when that block is over: see ``ByHand``.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from django_redlock.concurrency.one_step import remove

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from .lease import Lease

MOST_GIVEN: Final = 16  # functions of a thread that await an ``__enter__``; nearly always one does


class Block:
    """A block that is entered, or about to be.

    Attributes:
        lease: what the block holds; None before it is entered. Another kind of block than a lock's
            holds something else.
        inside: what it has begun inside its lock, and ends before the release, if anything.
        function: a weak reference to what lives as long as the block; None: entered by hand.
        lock: what is entered; None: any, since ``__exit__`` of the class was read.
        where: the frame and its code that read that.
    """

    __slots__ = ("__weakref__", "function", "inside", "lease", "lock", "where")

    def __init__(self, lock: object, where: tuple[int, CodeType] | None = None) -> None:
        self.lease: Any = None
        self.inside: Any = None
        self.function: weakref.ref[Any] | None = None
        self.lock = lock
        self.where = where

    def keep(self, lease: Lease) -> None:
        """Hold the lease until the block ends."""
        lease.block = self.function
        self.lease = lease


class BlockExit:
    """The descriptor ``__exit__`` or ``__aexit__`` of a class: gives each block a function.

    Args:
        leave: called with the block, the lock, and what ``__exit__`` is called with.
    """

    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave
        self._given = _Given()

    def __get__(self, lock: object, _: type | None = None) -> functools.partial[Any]:
        if lock is None:  # the caller passes the lock, as ``contextlib.ExitStack`` does
            block = Block(None, _where(sys._getframe(1)))  # noqa: SLF001 - inspect's name for it is slow
            function = functools.partial(self._leave, block)
        else:
            block = Block(lock)
            function = functools.partial(self._leave, block, lock)
        block.function = weakref.ref(function)
        self._given.blocks.append(block)
        return function

    def entered(self, lock: object) -> Block | None:
        """Return the block that is being entered; None: ``__enter__`` is called by hand.

        A signal handler may have entered others since.
        """
        given = self._given.blocks
        for block in reversed(tuple(given)):
            if block.function is None or block.function() is None:
                remove(block, given)
            elif block.lock is lock or (
                block.where is not None and block.where == _where(sys._getframe(2))  # noqa: SLF001 - as above
            ):
                remove(block, given)
                block.lock = lock
                return block
        return None


def gone() -> None:
    """Return None as a weak reference does whose object is gone: for a lease without a block."""


def _where(frame: FrameType) -> tuple[int, CodeType]:
    """Identify the frame without keeping it; a later frame with its id runs other code."""
    return id(frame), frame.f_code


class _Given(threading.local):
    """The blocks of a thread whose functions await an ``__enter__``, the newest last."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque(maxlen=MOST_GIVEN)
