"""Track which leases the running code holds, for each thread and each asyncio task.

References are weak: the holder keeps its lease alive, this module does not.
"""

from __future__ import annotations

import contextvars
import weakref
from typing import TYPE_CHECKING, TypeAlias

from django_redlock.core.errors import LeaseLost, LockTaken
from django_redlock.core.protocol import Answer
from django_redlock.core.reasons import ReasonCode, because

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .lease import Lease

Stack: TypeAlias = "tuple[weakref.ref[Lease], ...]"
_stack: contextvars.ContextVar[Stack] = contextvars.ContextVar("redlock_leases", default=())


def push(lease: Lease) -> None:
    """Make ``lease`` the innermost one; drop leases that have ended.

    A long stack is looked through only when its innermost lease has ended, or it has doubled.
    """
    stack = _stack.get()
    if stack and stack[-1]() is None:  # as nearly always: the last block is over
        stack = stack[:-1]
    if stack and (not len(stack) & (len(stack) - 1) or _if_held(stack[-1]) is None):
        stack = tuple(filter(_if_held, stack))
    _stack.set((*stack, weakref.ref(lease)))


def explain_reentry(taken: LockTaken) -> None:
    """Say so in the error, if the holder is a lease of the running code or of what started it.

    A node tells a digest of the holder, so no other lease of the same name is taken for it.
    """
    if taken.code != ReasonCode.HELD:
        return
    holders = {vote.owner for vote in taken.votes if vote.answer is Answer.NO}
    asked = (taken.name,) if isinstance(taken.name, str) else taken.name
    for lease in leases():
        if lease.grant.owner in holders:
            for name in asked:
                if name in lease.names:
                    taken.explain(reentered=name)
                    return


def leases() -> list[Lease]:
    """Return the leases of this thread or task that have not ended, innermost first."""
    return [lease for each in reversed(_stack.get()) if (lease := _if_held(each)) is not None]


def _if_held(reference: weakref.ref[Lease]) -> Lease | None:
    """Return the lease, unless it has ended or its block is gone."""
    lease = reference()
    return None if lease is None or lease.ended or lease.torn else lease


def innermost(of: Sequence[Lease]) -> Lease:
    """Return the innermost of these leases in this thread or task, also a released one.

    If this thread or task has none, return one of another: one that is over first.
    """
    for lease in leases():
        if lease in of:
            return lease
    ended = [lease for lease in of if lease.ended or lease.lost]
    return (ended or of)[-1]


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
        if lease.slot is None and name in lease.names:  # a slot keeps nobody out
            lease.ensure()
            return lease
    slots = [each.slot for each in leases() if each.slot is not None and each.name == name]
    more = {"in_slot": slots[0]} if slots else {}
    raise LeaseLost(because(ReasonCode.NEVER_TAKEN, **more), name=name)
