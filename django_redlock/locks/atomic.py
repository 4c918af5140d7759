"""A lock with a transaction in its block: lock, BEGIN, body, COMMIT, release.

The transaction comes from the backend, so this module knows no database. The block keeps it beside
the lease (``with_blocks.Block.inside``): a block that is interrupted before its ``__exit__`` has
begun is rolled back, and then its lease is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from django_redlock.core.errors import LeaseLost
from django_redlock.leases import with_blocks
from django_redlock.leases.with_blocks import BlockExit

from .callables import is_async, run_under
from .exits import ByHand

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from django_redlock.backend import Transaction
    from django_redlock.leases.lease import Lease
    from django_redlock.leases.with_blocks import Block

    from .holding import Keep

F = TypeVar("F", bound="Callable[..., Any]")

NO_ASYNC: Final = (
    "Django has no transactions for coroutines: put the transaction into a plain function, "
    "decorated by transaction.atomic, and call it by 'await sync_to_async(function)(...)' inside "
    "'async with redlock(...)'"
)


class Lockable(Protocol):
    """The part of a ``Lock`` that an ``AtomicLock`` uses."""

    def acquire(self) -> Lease:
        """Take the lock."""

    def hold(self, keep: Keep) -> Lease:
        """Take the lock for a block."""

    def transaction(self, using: str | None) -> Transaction:
        """Return a transaction that has not begun yet."""

    def of_calls(
        self, function: Callable[..., Any]
    ) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Lockable]:
        """Return what makes the lock of a call of ``function``."""


class AtomicLock:
    """A lock whose block is one database transaction; ``Lock.atomic`` makes it. Reusable.

    Use it in a ``with`` statement, whose target is the lease, or as a decorator of a ``def``.
    """

    def __init__(self, lock: Lockable, using: object) -> None:
        if not (using is None or isinstance(using, str)):
            msg = f"using must be the alias of a database, not {type(using).__name__}"
            raise TypeError(msg)
        self._lock = lock
        self._using = using
        self.by_hand: Final = ByHand()
        self.begun_by_hand: Final[dict[Lease, Transaction]] = {}

    def __repr__(self) -> str:
        return f"<AtomicLock of {self._lock!r}>"

    # -- in a ``with`` --------------------------------------------------------------------------

    def __enter__(self) -> Lease:
        block = leave.entered(self)
        transaction = self._lock.transaction(self._using)  # before there is anything to release
        if block is None:
            return self._enter_by_hand(transaction)
        lease = self._lock.hold(block.keep)
        self._begin(transaction, block)
        return lease

    def _enter_by_hand(self, transaction: Transaction) -> Lease:
        lease = self._lock.acquire()
        try:
            self.by_hand.enter(lease)
            self.begun_by_hand[lease] = transaction
            if lease.block is not None:
                self._begin(transaction, lease.block)
        except BaseException:
            self.by_hand[:] = [each for each in self.by_hand if each is not lease]
            self.begun_by_hand.pop(lease, None)
            transaction.roll_back()
            lease.release()
            raise
        return lease

    @staticmethod
    def _begin(transaction: Transaction, block: Block) -> None:
        try:
            block.inside = transaction
            transaction.begin()
        except BaseException:  # a block that is not entered has no end
            with_blocks.abandon(block.number)
            raise

    def __aenter__(self) -> NoReturn:
        raise TypeError(NO_ASYNC)

    async def __aexit__(self, *error: object) -> None:
        """Do nothing; ``async with`` looks it up before it calls ``__aenter__``."""

    if TYPE_CHECKING:

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    # -- decorating -----------------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        """Run ``function`` under the lock and in the transaction, as ``Lock`` does.

        Raises:
            TypeError: not a function, a generator function, or a coroutine function, since Django
                has no transactions for these.
            ValueError: a field is no parameter of the function.
        """
        if is_async(function):
            raise TypeError(NO_ASYNC)
        lock_of = self._lock.of_calls(function)

        def manager_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AtomicLock:
            return AtomicLock(lock_of(args, kwargs), self._using)

        return run_under(function, manager_of)  # type: ignore[return-value]


def _leave(lock: AtomicLock, number: int, kind: type[BaseException] | None, *_: object) -> None:
    """End the block of this number, or the innermost one that was entered by hand."""
    lease = with_blocks.lease_of(number, lock)
    if lease is None:
        _leave_by_hand(lock, kind)
        return
    _end(lease, lease.block.inside, kind)
    with_blocks.close(lease)


def _leave_by_hand(lock: AtomicLock, kind: type[BaseException] | None) -> None:
    lease = lock.by_hand.innermost(lock)
    try:
        _end(lease, lock.begun_by_hand[lease], kind)
    finally:
        lock.by_hand.remove(lease)
        lock.begun_by_hand.pop(lease, None)


def _end(lease: Lease, transaction: Transaction, kind: type[BaseException] | None) -> None:
    """Commit if the body succeeded and the lease is held; else roll back. Then release."""
    try:
        if kind is None:
            _ensure(lease)
            transaction.commit()
        else:
            transaction.roll_back()
    except BaseException:  # of the database, of what ran on_commit, or of a signal handler
        try:
            transaction.roll_back()
        finally:
            lease.release()
        raise
    lease.release()


def _ensure(lease: Lease) -> None:
    try:
        lease.ensure()
    except LeaseLost as lost:
        lost.add_note("The transaction of the block is rolled back.")
        raise


leave: Final = BlockExit(_leave)
if not TYPE_CHECKING:
    AtomicLock.__exit__ = leave
