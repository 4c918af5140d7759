"""Make the error of an attempt that failed: the holder of the names, or why no holder is known."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from .errors import LockTaken, NodesUnavailable
from .protocol import Answer
from .quorum import count, free_in, has_record
from .reasons import ReasonCode, because

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .policy import Policy
    from .protocol import LockKeys, Vote

Refusal: TypeAlias = LockTaken | NodesUnavailable


def refusal_of(
    policy: Policy, target: LockKeys, votes: Sequence[Vote], *, in_time: bool
) -> Refusal:
    """Return LockTaken if a majority replied at all, or one has a record; else NodesUnavailable."""
    if has_record(votes):
        return LockTaken(because(ReasonCode.RECORDED), name=target.name, votes=votes)
    if not in_time:
        reason = because(ReasonCode.GRANTED_TOO_LATE)
        return NodesUnavailable(reason, name=target.name, votes=votes)
    yes, no, _ = count(votes)
    if yes + no < policy.majority:
        size, needed = policy.size, policy.majority
        reason = because(ReasonCode.NO_MAJORITY, votes=yes + no, size=size, needed=needed)
        return NodesUnavailable(reason, name=target.name, votes=votes)
    if not no:
        reason = because(ReasonCode.FENCE_UNKNOWN)
        return NodesUnavailable(reason, name=target.name, votes=votes)
    refused = [vote for vote in votes if vote.answer is Answer.NO]
    holders = Counter(vote.holder for vote in refused if vote.holder)
    holder = holders.most_common(1)[0][0] if holders else None
    return LockTaken(
        because(ReasonCode.HELD, holder=holder or "", nodes=no, size=policy.size),
        name=target.name,
        votes=votes,
        retry_after=free_in(refused, policy.majority - yes),
        holder=holder,
    )


def is_hopeless(refusal: NodesUnavailable, majority: int, left: float) -> bool:
    """Tell whether the restart guard keeps a majority from voting for more than ``left`` seconds.

    How long a guard lasts is known, and it never becomes shorter. What else keeps a node from
    voting may be over at any moment.
    """
    return sum(_guard_left(vote) <= left for vote in refusal.votes) < min(
        majority, len(refusal.votes)
    )


def _guard_left(vote: Vote) -> float:
    reason = vote.reason
    if reason is None or reason.code is not ReasonCode.RESTART_GUARD:
        return 0.0
    seconds = reason.data["seconds"]
    return seconds if isinstance(seconds, int | float) else 0.0
