"""``redlock("name")``: an immutable description of a lock, and the ways to take it.

    LockTemplate   an alias and default options; calling it makes a Lock
    Lock           names and options; ``with``, decorator, acquire …; makes a Lease each time
    Lease          a grant in the hands of its holder (``leases.lease``)

A Lock holds no lease: each ``with`` block holds its own. When an interruption ends the block before
its ``__exit__`` has begun, the lease is renewed no more (``interruption``).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias, TypeVar, overload
from weakref import WeakKeyDictionary

from django_redlock import events
from django_redlock.core import acquire, hold, limited
from django_redlock.core.errors import LeaseLost, LockTaken, NodesUnavailable, RedlockError
from django_redlock.core.names import check_names, check_no_fields, fill, has_fields
from django_redlock.core.policy import check_seconds
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import Event, EventKind, VoteCount
from django_redlock.interruption import AsyncBlockExit, Block, BlockExit
from django_redlock.leases import context
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import watchdog

from .advice import advised, unknown_attribute, unknown_keywords, warn_of_names
from .atomic import AtomicLock, no_truth, refuse_or_warn
from .callables import arguments_of, await_under, is_async, run_under
from .cancelling import ONLY_ASYNC, LossCancels
from .leader import NOT_GIVEN, Leader
from .once import OnceLock, checked_keep
from .options import OnLost, Options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from datetime import timedelta

    from django_redlock.backend import Backend, Transaction
    from django_redlock.core.acquire import Wanted
    from django_redlock.core.policy import Policy
    from django_redlock.core.protocol import Grant, Steps
    from django_redlock.inspection.survey import LockState

    from .leader import LeaseHandler

F = TypeVar("F", bound="Callable[..., Any]")
# Functions under ``@redlock``, with alias, names and limit: for the system checks.
decorated: Final[WeakKeyDictionary[Callable[..., Any], tuple[str, tuple[str, ...], int | None]]] = (
    WeakKeyDictionary()
)
Source: TypeAlias = "Callable[[str], Backend]"


def _end(block: Block, lock: Lock, kind: type[BaseException] | None) -> None:
    lease: Lease = block.held
    lease.release()
    if kind is None and lock.raises_loss:
        lock.left(lease)


async def _aend(block: Block, lock: Lock, kind: type[BaseException] | None) -> None:
    lease: Lease = block.held
    lost = block.inside is not None and block.inside.end(kind)
    await lease.arelease()
    if (lost or kind is None) and lock.raises_loss:
        lock.left(lease)


async def _aundo(block: Block) -> None:
    if block.inside is not None:
        block.inside.end(None)
    await block.held.arelease()


# A second request to release does no harm.
block_exit: Final = BlockExit(_end, lambda block: block.held.release(), context.innermost)
ablock_exit: Final = AsyncBlockExit(_aend, _aundo, context.innermost)


class Lock:
    """The names to lock, and how. Immutable; several threads and tasks may use it at once.

    Use it in a ``with`` or ``async with`` statement, as a decorator of a function, or by
    ``acquire`` and ``aacquire``. ``atomic`` adds a transaction to the block.

    Attributes:
        names: the names, a tuple of texts.
        template: the template of the names, as in ``"invoice:{pk}"``; "" where there is none.
        cancels: True if the loss of its lease cancels the task that runs the block.
        raises_loss: True if a block of a lost lease raises LeaseLost at its end.
    """

    _decorated: Callable[..., Any] | None = None  # the function whose decorator made this lock

    def __init__(
        self,
        source: Source,
        alias: str,
        name: str | Sequence[str],
        options: Options,
        *,
        template: str = "",
    ) -> None:
        self._source = source
        self._alias = alias
        self.names: Final = check_names(name)
        if options.limit is not None and len(self.names) != 1:
            msg = f"limit takes one name, not {len(self.names)}: each has slots of its own"
            raise ValueError(msg)
        self.template: Final = template
        self._options = options
        self.cancels: Final = options.on_lost == "cancel"
        self.raises_loss: Final = self.cancels or options.on_lost == "raise"
        self._filled = False  # whether braces in the names are text, or there are none
        self._wanted: tuple[Policy, Wanted] | None = None  # of the last policy

    def __repr__(self) -> str:
        name = self.names[0] if len(self.names) == 1 else list(self.names)
        limit = "" if self.limit is None else f" limit={self.limit}"
        return f"<Lock {name!r} of {self._alias!r}{limit}>"

    if not TYPE_CHECKING:  # a type checker knows attributes, but takes every object for true

        def __getattr__(self, name: str) -> Never:
            raise unknown_attribute(self, name)

        def __bool__(self) -> Never:
            raise TypeError(no_truth(self))

    @property
    def alias(self) -> str:
        """The alias whose nodes decide, as text."""
        return self._alias

    @property
    def limit(self) -> int | None:
        """How many may hold it at a time; None if one may, and there are no slots."""
        return self._options.limit

    # -- acquiring ------------------------------------------------------------------------------

    def acquire(self, wait: float | None = None, **unknown: Never) -> Lease:
        """Take the lock.

        Args:
            wait: seconds to wait in the queue while the name is taken, and to try again while
                no majority of the nodes can be asked. 0 does not wait, ``float("inf")`` waits
                for ever, None waits as the Lock was made.

        Returns:
            The lease; release it.

        Raises:
            LockTaken: the name was still taken at the end.
            NodesUnavailable: no majority of the nodes could be asked at the end.
            ValueError: a bad name, or a ttl that the alias does not allow.
            SynchronousOnlyOperation: an event loop runs in this thread; without Django it
                is a RuntimeError.
        """
        if unknown:
            raise unknown_keywords("acquire", unknown, ["wait"])
        return self.hold(None, wait)

    async def aacquire(self, wait: float | None = None, **unknown: Never) -> Lease:
        """Take the lock as ``acquire`` does, in a task. A cancelled task leaves nothing taken."""
        if unknown:
            raise unknown_keywords("aacquire", unknown, ["wait"])
        return await self.ahold(None, wait)

    def try_acquire(self, **unknown: Never) -> Lease | None:
        """Take the lock if it is free, without waiting.

        Returns:
            The lease, or None if the name is taken.

        Raises:
            NodesUnavailable: no majority of the nodes could be asked.
        """
        if unknown:
            raise TypeError("try_acquire() takes nothing, and does not wait: write acquire(wait=5)")
        try:
            return self.hold(None, 0)
        except LockTaken:
            return None

    async def atry_acquire(self) -> Lease | None:
        """Take the lock as ``try_acquire`` does, in a task."""
        try:
            return await self.ahold(None, 0)
        except LockTaken:
            return None

    def hold(
        self,
        block: Block | None,
        wait: float | None = None,
        through: Callable[[Steps[Lease]], Steps[Lease]] | None = None,
    ) -> Lease:
        """Take the lock, for a block, which keeps the lease before anything can interrupt.

        ``through`` passes the steps on, and may interrupt them.
        """
        if self.cancels:
            raise TypeError(ONLY_ASYNC)
        backend = self._source(self._alias)
        backend.refuse_event_loop()
        steps = self._taking(backend, wait, block)
        return backend.run(steps if through is None else through(steps))

    def ahold(self, block: Block | None, wait: float | None = None) -> Awaitable[Lease]:
        """Take the lock as ``hold`` does, in a task."""
        if self.cancels and block is None:
            raise TypeError(ONLY_ASYNC)
        backend = self._source(self._alias)
        return backend.arun(self._taking(backend, wait, block))

    def _taking(self, backend: Backend, wait: float | None, block: Block | None) -> Steps[Lease]:
        options = self._options
        if not self._filled:
            check_no_fields(self.names)
            warn_of_names(self.names)
            self._filled = True
        if options.durable is not False and backend.in_transaction():
            refuse_or_warn(self, durable=bool(options.durable), decorated=self._decorated)
        if wait is None:
            wait = backend.wait if options.wait is None else options.wait
        elif isinstance(wait, bool):  # acquire(False), as of threading and redis-py
            raise TypeError(
                "wait must be a number of seconds, not bool: try_acquire() does not wait, and "
                "returns None where the name is held; acquire(wait=5) waits up to 5 seconds"
            )
        else:
            check_seconds("wait", wait, zero=True, endless=True)
        policy, wanted = backend.policy, self._wanted
        if wanted is None or wanted[0] is not policy:  # an alias may have other settings by now
            self._wanted = wanted = policy, self._wanted_by(policy)
        label = options.label or backend.label()
        ttl = backend.ttl if options.ttl is None else backend.check_ttl(options.ttl)
        steps = acquire.acquire(
            policy,
            wanted[1],
            label=label,
            ttl=ttl,
            wait=wait,
            waits_for=options.waits_for,
            thorough=bool(options.thorough),
            puts_back=bool(options.puts_back),
        )
        return make_lease(backend, steps, options, block, self.template)

    def _wanted_by(self, policy: Policy) -> Wanted:
        limit = self._options.limit
        if limit is not None:
            return limited.Slots(policy, self.names[0], limit, self.template)
        return acquire.Names(policy, policy.target(self.names, self.template))

    def state(self) -> LockState:
        """Look up the holder of the lock, to show it. ``try_acquire`` works only if it is free.

        Of a limited lock, ``each`` has the state of each slot.

        Raises:
            NodesUnavailable, ValueError, SynchronousOnlyOperation: as ``acquire``.
        """
        backend = self._source(self._alias)
        backend.refuse_event_loop()
        return backend.run(self._look(backend))

    async def astate(self) -> LockState:
        """Look as ``state`` does, in a task."""
        backend = self._source(self._alias)
        return await backend.arun(self._look(backend))

    def _look(self, backend: Backend) -> Steps[LockState]:
        from django_redlock.inspection.survey import (
            look,
            look_at_slots,
        )  # not imported by those who only lock

        if not self._filled:
            check_no_fields(self.names)
        if self.limit is not None:
            return look_at_slots(backend, self.names[0], self.limit)
        return look(backend, self.names)

    # -- in a ``with`` --------------------------------------------------------------------------

    def __enter__(self) -> Lease:
        return block_exit.enter(self, self.hold)

    def __aenter__(self) -> Coroutine[Any, Any, Lease]:
        return ablock_exit.aenter(self, self.ahold)

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...
        async def __aexit__(self, *error: object) -> None: ...

    else:
        __exit__ = block_exit
        __aexit__ = ablock_exit

    def left(self, lease: Lease) -> None:
        """Raise LeaseLost for a lost lease, if ``on_lost`` says so; the body did not fail."""
        if self.raises_loss and lease.lost:
            why = lease.ending()
            if why.code != ReasonCode.REVOKED:  # which tells by whom
                why = because(ReasonCode.LOST_IN_BLOCK)
            raise LeaseLost(why, name=lease.name)

    # -- with a transaction ---------------------------------------------------------------------

    @overload
    def atomic(self, using: F) -> F: ...
    @overload
    def atomic(self, using: str | None = None) -> AtomicLock: ...
    def atomic(self, using: Any = None) -> Any:
        """Put a database transaction into the block: lock, BEGIN, body, COMMIT, release.

        Use it in a ``with`` statement or as a decorator. The lock is durable there: inside another
        transaction it is refused. A body that raises is rolled back; so is one whose lease is over
        when the COMMIT is due. What ``transaction.on_commit`` registered runs before the release.

        Args:
            using: the alias of the database. None: "default".

        Returns:
            The context manager; or, if ``using`` is a function, that function, decorated.

        Raises:
            TypeError: ``using`` is no text; there is no form for ``async with`` and ``async def``,
                nor for ``on_lost="cancel"``.
        """
        lock = self.durable()
        if callable(using):
            return AtomicLock(lock, None)(using)
        return AtomicLock(lock, using)

    def _updated(self, **options: Any) -> Lock:
        changed = self._options.updated(**options)
        lock = Lock(self._source, self._alias, self.names, changed, template=self.template)
        lock._filled = self._filled
        return lock

    @advised(".once(keep=timedelta(hours=20)): how long the work is not done again")
    def once(self, keep: timedelta | float) -> OnceLock:
        """Do the work of the block once in a while, not only one at a time.

        When the block has succeeded, and before the lock is free, the nodes record that its work is
        done. A caller that asks for the name in that time learns when that was, and has nothing to
        do. Python runs its block anyway, so the body has to ask: ``if run.fresh:``. A body that
        does not ask is told (RuntimeError, or an error in the log where its work is done by then).

        A block that raised leaves no record, nor does one whose lease was lost or revoked. It is
        *at least once*: a process that dies between the work and the record leaves none.

        Use it in ``with`` or ``async with``, or as a decorator of a function; ``atomic`` of it adds
        a transaction.

        Args:
            keep: how long the work is not done again, from its end: a timedelta, or seconds. It
                may be longer than MAX_TTL.

        Returns:
            The context manager; its target is a ``OnceRun``.

        Raises:
            TypeError, ValueError: ``keep`` makes no sense, or the lock has several names, or a
                limit.
        """
        seconds = checked_keep(keep)
        if len(self.names) != 1:
            msg = f"once takes one name, not {len(self.names)}: it is that of the work"
            raise ValueError(msg)
        if self.limit is not None:
            msg = "once takes no limit: work that is done once is done by one at a time"
            raise ValueError(msg)
        return OnceLock(self._updated(thorough=True, puts_back=True), seconds)

    def durable(self) -> Lock:
        """Return this lock for a block that has the transaction inside.

        Raises:
            TypeError: it has ``on_lost="cancel"``: there is no transaction in a task.
        """
        if self.cancels:
            raise TypeError(ONLY_ASYNC)
        return self._updated(durable=True)

    def transaction(self, using: str | None) -> Transaction:
        """Return a transaction of this database, which has not begun yet."""
        return self._source(self._alias).atomic(using)

    # -- for as long as the process lives -------------------------------------------------------

    @advised(".leader(on_elected=work)")
    def leader(
        self, *, on_elected: LeaseHandler = NOT_GIVEN, on_lost: LeaseHandler = NOT_GIVEN
    ) -> Leader:
        """Campaign for the lock in the background of a block: of all that do, one leads.

        ``with`` campaigns in a thread of its own, ``async with`` in a task. A campaign waits for
        the lock without an end and renews it; when the lease is lost, it gets in line again. The
        end of the block asks ``on_elected`` to stop: ``redlock.leads(name)`` is False. It waits
        until the function has returned, renews the lock meanwhile, and then releases: the next
        process leads at once. After 10 seconds a warning names the function. Ctrl-C leaves the
        wait, and not the lock. After a crash the next process leads when the ttl is over.

        Args:
            on_elected: called with the lease when this process leads. It is the work: let it loop
                while ``redlock.leads(name)``. Without ``on_lost``, its return ends the turn: that
                is logged, another process may lead, and this one gets in line again later. So does
                an error.
            on_lost: for an ``on_elected`` that starts something and returns: called with the lease
                when this process leads no more, to end that, and before the release. It is also
                called when ``on_elected`` has raised. An error is logged.

        Both are called one after the other, in the thread of the campaign; in its loop, where they
        may be coroutine functions, and ``on_elected`` is cancelled when it is to stop. Without
        both, code asks ``redlock.leads(name)``. The lock's ``wait``, ``renew`` and ``durable`` do
        not count. If the task of the campaign is cancelled, or its greenlet is killed, the
        campaign ends, which is logged as an error.

        Raises:
            TypeError: an argument cannot be called, or the lock has an ``on_lost`` of its own, or a
                limit; at the block's begin, ``with`` was given a coroutine function.
            RuntimeError: at the block's begin, its campaign runs already.
            ValueError: at the block's begin, as for ``acquire``.
            SynchronousOnlyOperation: ``with`` in an event loop.
        """
        if self.limit is not None:
            raise TypeError("leader takes no limit: only one process leads at a time")
        if self._options.on_lost is not None:
            raise TypeError("this lock has an on_lost already: give it to leader(on_lost=...) only")

        def lock_of(on_lost: OnLost) -> Lock:
            return self._updated(wait=math.inf, renew=True, durable=False, on_lost=on_lost)

        handlers: list[LeaseHandler | None] = []
        given: list[tuple[str, Any]] = [("on_elected", on_elected), ("on_lost", on_lost)]
        for name, function in given:
            if function is None:
                msg = f"{name} is None: write the function without parentheses, or leave it out"
                raise TypeError(msg)
            handlers.append(None if function is NOT_GIVEN else function)
        return Leader(lock_of, (self._alias, self.names), *handlers)

    def checked(self) -> Backend:
        """Return the backend, if the lock can be taken there.

        Raises:
            ValueError: a name has fields, or the alias does not allow an option.
        """
        if not self._filled:
            check_no_fields(self.names)
        backend, options = self._source(self._alias), self._options
        backend.check_ttl(backend.ttl if options.ttl is None else options.ttl)
        backend.check_min_hold(options.min_hold or 0.0)
        return backend

    # -- decorating -----------------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        """Run ``function`` under the lock; fields of the names are filled from its arguments.

        Raises:
            TypeError: not a function, or a generator function, whose body would run after the
                release; a plain function, with ``on_lost="cancel"``; at the call, a plain function
                returned a coroutine.
            ValueError: a field is no parameter of the function.
        """
        wrap = await_under if is_async(function) else run_under
        return wrap(function, self.of_calls(function))  # type: ignore[return-value]

    def of_calls(
        self, function: Callable[..., Any]
    ) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Lock]:
        """Return what makes the lock of a call of ``function`` from the call's arguments.

        Raises:
            TypeError: a plain function, with ``on_lost="cancel"``.
            ValueError: a field is no parameter of the function.
        """
        if self.cancels and not is_async(function):
            raise TypeError(ONLY_ASYNC)
        if self._options.foreign is None:  # else the checks would compare it with the program's
            with suppress(TypeError):  # of a callable without a hash
                decorated[function] = self._alias, self.names, self.limit
        if self._filled:  # by ``LockTemplate.named``: braces are of a value
            lock = Lock(
                self._source, self._alias, self.names, self._options, template=self.template
            )
            lock._filled, lock._decorated = True, function
            return lambda _, __: lock
        arguments = arguments_of(function, self.names)
        # Without a field it may be the text of an f-string: no end to such, as to names.
        template = None if any(map(has_fields, self.names)) else ""
        return lambda args, kwargs: self.filled(arguments(args, kwargs), function, template)

    def filled(
        self,
        arguments: Mapping[str, Any],
        decorated: Callable[..., Any] | None = None,
        template: str | None = None,
        *,
        strict: bool = False,
        label: str | None = None,
    ) -> Lock:
        """Return this lock with the fields of its names filled in; braces in values are text.

        Args:
            arguments: the values of the fields, by name.
            decorated: the function under the decorator, if there is one.
            template: what metrics have for the names; None: the names as they are here.
            strict: see ``core.names.fill``.
            label: the owner label; None: as this lock has it.

        Raises:
            TypeError, ValueError: as ``core.names.fill``.
        """
        names = [fill(name, arguments, strict=strict) for name in self.names]
        made_of = ", ".join(self.names) if template is None else template
        options = self._options if label is None else replace(self._options, label=label)
        lock = Lock(self._source, self._alias, names, options, template=made_of)
        lock._filled, lock._decorated = True, decorated
        return lock


# -- from a grant to a lease ----------------------------------------------------------------------


def make_lease(
    backend: Backend,
    steps: Steps[Grant],
    options: Options,
    block: Block | None = None,
    template: str = "",
) -> Steps[Lease]:
    """Carry out ``steps``, make a lease of the grant, and let ``block`` keep it if that is given.

    ``template`` is what a refusal is told with.

    An interruption at any call leaves no name taken: there is no call between the grant and its
    assignment to ``grant``, and from there on every way out but the last releases it.
    """
    on_lost = None if options.on_lost is None else _heard_by(options.on_lost, block)
    renew = backend.renew if options.renew is None else options.renew
    max_hold = backend.max_hold if options.max_hold is None else options.max_hold
    min_hold = backend.check_min_hold(options.min_hold) if options.min_hold else 0.0
    began, grant, lease = backend.policy.clock(), None, None
    try:
        grant = yield from steps
        lease = Lease(
            backend, grant, min_hold=min_hold, renew=renew, max_hold=max_hold, on_lost=on_lost
        )
        if block is not None:
            block.keep(lease)
        if options.foreign is None:
            context.push(lease)
        else:
            options.foreign(lease)
        watchdog.watch(lease)
        if options.foreign is None:
            lease.tell(EventKind.ACQUIRED, since=began)  # inside: a listener may be interrupted
    except GeneratorExit:
        raise
    except BaseException as error:
        if lease is not None:
            lease.disown()
        if grant is not None:
            yield from hold.release(backend.policy, grant)
        elif isinstance(error, RedlockError) and options.foreign is None:
            if isinstance(error, LockTaken):
                context.explain_reentry(error)
            quiet, once = bool(options.quiet), bool(options.puts_back)
            tell_refusal(backend, error, began, template, quiet=quiet, once=once)
        raise
    return lease


def _heard_by(on_lost: OnLost, block: Block | None) -> Callable[[Lease], object] | None:
    if on_lost == "cancel" and block is not None:
        block.inside = LossCancels()
        return block.inside  # type: ignore[no-any-return]
    return on_lost if callable(on_lost) else None


def tell_refusal(
    backend: Backend,
    error: RedlockError,
    began: float,
    template: str,
    *,
    quiet: bool = False,
    once: bool = False,
) -> None:
    """Tell listeners that the names of ``error`` were refused to one who asked at ``began``.

    To one who wants work to be done ``once``, the record of that work is no refusal.
    """
    kind = EventKind.UNAVAILABLE if isinstance(error, NodesUnavailable) else EventKind.REFUSED
    if once and error.code == ReasonCode.RECORDED:
        kind = EventKind.DONE
    if events.wanted(kind):
        waited, votes = backend.policy.clock() - began, VoteCount.of(error.votes)
        event = Event(kind, backend.alias, error.name, waited, votes=votes, error=error)
        event = event._replace(template=template)
        events.tell(event, quiet=quiet and kind is EventKind.UNAVAILABLE)
