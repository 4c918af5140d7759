"""Tell what happens to a lease: an event for the listeners, and a loss for its holder."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Protocol, TypeVar

from django_redlock import events
from django_redlock.events import Event, EventKind, EventLease, VoteCount, log_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.errors import RedlockError
    from django_redlock.core.protocol import Grant, Vote

logger = logging.getLogger("django_redlock")


class Told(EventLease, Protocol):
    """The part of a lease that its events need; see ``lease``."""

    @property
    def backend(self) -> Backend:
        """The backend of its alias."""

    @property
    def grant(self) -> Grant:
        """What the nodes granted."""


L = TypeVar("L", bound=Told)


def tell(
    lease: Told,
    kind: EventKind,
    *,
    since: float | None = None,
    votes: Sequence[Vote] | None = None,
    error: RedlockError | None = None,
) -> None:
    """Tell an event of the lease.

    Args:
        lease: what the event is about.
        kind: what happened.
        since: when the seconds of the event began, on the clock of the deadline; None: with the
            attempt that got the lease. They end at the deadline at the latest.
        votes: of the nodes; None: those of the last grant or extension.
        error: why the lease is lost, or was not renewed.
    """
    if not events.wanted(kind):
        return
    grant, backend = lease.grant, lease.backend
    event = Event(
        kind,
        backend.alias,
        lease.name,
        min(backend.policy.clock(), grant.deadline) - (grant.since if since is None else since),
        lease.fence,
        VoteCount.of(grant.votes if votes is None else votes),
        lease,
        error,
    )
    events.tell(event)


def warn_of_parent(name: str | Sequence[str]) -> bool:
    """Warn that a lease belongs to the parent of this process; return True."""
    message = f"{name!r} belongs to the parent process: not released here"
    warnings.warn(message, RuntimeWarning, stacklevel=4)
    return True


def call_on_lost(lease: L, on_lost: Callable[[L], object] | None) -> None:
    """Call the holder's ``on_lost``, if there is one."""
    if on_lost is None:
        return
    try:
        on_lost(lease)
    except Exception:  # the holder's error must not end the watchdog or hide the body's
        fields = log_fields(lease.backend.alias, lease.name, fence=lease.fence)
        logger.exception("on_lost of %r failed", lease.name, extra=fields)
