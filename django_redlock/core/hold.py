"""Hold what was granted: extend it, release it, and roll back a failed attempt.

The requests that undo delete the keys of a nonce, and wake the next waiter. One request extends
many leases, and each has an outcome of its own. A node extends each lease of which all keys still
carry the nonce, and replies which ones these are. The majority of the nodes decides:

    Grant              kept, to a new deadline that is never before the old one
    LeaseLost          over: a majority does not have it, or its deadline passed before the votes
    NodesUnavailable   unknown: it lasts until its old deadline

One lease's outcome says nothing of another's, so a request for many is as good as one for each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from .errors import LeaseLost, NodesUnavailable
from .policy import Policy, milliseconds
from .protocol import Answer, Command, Grant, Request, Steps, Vote
from .quorum import counting, heard, kept_or_not, majority_denies, outcomes_of
from .reasons import ReasonCode, because

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from .protocol import LockKeys

Outcome: TypeAlias = Grant | LeaseLost | NodesUnavailable

RESERVED: Final = 0.05  # seconds for which a released name is kept for the waiter that is woken


# -- undoing ----------------------------------------------------------------------------------


def hand_over(policy: Policy, target: LockKeys, nonce: str, touched: frozenset[int]) -> Request:
    """Return the request that frees the names, or reserves them for the waiter that it wakes."""
    return undo(policy, target, nonce, policy.everyone(), touched=touched, reserve=RESERVED)


def wake_next(policy: Policy, target: LockKeys, wakeup: str) -> Request:
    """Return the request that wakes the next waiter when ``wakeup`` is not used."""
    return undo(policy, target, wakeup, policy.everyone(), touched=frozenset())


def give_back(
    policy: Policy, target: LockKeys, nonce: str, old: str, touched: frozenset[int]
) -> Request:
    """Return the request of an adopter without a majority: the giver's handle is good again."""
    return Request(
        Command.RETURN,
        nonce,
        target.keys,
        (old,),
        counting(heard, policy.majority),
        touched,
        lasts=policy.max_ttl,
    )


def undo(
    policy: Policy,
    target: LockKeys,
    nonce: str,
    to: frozenset[int],
    *,
    touched: frozenset[int] | None = None,
    reserve: float = 0.0,
    wake: Container[int] | None = None,
) -> Request:
    """Return the request that deletes the keys of ``nonce``, and wakes the next waiters.

    Args:
        touched: the nodes that may have these keys; None is all of ``to``.
        reserve: seconds for which a name that has a waiter is kept for it.
        wake: the indices of the names whose waiter is woken; None is all of them.
    """
    flags = "1" * len(target.names)
    if wake is not None:
        flags = "".join("1" if i in wake else "0" for i in range(len(target.names)))
    return Request(
        Command.RELEASE,
        nonce,
        (target.held, target.waits, *target.keys, *target.queues),
        (milliseconds(reserve), flags, *target.names),
        counting(heard, policy.majority),
        to,
        first=target.queue_place(policy.size),
        touched=touched,
        lasts=policy.max_ttl,
    )


# -- releasing --------------------------------------------------------------------------------


def release(policy: Policy, grant: Grant, *, min_hold: float = 0.0) -> Steps[Sequence[Vote]]:
    """Release the grant on every node that may have its keys; return the votes.

    With ``min_hold`` the names stay taken until that many seconds after the attempt began.
    Without, a name that has a waiter is reserved for a moment for the first one, and all nodes are
    asked, since any of them may have the wait queue.
    """
    rest = milliseconds(grant.since + min_hold - policy.clock())
    target, touched = grant.target, grant.touched
    ask = hand_over(policy, target, grant.nonce, touched)
    if rest > 0:
        ask = Request(
            Command.REST,
            grant.nonce,
            (target.held, *target.keys),
            (rest, *target.names),
            counting(heard, policy.majority),
            touched,
            lasts=policy.max_ttl,
        )
    try:
        votes: Sequence[Vote] = yield ask
        if votes[ask.first].number:  # the node of the queue has woken a waiter
            policy.handed_over.note(target.names, grant.since, policy.clock())
        if grant.unswapped:  # the giver's key would stay there for its ttl
            yield undo(policy, target, grant.old, grant.unswapped, wake=())
    except GeneratorExit:
        raise
    except BaseException:
        yield ask  # unknown what arrived; asking twice does no harm
        raise
    return votes


