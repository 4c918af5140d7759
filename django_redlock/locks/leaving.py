"""End a ``with`` block: what ``__exit__`` and ``__aexit__`` of a ``Lock`` do.

``blocks.Leaving`` gives the functions to blocks, with the block's number. A program that calls
``lock.__enter__()`` and ``lock.__exit__()`` itself has no block; ``ByHand`` remembers its leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from django_redlock.leases import blocks, context
from django_redlock.leases.blocks import Leaving

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from django_redlock.leases.lease import Lease


class ByHand(list["Lease"]):
    """The leases of a ``Lock`` whose ``__enter__`` or ``__aenter__`` was called by hand.

    Nothing tells when such a block was torn open: its lease is renewed until ``__exit__`` is
    called, or until the lock and the lease are forgotten.
    """

    def enter(self, lease: Lease) -> None:
        """Keep the lease until ``__exit__`` is called."""
        self.append(lease)
        blocks.release_if_forgotten(lease)

    def innermost(self, lock: Entered) -> Lease:
        """The innermost of the leases in this thread or task; also one that was released.

        A block that ends elsewhere than it began is not known: one that is over goes first.
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
    """A ``Lock``, as far as its blocks use it."""

    by_hand: ByHand

    def left(self, lease: Lease, kind: type[BaseException] | None) -> None:
        """Raise what the end of a block is to raise."""


def _leave(lock: Entered, number: int, kind: type[BaseException] | None, *_: object) -> None:
    """End the block of this number, or one that was entered by hand."""
    lease = blocks.lease_of(number, lock)
    if lease is not None:
        lease.release()
        blocks.close(lease)
    else:
        lease = lock.by_hand.innermost(lock)
        try:
            lease.release()
        except BaseException:  # interrupted before it had begun; asking twice harms nobody
            lease.release()
            raise
        finally:
            lock.by_hand.remove(lease)
    lock.left(lease, kind)


def _aleave(
    lock: Entered, number: int, kind: type[BaseException] | None, *_: object
) -> Coroutine[Any, Any, None]:
    """The same in a task. From here on the lease ends with the coroutine, if not by it."""
    lease, leaving = blocks.lease_of(number, lock), None
    try:
        if lease is None:
            lease = lock.by_hand.innermost(lock)
        leaving = _leaving(lock, lease, kind)
        blocks.hold_by(leaving, lease)
        if lease in lock.by_hand:
            lock.by_hand.remove(lease)
    except BaseException:  # a signal handler's
        if leaving is not None:
            leaving.close()  # it is never run
        if lease is not None:
            lease.abandon()
        raise
    return leaving


async def _leaving(lock: Entered, lease: Lease, kind: type[BaseException] | None) -> None:
    await lease.arelease()
    blocks.close(lease)
    lock.left(lease, kind)


def _leave_any(number: int, lock: Entered, *error: Any) -> None:
    try:
        _leave(lock, number, *error)
    except BaseException:  # whoever asked the class may keep this function for long
        blocks.abandon(number)
        raise


async def _aleave_any(number: int, lock: Entered, *error: Any) -> None:
    try:
        await _aleave(lock, number, *error)
    except BaseException:  # as above
        blocks.abandon(number)
        raise


leave: Final = Leaving(_leave, _leave_any)
aleave: Final = Leaving(_aleave, _aleave_any)
