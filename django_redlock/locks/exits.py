"""End a ``with`` block: what ``__exit__`` and ``__aexit__`` of a ``Lock`` do.

``BlockExit`` gives these functions to each block, with the number of the block. A program that
calls ``lock.__enter__()`` and ``lock.__exit__()`` itself has no block; ``ByHand`` keeps its leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from django_redlock.leases import context, with_blocks
from django_redlock.leases.with_blocks import BlockExit

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from django_redlock.leases.lease import Lease


class ByHand(list["Lease"]):
    """The leases of a ``Lock`` whose ``__enter__`` or ``__aenter__`` was called by hand.

    Nothing tells when such a block is interrupted: its lease is renewed until ``__exit__`` is
    called, or until the lock and the lease are forgotten.
    """

    def enter(self, lease: Lease) -> None:
        """Keep the lease until ``__exit__`` is called."""
        self.append(lease)
        with_blocks.release_if_forgotten(lease)

    def innermost(self, lock: object) -> Lease:
        """Return the innermost of the leases in this thread or task, also a released one.

        If this thread or task has none, take one of another: one that is over first.
        """
        for lease in context.leases():
            if lease in self:
                return lease
        if not self:
            msg = f"{lock!r} is left, but nothing entered it"
            raise RuntimeError(msg)
        ended = [lease for lease in self if lease.ended or lease.lost]
        return (ended or self)[-1]


class Entered(Protocol):
    """The part of a ``Lock`` that its blocks use."""

    @property
    def by_hand(self) -> ByHand:
        """The leases of those who call ``__enter__`` themselves."""

    def left(self, lease: Lease, kind: type[BaseException] | None) -> None:
        """Raise what the end of a block is to raise."""


def _leave(lock: Entered, number: int, kind: type[BaseException] | None, *_: object) -> None:
    """End the block of this number, or the innermost one that was entered by hand."""
    lease = with_blocks.lease_of(number, lock)
    if lease is not None:
        lease.release()
        with_blocks.close(lease)
    else:
        lease = lock.by_hand.innermost(lock)
        try:
            lease.release()
        except BaseException:  # interrupted before it had begun; a second request does no harm
            lease.release()
            raise
        finally:
            lock.by_hand.remove(lease)
    lock.left(lease, kind)


def _aleave(
    lock: Entered, number: int, kind: type[BaseException] | None, *_: object
) -> Coroutine[Any, Any, None]:
    """End the block as ``_leave`` does, in a task: by the coroutine, or when that is dropped."""
    lease, leaving = with_blocks.lease_of(number, lock), None
    by_hand = lease is None
    try:
        if by_hand:
            lease = lock.by_hand.innermost(lock)
        leaving = _leaving(lock, lease, kind)
        with_blocks.hold_by(leaving, lease)
        if by_hand:
            lock.by_hand.remove(lease)
    except BaseException:  # a signal handler's
        if leaving is not None:
            leaving.close()  # it never runs
        if lease is not None:
            lease.abandon()
        raise
    return leaving


async def _leaving(lock: Entered, lease: Lease, kind: type[BaseException] | None) -> None:
    await lease.arelease()
    with_blocks.close(lease)
    lock.left(lease, kind)


leave: Final = BlockExit(_leave)
aleave: Final = BlockExit(_aleave, awaited=True)
