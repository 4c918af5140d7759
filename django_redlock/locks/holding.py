"""Make a lease of a grant, so that an interruption at any call leaves no name taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from django_redlock import events
from django_redlock.core import hold
from django_redlock.core.errors import LockTaken, NodesUnavailable, RedlockError
from django_redlock.events import Event, EventKind, VoteCount
from django_redlock.leases import context
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import watchdog

if TYPE_CHECKING:
    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Grant, Steps

    from .options import Options

Keep: TypeAlias = Callable[[Lease], object]


def holding(
    backend: Backend, steps: Steps[Grant], options: Options, keep: Keep | None = None
) -> Steps[Lease]:
    """Carry out ``steps``, make a lease of the grant, and pass it to ``keep`` if that is given.

    A signal handler may raise at any call. There is no call between the grant and its assignment
    to ``grant``, and from there on every way out but the last releases it.
    """
    on_lost = options.on_lost if callable(options.on_lost) else None
    renew = backend.renew if options.renew is None else options.renew
    max_hold = backend.max_hold if options.max_hold is None else options.max_hold
    min_hold = backend.check_min_hold(options.min_hold or 0.0)
    began, grant, lease = backend.policy.clock(), None, None
    try:
        grant = yield from steps
        lease = Lease(
            backend, grant, min_hold=min_hold, renew=renew, max_hold=max_hold, on_lost=on_lost
        )
        if keep is not None:
            keep(lease)
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
            _tell_refusal(backend, error, began, quiet=bool(options.quiet))
        raise
    return lease


def _tell_refusal(backend: Backend, error: RedlockError, began: float, *, quiet: bool) -> None:
    kind = EventKind.UNAVAILABLE if isinstance(error, NodesUnavailable) else EventKind.REFUSED
    if events.wanted(kind):
        waited, votes = backend.policy.clock() - began, VoteCount.of(error.votes)
        event = Event(kind, backend.alias, error.name, waited, votes=votes, error=error)
        events.tell(event, quiet=quiet and kind is EventKind.UNAVAILABLE)
