"""Leave a record that the work of a lease is done, which others meet who want the name.

A message queue delivers a message again that was not acknowledged in time. The copy must not run
if the work is done, and must run if the first run died. So a run holds, beside the key that it
locks, the *run name* of its message:

1. It takes both in one grant; a node looks at the run name first.
2. When the body ends, the key is freed. The run name stays held, and is renewed until
   the result is stored and what follows has been sent.
3. Then the run name becomes the *completion record* in one step on each node, before the message
   is acknowledged: only where it is still the lease's, on all nodes, and all prompt ones are waited
   for. The record is no lease. It cannot be extended, released or woken, and ends by itself.
4. A copy asks all nodes for both names. It meets a record in *any* reply: the work is done. It
   meets the run name: the first run lives, and the copy waits. Else it runs.

One record is enough, because a node has it from the holder alone, who wrote it while the lease was
good. A majority of the nodes is not enough to write to: one that restarts empty takes its record
with it, and the copy finds a majority without any. If the lease was lost meanwhile, another run may
work already, and this one's writes may have been refused: then nothing is recorded.

What no order covers: a crash after the work and before the record. Then the copy runs, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .commands import Complete
from .hold import insist
from .policy import Policy, milliseconds
from .protocol import Grant, Steps, Vote, Votes
from .quorum import count, counting

if TYPE_CHECKING:
    from collections.abc import Sequence


def split(grant: Grant) -> tuple[Grant, Grant]:
    """Return the grant of the private names, and that of the others; they share a nonce."""
    target = grant.target
    kept, others = slice(target.private), slice(target.private, None)
    return (
        grant._replace(target=target.part(kept)),
        grant._replace(target=target.part(others)),
    )


def complete(policy: Policy, grant: Grant, *, life: float) -> Steps[Sequence[Vote]]:
    """Turn the names of a grant into completion records; return the votes.

    A YES is a node that has the records now. The holder must have stopped relying on the lease.

    Args:
        life: seconds after which the nodes forget the records; not bounded by MAX_TTL, for they
            are no leases.
    """
    ask = Complete(
        grant.nonce,
        counting(recorded_or_not, policy.majority),
        grant.target,
        milliseconds(life),
        to=grant.touched,
        lasts=policy.max_ttl,
    )
    return (yield from insist(ask))


def recorded_or_not(votes: Votes, majority: int) -> bool:
    """Tell whether the outcome is clear: a majority has the record, or none can have it any more.

    A majority of replies is not enough: a node that was emptied has nothing to turn into a record.
    """
    yes, _, rest = count(votes)
    return yes >= majority or yes + rest < majority
