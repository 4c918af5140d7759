"""Work that is done once in a while, and not only one at a time: ``Lock.once``.

The block takes the lock as any other does. If its body succeeds, the lock's name becomes a record
on the nodes in place of a release, with when the work was done (``core.completion``). A caller
that asks for the name in that time gets a ``OnceRun`` that is not fresh, and holds nothing.

The record is written last: a crash before it lets the work be done again, one after it does not.
With ``OnceLock.atomic`` the order is lock, BEGIN, body, COMMIT, record. What is recorded is the
COMMIT, and not that the body did not fail, or that nothing was raised behind it.

Python runs the body anyway. One that does not look whether its work is to be done would do it each
time, so the end of the block says so.
"""

from __future__ import annotations

import functools
import logging
import weakref
from datetime import UTC, datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from django_redlock.core.completion import done_at
from django_redlock.core.errors import LockTaken
from django_redlock.core.policy import check_seconds
from django_redlock.interruption import AsyncBlockExit, Block, BlockExit
from django_redlock.leases import context
from django_redlock.leases.lease import Lease

from . import atomic
from .advice import unknown_attribute
from .atomic import NO_ASYNC, checked_using, ensure, no_truth, undo
from .callables import finished, is_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

    from django_redlock.core.protocol import Steps

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("django_redlock")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
AGAIN: Final = "%r is done, and may be done again: no majority of the nodes has its record"
UNDONE: Final = (
    "%r is not done, and leaves no record: its transaction was rolled back, by set_rollback(True) "
    "or after an error of the database that the body has caught"
)
UNASKED: Final = (
    "the block of %r runs its body each time, also when the work was done before: write "
    "'with redlock(…).once(…) as run:' and, around the work, 'if run.fresh:'"
)
LOOKS: Final = frozenset({"lease", "at", "fresh"})


class _Run(NamedTuple):
    lease: Lease | None
    at: datetime | None


class OnceRun(_Run):
    """What the block of ``Lock.once`` has to do. Python runs the body of the block anyway.

    So the body asks ``fresh``. A look at ``at`` or ``lease`` counts as well, and so does
    ``lease, at = run``. It is neither true nor false: ``bool()`` of it is a TypeError.

    Attributes:
        lease: the lease, while the work is to be done; None: it was done before.
        at: when it was done before, an aware datetime in UTC, by the clock of the machine that did
            it; None: it is to be done.
        asked: whether the body has looked.
    """

    asked = False

    @property
    def fresh(self) -> bool:
        """Whether the work is to be done now."""
        return self.lease is not None

    if not TYPE_CHECKING:  # a type checker knows the fields better

        def __getattribute__(self, name: str) -> Any:
            if name in LOOKS:
                vars(self)["asked"] = True
            return super().__getattribute__(name)

        def __iter__(self) -> Iterator[Any]:
            return iter((self.lease, self.at))

        def __getitem__(self, index: Any) -> Any:
            return (self.lease, self.at)[index]

    def __bool__(self) -> NoReturn:
        msg = f"{self!r} is neither true nor false: write 'if run.fresh:'"
        raise TypeError(msg)


class Nothing:
    """What a block holds whose work was done before; see ``Block``."""

    ended, lost = True, False
    block: Callable[[], object] | None = None


class Lockable(atomic.Lockable, Protocol):
    """The part of a ``Lock`` that a ``OnceLock`` uses."""

    def ahold(self, block: Block | None, /) -> Awaitable[Lease]:
        """Take the lock as ``hold`` does, in a task."""

    def left(self, lease: Lease) -> None:
        """Raise LeaseLost for a lost lease, if the lock's ``on_lost`` says so."""

    def durable(self) -> Lockable:
        """Return this lock for a block that has the transaction inside."""

    def of_calls(
        self, function: Callable[..., Any]
    ) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Lockable]:
        """Return what makes the lock of a call of ``function``."""


