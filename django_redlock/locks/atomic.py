"""A lock and a transaction: inside the block of the lock, or around it.

``Lock.atomic`` puts one inside: lock, BEGIN, body, COMMIT, release. A lock inside a transaction is
refused, or warned of: its release would come before the COMMIT.

The transaction comes from the backend, so this module knows no database. The block keeps it beside
the lease (``Block.inside``). A block that is interrupted before its ``__exit__`` has begun leaves
it open, as Django's own ``atomic`` does, and is never committed: see ``transactions``.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from django_redlock.core.errors import LeaseLost
from django_redlock.interruption import Block, BlockExit
from django_redlock.leases import context

from .callables import calling_frame, is_async, run_under

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from django_redlock.backend import Transaction
    from django_redlock.leases.lease import Lease

F = TypeVar("F", bound="Callable[..., Any]")

NO_ASYNC: Final = (
    "Django has no transactions for coroutines: put the transaction into a plain function, "
    "decorated by transaction.atomic, and call it by 'await sync_to_async(function)(...)' inside "
    "'async with redlock(...)'"
)


class Lockable(Protocol):
    """The part of a ``Lock`` that an ``AtomicLock`` uses."""

    def hold(self, block: Block | None) -> Lease:
        """Take the lock for a block."""

    def transaction(self, using: str | None) -> Transaction:
        """Return a transaction that has not begun yet."""

    def of_calls(
        self, function: Callable[..., Any]
    ) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Lockable]:
        """Return what makes the lock of a call of ``function``."""


def no_truth(lock: object) -> str:
    """Return the text of the error that a lock is asked whether it is true, as in ``if``."""
    return (
        f"{lock!r} is a description, neither held nor free: 'with redlock(name):' takes it, "
        "try_acquire() returns a lease or None, state().held says whether somebody has it"
    )


def checked_using(using: object) -> str | None:
    """Return what may be the alias of a database; None is the default one.

    Raises:
        TypeError: it is something else.
    """
    if not (using is None or isinstance(using, str)):
        raise TypeError(f"using must be the alias of a database, not {type(using).__name__}")
    return using


class AtomicLock:
    """A lock whose block is one database transaction; ``Lock.atomic`` makes it. Reusable.

    Use it in a ``with`` statement, whose target is the lease, or as a decorator of a ``def``.
    """

    def __init__(self, lock: Lockable, using: object) -> None:
        self._lock = lock
        self._using = checked_using(using)

    def __repr__(self) -> str:
        return f"<AtomicLock of {self._lock!r}>"

    if not TYPE_CHECKING:

        def __bool__(self) -> NoReturn:
            raise TypeError(no_truth(self))

    # -- in a ``with`` --------------------------------------------------------------------------

    def __enter__(self) -> Lease:
        return block_exit.enter(self, self._begin)

    def _begin(self, block: Block) -> Lease:
        block.inside = self._lock.transaction(self._using)  # before there is anything to release
        lease = self._lock.hold(block)
        block.inside.begin(block.function or weakref.ref(block))
        return lease

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


def _end(block: Block, _: AtomicLock, kind: type[BaseException] | None) -> None:
    """Commit if the body succeeded and the lease is held; else roll back. Then release."""
    if kind is not None:
        undo(block)
        return
    lease: Lease = block.held
    ensure(lease)
    block.inside.commit()
    lease.release()


def undo(block: Block) -> None:
    """Roll back what is not committed, if anything was begun, and release."""
    try:
        if block.inside is not None:
            block.inside.roll_back()
    finally:
        block.held.release()


def ensure(lease: Lease) -> None:
    """Check that the lease lasts, right before the COMMIT.

    Raises:
        LeaseLost: it does not.
    """
    try:
        lease.ensure()
    except LeaseLost as lost:
        lost.add_note("The transaction of the block is rolled back.")
        raise


block_exit: Final = BlockExit(_end, undo, context.innermost)
if not TYPE_CHECKING:
    AtomicLock.__exit__ = block_exit


# -- around it ----------------------------------------------------------------------------------

# Without a name: Python remembers each text that it has shown for a line.
TEXT: Final = (
    "a lock is taken inside a transaction and is free before the COMMIT, so the next holder does "
    "not see what this one wrote. Take the lock outside: 'with redlock(...).atomic():' begins the "
    "transaction in the lock. Under ATOMIC_REQUESTS use @single_flight, or non_atomic_requests. "
    "If the lock guards no row of this transaction, write durable=False"
)
ADOPTED: Final = (
    "a lease is adopted inside a transaction, and its lock is free before the COMMIT, so the next "
    "holder does not see what this one wrote. Adopt it before the transaction begins. If the lock "
    "guards no row of this transaction, write redlock.using(durable=False).adopt(...)"
)


class LockInTransactionWarning(RuntimeWarning):
    """A lock was taken inside a transaction, and is free before its COMMIT.

    Python shows it once for each line that enters such a block. For a decorated function that is
    the line of the function; where an ``ExitStack`` or a framework enters the block, theirs.
    """


LockInTransactionWarning.__module__ = "django_redlock.errors"


def refuse_or_warn(
    lock: object,
    *,
    durable: bool,
    decorated: Callable[..., Any] | None = None,
    text: str = TEXT,
) -> None:
    """Say that the lock is taken inside a transaction.

    Args:
        lock: what is taken.
        durable: whether it must not be.
        decorated: the function whose decorator takes it; the warning names the function's line,
            since a framework may call it.
        text: of the warning.

    Raises:
        RuntimeError: it must not be.
    """
    if durable:
        msg = (
            f"{lock!r} is durable and cannot be taken inside a transaction: it would be "
            "released before the COMMIT. Take it before the transaction begins; under "
            "ATOMIC_REQUESTS use @single_flight, or @transaction.non_atomic_requests on the view"
        )
        raise RuntimeError(msg)
    function = None if decorated is None else inspect.unwrap(decorated)
    code = getattr(function, "__code__", None)
    if function is None or code is None:
        warnings.warn(text, LockInTransactionWarning, stacklevel=calling_frame()[1])
        return
    warnings.warn_explicit(
        text,
        LockInTransactionWarning,
        code.co_filename,
        code.co_firstlineno,
        module=function.__module__,
        registry=function.__globals__.setdefault("__warningregistry__", {}),
    )
