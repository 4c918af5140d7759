"""End a ``with`` block: what ``__exit__`` and ``__aexit__`` of a ``Lock`` do.

``BlockExit`` gives these functions to each block, with its ``Block``. A program that calls
``lock.__enter__()`` and ``lock.__exit__()`` itself has a block without a function; ``ByHand`` keeps
it.

The first statement of each end that a signal handler can interrupt is inside a ``try``, which
releases once more. An interruption before it, or a second one, leaves the name taken until its ttl:
the lease is renewed no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from django_redlock.concurrency.one_step import remove
from django_redlock.leases import context
from django_redlock.leases.with_blocks import Block, BlockExit, gone

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease


class ByHand(list[Block]):
    """The blocks of a ``Lock`` whose ``__enter__`` or ``__aenter__`` was called by hand.

    Nothing tells when such a block is interrupted: its lease is renewed until ``__exit__`` is
    called, or until the lock and the lease are forgotten.
    """

    def add(self, lock: object) -> Block:
        """Return a block that is about to be entered."""
        block = Block(lock)
        self.append(block)
        return block

    def innermost(self, lock: object) -> Block:
        """Return the innermost of the blocks in this thread or task, also a released one.

        If this thread or task has none, take one of another: one that is over first.
        """
        # What it has now: another thread, or a signal handler, may leave a block meanwhile.
        entered = {lease: block for block in list(self) if (lease := block.lease) is not None}
        for lease in context.leases():
            if lease in entered:
                return entered[lease]
        if not entered:
            msg = f"{lock!r} is left, but nothing entered it"
            raise RuntimeError(msg)
        ended = [lease for lease in entered if lease.ended or lease.lost]
        return entered[(ended or list(entered))[-1]]


class _Entered(Protocol):
    """The part of a lock that ``close`` uses."""

    @property
    def by_hand(self) -> ByHand:
        """The blocks of those who call ``__enter__`` themselves."""


class Entered(_Entered, Protocol):
    """The part of a ``Lock`` that its blocks use."""

    def left(self, lease: Lease, kind: type[BaseException] | None) -> None:
        """Raise what the end of a block is to raise."""


def close(lock: _Entered, block: Block) -> Lease | None:
    """Note that a block is over, or was not entered; return its lease, if it has one."""
    lease: Lease | None = block.lease
    block.lease = None
    if lease is not None:
        lease.block = gone  # also where something keeps the function: renewed no more
    if block.function is None:
        remove(block, lock.by_hand)
    return lease


def _leave(block: Block, lock: Entered, kind: type[BaseException] | None, *_: object) -> None:
    """End this block of the lock, or the innermost one that was entered by hand."""
    if block.lock is not lock or block.lease is None:
        block = lock.by_hand.innermost(lock)
    lease = block.lease
    try:
        lease.release()
    except BaseException:  # a signal handler's; a second request does no harm
        lease.release()
        raise
    finally:
        close(lock, block)
    lock.left(lease, kind)


async def _aleave(
    block: Block, lock: Entered, kind: type[BaseException] | None, *_: object
) -> None:
    """End the block as ``_leave`` does, in a task."""
    if block.lock is not lock or block.lease is None:
        block = lock.by_hand.innermost(lock)
    lease = block.lease
    try:
        await lease.arelease()
    except BaseException:  # as above; where the first request was sent, nothing is awaited
        await lease.arelease()
        raise
    finally:
        close(lock, block)
    lock.left(lease, kind)


leave: Final = BlockExit(_leave)
aleave: Final = BlockExit(_aleave)
