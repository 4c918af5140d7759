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

from . import algorithm
from .callables import finished, is_async
from .errors import LeaseLost, LockTaken
from .handles import Handle
from .holding import holding
from .leaving import ByHand, aleave, leave
from .naming import check_alias, check_fields, check_names, check_no_fields, fill
from .options import OnLost, Options
from .seconds import check_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from .backend import Backend
    from .blocks import Block
    from .holding import Keep
    from .lease import Lease
    from .protocol import Steps

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
        steps = algorithm.acquire(
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


class LockTemplate:
    """An alias and default options: calling it describes a lock. Immutable."""

    def __init__(
        self, source: Source, alias: str = "default", options: Options | None = None
    ) -> None:
        self._source = source
        self.alias: Final = alias
        self._options = options or Options()

    def __repr__(self) -> str:
        return f"<LockTemplate {self.alias!r}>"

    def __call__(
        self,
        name: str | Sequence[str],
        *,
        ttl: float | None = None,
        wait: float | None = None,
        renew: bool | None = None,
        max_hold: float | None = None,
        min_hold: float | None = None,
        on_lost: OnLost = None,
        durable: bool | None = None,
    ) -> Lock:
        """Describe a lock; nothing is asked of the nodes yet.

        Args:
            name: 1 to 512 bytes without control characters, or a list of names: all of them
                or none. Braces are fields of a decorator's template.
            ttl: seconds after which the nodes forget a holder that was not heard of; at most
                MAX_TTL. None: the alias's TTL.
            wait: seconds to stand in line while somebody else has it; see ``Lock.acquire``.
                None: the alias's WAIT.
            renew: whether a watchdog prolongs the lease while it is held. None: RENEW.
            max_hold: seconds after which it no longer does; ``float("inf")``: never. None:
                MAX_HOLD.
            min_hold: seconds for which the name stays taken at least, counted from the
                attempt, when it is released earlier. A lease that runs out or is lost frees
                the name at its ttl, as ever.
            on_lost: a plain function, called with the lease when it is lost, by whatever
                thread finds out; or "raise": LeaseLost at the end of a block that succeeded.
            durable: refuse to be taken inside a database transaction, since the lock would
                be released before the COMMIT.

        Raises:
            TypeError, ValueError: an argument that makes no sense; the text says which.
        """
        options = self._options.updated(
            ttl=ttl,
            wait=wait,
            renew=renew,
            max_hold=max_hold,
            min_hold=min_hold,
            on_lost=on_lost,
            durable=durable,
        )
        return Lock(self._source, self.alias, name, options)

    def using(self, alias: str | None = None, **options: Any) -> LockTemplate:
        """A copy with another alias or other default options.

        Raises:
            TypeError, ValueError: an alias or an option that makes no sense; the text says which.
        """
        alias = self.alias if alias is None else alias  # "" is a mistake, and will be told
        check_alias(alias)
        return LockTemplate(self._source, alias, self._options.updated(**options))

    def adopt(self, handle: str) -> Lease:
        """Become the holder of what ``Lease.handle`` gave away.

        A handle has one owner: of two that adopt it, or one that does it twice, one succeeds.

        Raises:
            LeaseLost: too late, or somebody else has adopted it.
            LockTaken: several adopt it at the same time; the handle is still good.
            NodesUnavailable: no majority of the nodes could be asked; the handle is still good.
            ValueError: not a handle, or one of another alias.
        """
        backend = self._source(self.alias)
        backend.refuse_event_loop()
        return backend.run(self._adopting(backend, handle))

    async def aadopt(self, handle: str) -> Lease:
        """``adopt`` in a task."""
        backend = self._source(self.alias)
        return await backend.arun(self._adopting(backend, handle))

    def _adopting(self, backend: Backend, handle: str) -> Steps[Lease]:
        given, ttl = Handle.decode(handle), self._options.ttl
        if given.alias != self.alias:
            msg = f"this handle is of the alias {given.alias!r}, not {self.alias!r}"
            raise ValueError(msg)
        steps = algorithm.adopt(
            backend.policy,
            backend.policy.target(given.names),
            old=given.nonce,
            label=self._options.label or backend.label(),
            ttl=backend.check_ttl(backend.ttl if ttl is None else ttl),
        )
        return holding(backend, steps, self._options)
