"""``redlock``: an alias and default options; calling it describes a ``Lock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Never

from django_redlock.core import acquire
from django_redlock.core.names import check_alias, check_names, check_values
from django_redlock.core.policy import check_seconds
from django_redlock.leases.lease import Handle

from .advice import advised, unknown_keywords
from .atomic import ADOPTED, refuse_or_warn
from .cancelling import ONLY_ASYNC
from .leader import leads
from .lock import Lock, Source, make_lease
from .options import FOR_USERS, OnLost, Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps
    from django_redlock.inspection.revoke import Revoked
    from django_redlock.leases.lease import Lease


class LockTemplate:
    """An alias and default options: calling it describes a lock. Immutable."""

    def __init__(
        self, source: Source, alias: str = "default", options: Options | None = None
    ) -> None:
        self._source = source
        self.alias: Final = alias
        self._options = options or Options()

    @property
    def options(self) -> Options:
        """The options of its locks; None is the alias's default."""
        return self._options

    def __repr__(self) -> str:
        return f"<LockTemplate {self.alias!r}>"

    if not TYPE_CHECKING:  # a type checker knows that it is no block

        def __enter__(self) -> Never:
            raise TypeError("a block needs the name of its lock: write 'with redlock(\"name\"):'")

        def __aenter__(self) -> Never:
            raise TypeError(
                "a block needs the name of its lock: write 'async with redlock(\"name\"):'"
            )

        __exit__ = __aexit__ = __enter__  # Python looks it up before it enters

    @advised("redlock('name'), or a list of names: redlock(['a', 'b'])")
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
        limit: int | None = None,
        **unknown: Never,
    ) -> Lock:
        """Describe a lock; no node is asked yet.

        Args:
            name: 1 to 512 bytes without control characters, or a list of names: all of them
                or none. Braces are fields of a decorator's template.
            ttl: seconds after which the nodes forget a holder that does not renew its lease; at
                most MAX_TTL. None: the alias's TTL.
            wait: seconds to wait in the queue while the name is taken; see ``Lock.acquire``.
                None: the alias's WAIT.
            renew: whether a watchdog renews the lease while it is held. None: RENEW.
            max_hold: seconds after which the watchdog stops; ``float("inf")``: never. None:
                MAX_HOLD.
            min_hold: seconds, counted from the attempt, for which the name stays taken when it
                is released earlier. A lease that runs out or is lost frees the name at its
                ttl.
            on_lost: a plain function, called with the lease when it is lost, by the thread that
                finds out; or "raise": LeaseLost at the end of a block that succeeded; or, for
                ``async with`` and ``async def``, "cancel": the task that runs the block is
                cancelled, and the block ends in LeaseLost, as that of ``asyncio.timeout`` does
                in TimeoutError.
            durable: what to do inside a database transaction, where the lock would be released
                before the COMMIT. True refuses by a RuntimeError, None warns by a
                LockInTransactionWarning, False takes it silently.
            limit: how many may hold the lock at a time, 1 to 128: each holder has one of so many
                slots, ``lease.slot``. A limited lock is another lock than the one of the same name
                without a limit. None: one holder, without slots.

        Raises:
            TypeError, ValueError: an argument makes no sense; the text says which.
        """
        if unknown:
            raise unknown_keywords("a lock", unknown, FOR_USERS)
        options = self._options.called_with(
            *(ttl, wait, renew, max_hold, min_hold, on_lost, durable, limit)
        )
        return Lock(self._source, self.alias, name, options)

    def named(self, template: str | Sequence[str], /, **values: object) -> Lock:
        """Describe the lock whose name is a template, filled in with these values.

        ``redlock.named("invoice:{pk}", pk=42)`` is the lock ``redlock("invoice:42")``. Events,
        metrics and spans have the template besides: there are few templates, and any number of
        names. Options are given before, by ``using``: all keywords are values.

        Args:
            template: of the name, with fields as in ``str.format``, or a list of such. A text
                without a field is no template.
            values: of the fields: texts, numbers, UUIDs, dates and the like. A name that would be
                longer than 512 bytes, or have control characters, ends with a digest instead.

        Raises:
            TypeError: a field has no value, a value has no field, or it cannot tell what is
                locked: None, bytes, a collection, a model instance.
            ValueError: it is no template, or a value has no such format.
        """
        lock = Lock(self._source, self.alias, template, self._options)
        check_values(lock.names, values)
        return lock.filled(values, strict=True)

    @advised("redlock.leads('name')")
    def leads(self, name: str | Sequence[str], *, pause: float = 0.0) -> bool:
        """Return whether this process leads: a campaign of ``Lock.leader`` has a valid lease now.

        It compares a clock, and asks no node, so it may be asked before each step. False: another
        process leads, none does, the campaign's block has ended, or this process does not know.
        Time passes after it has returned True, as after ``Lease.ensure``.

        Args:
            name: of the lock, or several, as the campaign has them.
            pause: seconds to sleep first, if this process leads. The loss of the lease and the end
                of the block end the pause at once. In a task, write ``await asyncio.sleep(…)``.

        Raises:
            TypeError, ValueError: it is no name, or ``pause`` no number of seconds.
            SynchronousOnlyOperation: a ``pause`` in an event loop.
        """
        names = check_names(name)
        if check_seconds("pause", pause, zero=True, endless=True):
            self._source(self.alias).refuse_event_loop()
        return leads(self.alias, names, pause)

    def using(self, alias: str | None = None, **options: Any) -> LockTemplate:
        """Return a copy with another alias or other default options.

        Args:
            alias: the alias whose nodes decide. None: as in this template.
            options: those of ``__call__``.

        Raises:
            TypeError, ValueError: the alias or an option makes no sense; the text says which.
        """
        alias = self.alias if alias is None else alias  # "" is a mistake, which check_alias reports
        check_alias(alias)
        return LockTemplate(self._source, alias, self._options.updated(**options))

    def adopt(self, handle: str) -> Lease:
        """Become the holder of the lease that ``Lease.handle`` gave away.

        A handle can be adopted once: of two calls for it, one succeeds.

        Args:
            handle: the text that ``Lease.handle`` returned.

        Returns:
            The lease.

        Raises:
            LeaseLost: it is too late, or the handle was adopted before.
            LockTaken: several calls adopt it at the same time; the handle is still good.
            NodesUnavailable: no majority of the nodes could be asked; the handle is still good.
            ValueError: not a handle, or one of another alias.
            TypeError: the template has ``on_lost="cancel"``: there is no block.
            RuntimeError: inside a transaction, by ``redlock.using(durable=True)``; without, it is
                a LockInTransactionWarning.
        """
        backend = self._source(self.alias)
        backend.refuse_event_loop()
        return backend.run(self._adopting(backend, handle))

    def revoke(
        self,
        name: str,
        *,
        fence: int | None = None,
        reason: str = "",
        now: bool = False,
        slot: int | None = None,
    ) -> Revoked:
        """Take a lock away from its holder: a worker that hangs, for one.

        The holder's lease ends at its next renewal, ``extend`` or ``release``: LeaseLost with the
        code ``revoked``. The name is free when the last deadline is over in which the holder can
        believe, at most its ttl from now: there is never a second holder.

        Args:
            name: the name; of a lease with several names, one ends it for all.
            fence: the lock is taken only from the holder that ``redlock_status`` shows with this
                fence. None: from the holder that has it now.
            reason: for the log and the holder's error, at most 200 characters.
            now: delete the key instead. The name is free at once, while the old holder may work on
                until its deadline: only rows that ``fenced`` guards are safe then.
            slot: of a limited lock, which slot, from 0, as ``lease.slot``. None: the lock without a
                limit, which is another one.

        Returns:
            On how many nodes it is done, and when the name is free.

        Raises:
            LookupError: nobody holds it, a holder with another fence, or, without ``now``, another
                client; or the holder that was found has let go meanwhile.
            NodesUnavailable: no majority of the nodes could be asked, or those that do not vote
                decide whether it is held.
            ValueError: an argument makes no sense; the text says which.
        """
        from django_redlock.inspection.revoke import revoking

        backend = self._source(self.alias)
        backend.refuse_event_loop()
        return backend.run(revoking(backend, name, fence=fence, reason=reason, now=now, slot=slot))

    async def arevoke(
        self,
        name: str,
        *,
        fence: int | None = None,
        reason: str = "",
        now: bool = False,
        slot: int | None = None,
    ) -> Revoked:
        """Take a lock away as ``revoke`` does, in a task."""
        from django_redlock.inspection.revoke import revoking

        backend = self._source(self.alias)
        return await backend.arun(
            revoking(backend, name, fence=fence, reason=reason, now=now, slot=slot)
        )

    async def aadopt(self, handle: str) -> Lease:
        """Become the holder as by ``adopt``, in a task."""
        backend = self._source(self.alias)
        return await backend.arun(self._adopting(backend, handle))

    def _adopting(self, backend: Backend, handle: str) -> Steps[Lease]:
        if self._options.on_lost == "cancel":
            raise TypeError(ONLY_ASYNC)
        given, ttl = Handle.decode(handle), self._options.ttl
        if given.alias != self.alias:
            msg = f"this handle is of the alias {given.alias!r}, not {self.alias!r}"
            raise ValueError(msg)
        durable = self._options.durable
        if durable is not False and backend.in_transaction():
            refuse_or_warn(self, durable=bool(durable), text=ADOPTED)
        steps = acquire.adopt(
            backend.policy,
            backend.policy.target(given.names, given.template, given.slot),
            old=given.nonce,
            label=self._options.label or backend.label(),
            ttl=backend.check_ttl(backend.ttl if ttl is None else ttl),
        )
        return make_lease(backend, steps, self._options, template=given.template)