def checked_keep(keep: object, what: str = "keep") -> float:
    """Return how long a record stays, in seconds.

    Args:
        keep: a timedelta or a number of seconds.
        what: the argument's name, for the error.

    Raises:
        TypeError, ValueError: it makes no sense.
    """
    if isinstance(keep, timedelta):
        keep = keep.total_seconds()
    elif isinstance(keep, bool) or not isinstance(keep, int | float):
        msg = f"{what} must be a timedelta or a number of seconds, not {type(keep).__name__}"
        raise TypeError(msg)
    return check_seconds(what, keep)


def done_before(taken: LockTaken) -> OnceRun | None:
    """Return the run that finds a record; None: the name is held."""
    at = done_at(taken.votes)
    return OnceRun(None, EPOCH + timedelta(milliseconds=at)) if at else None


class OnceLock:
    """A lock whose work is not done again for a while; ``Lock.once`` makes it. Reusable.

    Use it in a ``with`` or ``async with`` statement, whose target is a ``OnceRun``, or as a
    decorator of a function.
    """

    def __init__(
        self, lock: Lockable, keep: float, *, atomic: bool = False, using: object = None
    ) -> None:
        self._lock = lock
        self._atomic = atomic
        self._using = checked_using(using)
        self.keep: Final = keep
        self.raise_loss: Final = lock.left

    def __repr__(self) -> str:
        return f"<OnceLock of {self._lock!r}, for {self.keep:g} s>"

    if not TYPE_CHECKING:

        def __bool__(self) -> NoReturn:
            raise TypeError(no_truth(self))

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_attribute(self, name)

    def atomic(self, using: str | None = None) -> OnceLock:
        """Put a database transaction into the block: lock, BEGIN, body, COMMIT, record.

        A run that is not fresh begins no transaction. The record is left if the transaction is
        known to be committed, also where a function of ``on_commit`` raises behind the COMMIT. The
        rest is as for ``Lock.atomic``.

        Args:
            using: the alias of the database. None: "default".
        """
        return OnceLock(self._lock.durable(), self.keep, atomic=True, using=using)

    # -- in a ``with`` --------------------------------------------------------------------------

    def __enter__(self) -> OnceRun:
        return block_exit.enter(self, self._begin)

    def _begin(self, block: Block) -> OnceRun:
        if self._atomic:
            block.inside = self._lock.transaction(self._using)
        try:
            lease = self._lock.hold(block)
        except LockTaken as taken:
            return _nothing(block, taken)
        if self._atomic:
            block.inside.begin(block.function or weakref.ref(block))
        block.target = run = OnceRun(lease, None)
        return run

    def __aenter__(self) -> Coroutine[Any, Any, OnceRun]:
        if self._atomic:
            raise TypeError(NO_ASYNC)
        return ablock_exit.aenter(self, self._abegin)

    async def _abegin(self, block: Block) -> OnceRun:
        try:
            lease = await self._lock.ahold(block)
        except LockTaken as taken:
            return _nothing(block, taken)
        block.target = run = OnceRun(lease, None)
        return run

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...
        async def __aexit__(self, *error: object) -> None: ...

    # -- decorating -----------------------------------------------------------------------------

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T | None]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, T | None]: ...
    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Run ``function`` once in a while, for each lock that its arguments make.

        A call whose work was done before does not run it, and returns None.

        Raises:
            TypeError: not a function, or a generator function; with ``atomic``, a coroutine
                function; with ``on_lost="cancel"``, a plain one.
            ValueError: a field is no parameter of the function.
        """
        awaits = is_async(function)
        if awaits and self._atomic:
            raise TypeError(NO_ASYNC)
        lock_of = self._lock.of_calls(function)

        def once(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OnceLock:
            return OnceLock(
                lock_of(args, kwargs), self.keep, atomic=self._atomic, using=self._using
            )

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with once(args, kwargs) as run:
                return finished(function(*args, **kwargs), function) if run.fresh else None

        @functools.wraps(function)
        async def alocked(*args: Any, **kwargs: Any) -> Any:
            async with once(args, kwargs) as run:
                return await function(*args, **kwargs) if run.fresh else None

        return alocked if awaits else locked

    # -- the end of a block ---------------------------------------------------------------------

    def check_asked(self, block: Block) -> None:
        """Say that the body has not looked whether its work is to be done; it did not fail.

        Raises:
            RuntimeError: as any block that raises, a first one leaves no record then. Where it is
                deployed, work that is done by now is only logged and recorded.
        """
        if block.target.asked:
            return
        lease = block.held
        if isinstance(lease, Lease) and not (self._atomic or lease.backend.strict()):
            logger.error(UNASKED, self._lock)
            return
        raise RuntimeError(UNASKED % (self._lock,))

    def record(self, lease: Lease) -> Steps[bool]:
        """Leave a record in place of a release."""
        return lease.recording(self.keep, at=lease.backend.policy.wall() // 1000)

    def left(self, lease: Lease, *, recorded: bool) -> None:
        """Say that there is no record, and raise for a lost lease if ``on_lost`` says so."""
        if not recorded:
            logger.warning(AGAIN, lease.name)
        self.raise_loss(lease)


def _nothing(block: Block, taken: LockTaken) -> OnceRun:
    """Enter a block whose work was done before; raise the refusal if it was not."""
    run = done_before(taken)
    if run is None:
        raise taken
    block.target = run
    block.keep(Nothing())
    return run


def _end(block: Block, once: OnceLock, kind: type[BaseException] | None) -> None:
    """Leave a record if the body succeeded, behind the COMMIT if there is one; else release."""
    lease = block.held
    if kind is not None:
        _undo(block)
        return
    once.check_asked(block)
    if not isinstance(lease, Lease):
        return
    if block.inside is not None:
        ensure(lease)
        block.inside.commit()  # if it raises behind the COMMIT, ``_undo`` leaves the record
        if not block.inside.committed:
            lease.release()
            logger.warning(UNDONE, lease.name)
            return
    if lease.ended:  # by the body, which has released it or given it away
        once.left(lease, recorded=False)
        return
    run = lease.backend.run
    try:
        recorded = run(once.record(lease))
    except BaseException:  # rule: the work is done, so what is interrupted is made once more
        run(once.record(lease))
        raise
    once.left(lease, recorded=recorded)


def _undo(block: Block) -> None:
    """Roll back and release; but record what is committed, whatever was raised behind that."""
    lease = block.held
    if not isinstance(lease, Lease):
        return
    if block.inside is None or not block.inside.committed or lease.ended:
        undo(block)
    elif not lease.backend.run(block.owner.record(lease)):
        logger.warning(AGAIN, lease.name)


async def _aend(block: Block, once: OnceLock, kind: type[BaseException] | None) -> None:
    lease = block.held
    lost = block.inside is not None and block.inside.end(kind)
    if kind is None:
        once.check_asked(block)
    if not isinstance(lease, Lease):
        return
    if kind is not None:
        await lease.arelease()
        if lost:
            once.raise_loss(lease)
        return
    if lease.ended:
        once.left(lease, recorded=False)
        return
    run = lease.backend.arun
    try:
        recorded = await run(once.record(lease))
    except BaseException:  # rule: as above
        await run(once.record(lease))
        raise
    once.left(lease, recorded=recorded)


async def _aundo(block: Block) -> None:
    if block.inside is not None:
        block.inside.end(None)
    if isinstance(block.held, Lease):
        await block.held.arelease()


block_exit: Final = BlockExit(_end, _undo, context.innermost)
ablock_exit: Final = AsyncBlockExit(_aend, _aundo, context.innermost)
if not TYPE_CHECKING:
    OnceLock.__exit__ = block_exit
    OnceLock.__aexit__ = ablock_exit
