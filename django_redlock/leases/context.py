"""Track which leases the running code holds, for each thread and each asyncio task.

References are weak: the holder keeps its lease alive, this module does not.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from typing import TYPE_CHECKING, TypeAlias

from django_redlock.core.errors import LeaseLost, LockTaken
from django_redlock.core.protocol import Answer
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.nodes.background import running_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .lease import Lease

Stack: TypeAlias = "tuple[weakref.ref[Lease], ...]"
# The running code: a task, or a thread by its number. A context may be copied to others.
Runner: TypeAlias = "weakref.ref[asyncio.Task[object]] | int"
_stack: contextvars.ContextVar[Stack] = contextvars.ContextVar("redlock_leases", default=())
# The task or thread that took a lease last in this context, and what the context had before its
# first lease. A note in each lease would make all of them larger.
_last: contextvars.ContextVar[tuple[Runner, Stack]] = contextvars.ContextVar(
    "redlock_last", default=(0, ())
)


def push(lease: Lease) -> None:
    """Make ``lease`` the innermost one; drop leases that have ended.

    A long stack is looked through only when its innermost lease has ended, or it has doubled.
    """
    reference, runner = weakref.ref(lease), _runner()
    before, expected = _stack.get(), None
    while True:
        stack = before
        if stack and stack[-1]() is None:  # as nearly always: the last block is over
            stack = stack[:-1]
        if stack and (not len(stack) & (len(stack) - 1) or _held(stack[-1]) is None):
            stack = tuple(filter(_held, stack))
        if _last.get()[0] != runner:
            _last.set((runner, stack))
        after = (*stack, reference)
        replaced = _stack.set(after).old_value
        if replaced is before or replaced is expected or replaced is contextvars.Token.MISSING:
            break
        before, expected = replaced, after  # a signal handler has taken a lease that it holds


def _runner() -> Runner:
    loop = running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    return threading.get_ident() if task is None else weakref.ref(task)


def explain_reentry(taken: LockTaken) -> None:
    """Say so in the error, if the holder is a lease of the running code itself.

    A node tells a digest of the holder, so no other lease of the same name is taken for it.
    """
    stack = _stack.get()
    if not stack or taken.code != ReasonCode.HELD:
        return
    holders = {vote.owner for vote in taken.votes if vote.answer is Answer.NO}
    asked = (taken.name,) if isinstance(taken.name, str) else taken.name
    for reference in reversed(stack):
        lease = _held(reference)
        if lease is None or lease.grant.owner not in holders:
            continue
        for name in asked:
            if name in lease.names:
                taken.explain(reentered=name, by=_taken_by(reference))
                return


def _taken_by(reference: weakref.ref[Lease]) -> str:
    """Return who took a lease of this context; where that is not sure, what is true anyhow."""
    runner, (last, before) = _runner(), _last.get()
    if runner != last or any(reference is each for each in before):
        return "this very process, in the code around this one or that started it,"
    return f"this very process and {'thread' if isinstance(runner, int) else 'task'}"


def leases() -> list[Lease]:
    """Return the leases of this thread or task that have not ended, innermost first."""
    return [lease for each in reversed(_stack.get()) if (lease := _held(each)) is not None]


def _held(reference: weakref.ref[Lease]) -> Lease | None:
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
        if name in lease.names:
            lease.ensure()
            return lease
    raise LeaseLost(because(ReasonCode.NEVER_TAKEN), name=name)
