"""Keep the private names of a lease when the others are freed, and leave a record in the end.

``core.completion`` says why. While a lease has the names, ``keep`` makes another one for its
private names alone: the two share a nonce, and each is renewed and ends by itself. The release of
the first frees the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django_redlock.core import completion
from django_redlock.core.protocol import Answer

from .lease import Lease
from .watchdog import watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_redlock.core.protocol import Steps

logger = logging.getLogger("django_redlock")


def keep(lease: Lease, owner: Callable[[Lease], object]) -> None:
    """Make a lease of the private names, which are then not released with the others.

    Nothing is kept if the lease is over: then another holder may have the names.

    Args:
        lease: one with private names, in the hands of the caller.
        owner: called with the new lease, which it keeps until it is recorded or released.
    """
    if lease.remaining() <= 0:
        return
    policy, grant = lease.backend.policy, lease.grant
    kept, _ = completion.split(grant)
    began = grant.deadline - policy.validity(grant.ttl)  # of the last renewal
    own = Lease(lease.backend, kept._replace(since=began), renew=True)
    owner(own)
    watchdog.watch(own)
    lease.keep_private()  # from here on; an interruption before leaves one release for all
    own.holding.touch(lease.grant.touched)  # a renewal may have healed both names until here


def record(lease: Lease, life: float) -> bool:
    """End a lease and leave completion records for its names.

    Args:
        lease: what ``keep`` made.
        life: seconds for which the records stay.

    Returns:
        Whether a majority of the nodes has them. They are written only where the names are still
        the lease's, and not at all if its time is over.
    """
    return lease.backend.run(_recording(lease, life))


def _recording(lease: Lease, life: float) -> Steps[bool]:
    if lease.remaining() <= 0:
        return False
    lease.disown()
    policy = lease.backend.policy
    votes = yield from completion.complete(policy, lease.grant, life=life)
    return sum(vote.answer is Answer.YES for vote in votes) >= policy.majority
