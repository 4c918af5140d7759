"""Which leases the running code holds: the innermost one, and whether a name is among them.

Kept for each thread and each asyncio task, weakly: the holder keeps the lease, not we.
"""

from __future__ import annotations

import contextvars
import weakref
from typing import TYPE_CHECKING, TypeAlias

from django_redlock.core.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .lease import Lease

Stack: TypeAlias = "tuple[weakref.ref[Lease], ...]"
_stack: contextvars.ContextVar[Stack] = contextvars.ContextVar("redlock_leases", default=())


def push(lease: Lease) -> None:
    """Make ``lease`` the innermost one; leases that have ended leave."""
    _stack.set((*(weakref.ref(each) for each in _outermost_first()), weakref.ref(lease)))


def leases() -> list[Lease]:
    """The leases of this thread or task that have not been released, innermost first."""
    return list(_outermost_first())[::-1]


def _outermost_first() -> Iterator[Lease]:
    for reference in _stack.get():
        lease = reference()
        if lease is not None and not lease.ended:
            yield lease


def current_lease() -> Lease | None:
    """The innermost lease of this thread or task, also one whose time is over; or None."""
    found = leases()
    return found[0] if found else None


def assert_locked(name: str) -> Lease:
    """See that the running code holds ``name``; put it at the top of code that needs it.

    Returns:
        The lease.

    Raises:
        LeaseLost: it does not, or its time is over.
    """
    for lease in leases():
        if name in lease.names:
            lease.ensure()
            return lease
    raise LeaseLost("this code runs without the lock that it needs", name=name)
