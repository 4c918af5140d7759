"""``redlock``: an alias and default options; calling it describes a ``Lock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django_redlock.core import acquire
from django_redlock.core.names import check_alias
from django_redlock.leases.handles import Handle

from .holding import holding
from .lock import Lock, Source
from .options import OnLost, Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps
    from django_redlock.leases.lease import Lease


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
        steps = acquire.adopt(
            backend.policy,
            backend.policy.target(given.names),
            old=given.nonce,
            label=self._options.label or backend.label(),
            ttl=backend.check_ttl(backend.ttl if ttl is None else ttl),
        )
        return holding(backend, steps, self._options)
