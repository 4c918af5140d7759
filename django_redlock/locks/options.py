"""How to lock: the options of a template or a lock, checked when they are given."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from django_redlock.core.policy import check_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_redlock.leases.lease import Lease

OnLost: TypeAlias = "Callable[[Lease], object] | Literal['raise'] | None"


@dataclass(frozen=True, slots=True)
class Options:
    """How to lock; None is the alias's default. See ``LockTemplate.__call__``.

    Two are for our own decorators, not for users: ``label``, the owner label of at most 200
    bytes; and ``quiet``: who asks writes the line of log about nodes that cannot be asked.
    """

    ttl: float | None = None
    wait: float | None = None
    renew: bool | None = None
    max_hold: float | None = None
    min_hold: float | None = None
    on_lost: OnLost = None
    durable: bool | None = None
    label: str | None = None
    quiet: bool | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None:
            check_seconds("ttl", self.ttl)
        if self.wait is not None:
            check_seconds("wait", self.wait, zero=True, endless=True)
        if self.max_hold is not None:
            check_seconds("max_hold", self.max_hold, endless=True)
        if self.min_hold is not None:
            check_seconds("min_hold", self.min_hold, zero=True)
        for name in ("renew", "durable"):
            if getattr(self, name) not in (None, True, False):
                msg = f"{name} must be True or False"
                raise TypeError(msg)
        if not (self.on_lost in (None, "raise") or callable(self.on_lost)):
            msg = "on_lost must be 'raise' or something to call with the lease"
            raise TypeError(msg)
        if any(map(inspect.iscoroutinefunction, (self.on_lost, type(self.on_lost).__call__))):
            msg = (
                "on_lost must be a plain function: it may be called where no event loop runs; "
                "let it wake a task, or connect an async receiver to the signal lease_lost"
            )
            raise TypeError(msg)

    def updated(self, **changes: Any) -> Options:
        """A copy; what is None in ``changes`` stays as it is.

        Raises:
            TypeError, ValueError: an option that there is not, or that makes no sense.
        """
        for key in changes:
            if key not in KNOWN:
                options = ", ".join(KNOWN[:-2])  # the last ones are ours
                msg = f"a lock has no option {key!r}; the options are: {options}"
                raise TypeError(msg)
        given = {key: value for key, value in changes.items() if value is not None}
        return replace(self, **given) if given else self


KNOWN: Final = tuple(option.name for option in fields(Options))
