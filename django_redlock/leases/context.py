"""Track which leases the running code holds, for each thread and each asyncio task.

References are weak: the holder keeps its lease alive, this module does not.

Leases are also numbered, so that a request can ask whether one was held since its view began. The
newest number of a context does not come back from the tasks that it starts, but ``_Newest`` does.
"""

from __future__ import annotations

import contextvars
import itertools
import weakref
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from django_redlock.core.errors import LeaseLost
from django_redlock.core.reasons import ReasonCode, because

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .lease import Lease

Stack: TypeAlias = "tuple[weakref.ref[Lease], ...]"
_stack: contextvars.ContextVar[Stack] = contextvars.ContextVar("redlock_leases", default=())
_numbers = itertools.count(1)
_newest: contextvars.ContextVar[int] = contextvars.ContextVar("redlock_newest", default=0)


class _Newest:
    """The number of the newest lease of a view, its tasks and its threads."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


_shared: contextvars.ContextVar[_Newest | None] = contextvars.ContextVar(
    "redlock_newest_of_view", default=None
)


def push(lease: Lease) -> None:
    """Make ``lease`` the innermost one; drop leases that have ended.

    A long stack is looked through only when its innermost lease has ended, or it has doubled.
    """
    stack = _stack.get()
    if stack and (not len(stack) & (len(stack) - 1) or not _is_held(stack[-1]())):
        stack = tuple(each for each in stack if _is_held(each()))
    _stack.set((*stack, weakref.ref(lease)))
    number = next(_numbers)
    _newest.set(number)
    shared = _shared.get()
    if shared is not None:
        shared.number = number


def now() -> int:
    """Return a number between those of the leases before and after this call."""
    return next(_numbers)


def share() -> int:
    """Let the tasks and threads that are started from here on count their leases as ours.

    Returns:
        A number for ``held_since``.
    """
    _shared.set(_Newest())
    return now()


def held_since(number: int) -> bool:
    """Return True if a lease was taken since ``now`` or ``share`` gave this number."""
    shared = _shared.get()
    return _newest.get() > number or (shared is not None and shared.number > number)


def leases() -> list[Lease]:
    """Return the leases of this thread or task that have not ended, innermost first."""
    return list(_outermost_first())[::-1]


def _outermost_first() -> Iterator[Lease]:
    for reference in _stack.get():
        lease = reference()
        if _is_held(lease):
            yield lease


def _is_held(lease: Lease | None) -> TypeGuard[Lease]:
    return lease is not None and not (lease.ended or lease.torn)


def current_lease() -> Lease | None:
    """Return the innermost lease of this thread or task, also one whose time is over.

    Returns:
        The lease, or None if this thread or task has none.
    """
    found = leases()
    return found[0] if found else None


def assert_locked(name: str) -> Lease:
    """Check that the running code holds ``name``; put it at the top of code that needs it.

    Args:
        name: the name of a lock, as text.

    Returns:
        The innermost lease that has this name.

    Raises:
        LeaseLost: this thread or task has no such lease, or the time of the lease is over.
    """
    for lease in leases():
        if name in lease.names:
            lease.ensure()
            return lease
    raise LeaseLost(because(ReasonCode.NEVER_TAKEN), name=name)
