"""``redlock("name")``: what to lock and how, as an immutable description, and ways to enter it.

    LockTemplate   an alias and default options; calling it makes a Lock
    Lock           names and options; ``with``, ``async with``, decorator, acquire, aacquire;
                   makes a Lease each time
    Lease          one tenancy (``lease``)

A Lock holds no lease: each ``with`` block holds its own, and releases it also when an interruption
tears the block open before its ``__exit__`` has begun (``blocks``).
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from django_redlock.core import acquire
from django_redlock.core.errors import LeaseLost, LockTaken
from django_redlock.core.names import check_fields, check_names, check_no_fields, fill
from django_redlock.core.policy import check_seconds

from .callables import finished, is_async
from .holding import holding
from .leaving import ByHand, aleave, leave
from .options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps
    from django_redlock.leases.blocks import Block
    from django_redlock.leases.lease import Lease

    from .holding import Keep

F = TypeVar("F", bound="Callable[..., Any]")
Source: TypeAlias = "Callable[[str], Backend]"


class Lock:
    """What to lock, and how. Immutable; one Lock may be entered by many at once.

    Use it in a ``with`` or ``async with`` statement, as a decorator of a function, or by
    ``acquire`` and ``aacquire``.
    """

    def __init__(
        self, source: Source, alias: str, name: str | Sequence[str], options: Options
    ) -> None:
        self._source = source
        self._alias = alias
        self.names: Final = check_names(name)
        self._options = options
        self._filled = False  # whether braces in the names are text
        self.by_hand: Final = ByHand()

    def __repr__(self) -> str:
        name = self.names[0] if len(self.names) == 1 else list(self.names)
        return f"<Lock {name!r} of {self._alias!r}>"

    @property
    def alias(self) -> str:
        """The alias whose nodes decide."""
        return self._alias

    # -- acquiring ------------------------------------------------------------------------------

    def acquire(self, wait: float | None = None) -> Lease:
        """Take the lock.

        Args:
            wait: seconds to stand in line while somebody else has it, woken by the release,
                and to try again while no majority of the nodes can be asked. 0 does not wait,
                ``float("inf")`` waits for ever, None as the Lock was made.

        Raises:
            LockTaken: somebody else still had it at the end.
            NodesUnavailable: no majority of the nodes could be asked at the end.
            ValueError: a bad name, or a ttl that the alias does not allow.
            SynchronousOnlyOperation: an event loop runs in this thread; without Django it
                is a RuntimeError.
        """
        return self._acquire(wait)

    async def aacquire(self, wait: float | None = None) -> Lease:
        """``acquire`` in a task. When it is cancelled, nothing stays taken."""
        return await self._aacquire(wait)

    def try_acquire(self) -> Lease | None:
        """Take the lock if it is free; never waits. None when somebody holds it.

        Raises:
            NodesUnavailable: no majority of the nodes could be asked.
        """
        try:
            return self.acquire(wait=0)
        except LockTaken:
            return None

    async def atry_acquire(self) -> Lease | None:
        """``try_acquire`` in a task."""
        try:
            return await self.aacquire(wait=0)
        except LockTaken:
            return None

    def _acquire(self, wait: float | None, keep: Keep | None = None) -> Lease:
        backend = self._source(self._alias)
        backend.refuse_event_loop()
        return backend.run(self._taking(backend, wait, keep))

    async def _aacquire(self, wait: float | None, keep: Keep | None = None) -> Lease:
        backend = self._source(self._alias)
        return await backend.arun(self._taking(backend, wait, keep))

    def _taking(self, backend: Backend, wait: float | None, keep: Keep | None) -> Steps[Lease]:
        options = self._options
        if not self._filled:
            check_no_fields(self.names)
        if options.durable and backend.in_transaction():
            msg = (
                f"{self!r} is durable and cannot be taken inside a transaction: it would be "
                "released before the COMMIT"
            )
            raise RuntimeError(msg)
        if wait is None:
            wait = backend.wait if options.wait is None else options.wait
        else:
            check_seconds("wait", wait, zero=True, endless=True)
        steps = acquire.acquire(
            backend.policy,
            backend.policy.target(self.names),
            label=options.label or backend.label(),
            ttl=backend.check_ttl(backend.ttl if options.ttl is None else options.ttl),
            wait=wait,
        )
        return holding(backend, steps, options, keep)

    # -- in a ``with`` --------------------------------------------------------------------------

    def __enter__(self) -> Lease:
        block = leave.entered(self)
        if block is not None:
            return self._acquire(None, block.keep)
        lease = self.acquire()
        try:
            self.by_hand.enter(lease)
        except BaseException:  # a signal handler's: nobody else will release it
            lease.release()
            raise
        return lease

    def __aenter__(self) -> Coroutine[Any, Any, Lease]:
        return self._aenter(aleave.entered(self))

    async def _aenter(self, block: Block | None) -> Lease:
        if block is not None:
            return await self._aacquire(None, block.keep)
        lease = await self.aacquire()
        self.by_hand.enter(lease)
        return lease

    if TYPE_CHECKING:

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __exit__ = leave
        __aexit__ = aleave

    def left(self, lease: Lease, kind: type[BaseException] | None) -> None:
        """Tell of a loss, if that was asked for and hides no error of the body."""
        if kind is None and lease.lost and self._options.on_lost == "raise":
            raise LeaseLost("the lease was lost before the block ended", name=lease.name)

    # -- decorating -----------------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        """Run ``function`` under the lock; fields of the names are filled from its arguments.

        Raises:
            TypeError: no function, or a generator function, whose body would run after the
                release; at the call, a plain function that returns a coroutine.
            ValueError: a field that is no parameter of the function.
        """
        awaited = is_async(function)
        signature = inspect.signature(function)
        check_fields(self.names, signature)

        def lock_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Lock:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return self.filled(bound.arguments)

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with lock_of(args, kwargs):
                return finished(function(*args, **kwargs), function)

        @functools.wraps(function)
        async def alocked(*args: Any, **kwargs: Any) -> Any:
            async with lock_of(args, kwargs):
                return await function(*args, **kwargs)

        return alocked if awaited else locked  # type: ignore[return-value]

    def filled(self, arguments: Mapping[str, Any]) -> Lock:
        """This lock with the fields of its names filled in; braces in the values are text."""
        names = [fill(name, arguments) for name in self.names]
        lock = Lock(self._source, self._alias, names, self._options)
        lock._filled = True
        return lock