def insist(ask: Request) -> Steps[Sequence[Vote]]:
    """Put a request that may be put twice; after an interruption, once more. Return the votes."""
    try:
        votes: Sequence[Vote] = yield ask
    except GeneratorExit:
        raise
    except BaseException:
        yield ask  # unknown what arrived; asking twice does no harm
        raise
    return votes


# -- extending --------------------------------------------------------------------------------


def extend(policy: Policy, grant: Grant, *, ttl: float) -> Steps[Grant]:
    """Prolong a lease to ``ttl`` seconds from now; never shorten it, never revive it.

    Raises:
        LeaseLost: it is over, or a majority does not have it any more.
        NodesUnavailable: unknown; the lease lasts until its old deadline.
    """
    (outcome,) = yield from extend_many(policy, (grant,), (ttl,))
    if isinstance(outcome, Grant):
        return outcome
    raise outcome


def extend_many(
    policy: Policy, grants: Sequence[Grant], ttls: Sequence[float]
) -> Steps[list[Outcome]]:
    """Prolong each lease to its ttl, in seconds from now; return the outcomes, in order."""
    start = policy.clock()
    pairs = list(zip(grants, ttls, strict=True))
    asked = [pair for pair in pairs if start < pair[0].deadline]
    votes: Sequence[Vote] = ()
    if asked:
        votes = yield _extension(policy, asked)
    now, place = policy.clock(), 0
    heard = [outcomes_of(vote) for vote in votes if vote.answer is Answer.YES]
    counts = list(map(sum, zip(*heard, strict=True))) if heard else [0] * len(asked)
    outcomes: list[Outcome] = []
    for grant, ttl in pairs:
        if start >= grant.deadline:
            reason = because(ReasonCode.OVER_BEFORE_ASKED)
            outcomes.append(LeaseLost(reason, name=grant.target.name))
            continue
        if counts[place] >= policy.majority and now < grant.deadline:
            deadline = max(grant.deadline, start + policy.validity(ttl))
            outcomes.append(grant._replace(deadline=deadline))
        else:
            outcomes.append(_failed(policy, grant, _told(votes, place), now))
        place += 1
    return outcomes


def _extension(policy: Policy, asked: Sequence[tuple[Grant, float]]) -> Request:
    keys = [asked[0][0].target.held]
    args: list[str | int] = []
    for grant, ttl in asked:
        names = grant.target.names
        keys += grant.target.keys
        args += [grant.nonce, milliseconds(ttl), len(names), *names]
    return Request(
        Command.EXTEND,
        policy.nonce(),
        tuple(keys),
        tuple(args),
        partial(kept_or_not, majority=policy.majority),
    )


def _told(votes: Sequence[Vote], place: int) -> list[Vote]:
    """Return the votes on one lease of those that were asked about."""
    return [
        vote
        if vote.answer is not Answer.YES
        else Vote(vote.node, Answer.YES)
        if outcomes_of(vote)[place]
        else Vote(vote.node, Answer.NO, reason=because(ReasonCode.GONE))
        for vote in votes
    ]


def _failed(policy: Policy, grant: Grant, votes: Sequence[Vote], now: float) -> Outcome:
    name = grant.target.name
    if now >= grant.deadline:
        return LeaseLost(because(ReasonCode.OVER_BEFORE_EXTENDED), name=name, votes=votes)
    if majority_denies(votes, policy.majority):
        return LeaseLost(because(ReasonCode.DENIED), name=name, votes=votes)
    answered = sum(vote.answer is not Answer.UNKNOWN for vote in votes)
    reason = because(ReasonCode.NOT_EXTENDED, votes=answered, size=policy.size)
    return NodesUnavailable(reason, name=name, votes=votes)
