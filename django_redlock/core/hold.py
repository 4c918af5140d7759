"""Hold what was granted: extend it, release it, and undo what an attempt did.

The requests that undo take back what a nonce holds, and wake whoever waits next. Many tenancies are
extended in one request, and each has an outcome of its own. A node answers for each whether all its
keys still carry its nonce; those it has extended. What a majority of nodes says is the outcome:

    Grant              kept, to a new deadline that is never before the old one
    LeaseLost          over: a majority does not have it, or its time was up before it was heard
    NodesUnavailable   unknown: it stands until its old deadline

One tenancy's outcome says nothing of another's, so a request for many is as good as one for each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from .errors import LeaseLost, NodesUnavailable
from .policy import Policy, milliseconds
from .protocol import Answer, Command, Grant, Request, Steps, Vote
from .quorum import counting, heard, kept_or_not, majority_denies, outcomes_of

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from .protocol import LockKeys

Outcome: TypeAlias = Grant | LeaseLost | NodesUnavailable

RESERVED: Final = 0.05  # seconds for which a name is kept for whoever is woken


# -- undoing ----------------------------------------------------------------------------------


def hand_over(policy: Policy, target: LockKeys, nonce: str, touched: frozenset[int]) -> Request:
    """The question that frees what we held, keeps it for whoever waits, and wakes one of them."""
    return undo(policy, target, nonce, policy.everyone(), touched=touched, reserve=RESERVED)


def wake_next(policy: Policy, target: LockKeys, wakeup: str) -> Request:
    """The question of a waiter that was woken by ``wakeup`` and does not take its turn."""
    return undo(policy, target, wakeup, policy.everyone(), touched=frozenset())


def give_back(
    policy: Policy, target: LockKeys, nonce: str, old: str, touched: frozenset[int]
) -> Request:
    """The question of an adopter that has no majority: the handle it came with is good again."""
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
    """The question that deletes our keys, and wakes who waits next for some of the names.

    Args:
        touched: the nodes that may have our keys; None is all of ``to``.
        wake: the indices of the names; None is all of them.
    """
    flags = ("1" if wake is None or i in wake else "0" for i in range(len(target.names)))
    return Request(
        Command.RELEASE,
        nonce,
        (target.held, target.waits, *target.keys, *target.queues),
        (milliseconds(reserve), "".join(flags), *target.names),
        counting(heard, policy.majority),
        to,
        first=target.queue_place(policy.size),
        touched=touched,
        lasts=policy.max_ttl,
    )


# -- releasing --------------------------------------------------------------------------------


def release(policy: Policy, grant: Grant, *, min_hold: float = 0.0) -> Steps[Sequence[Vote]]:
    """Give the names back on every node that may have our keys; the holder believes no more.

    With ``min_hold`` the names stay taken until that many seconds after the attempt began.
    Else, if somebody waits, they are kept for a moment for whoever is first in line; every node
    is asked, since any of them may have the line.
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
        if grant.unswapped:  # the giver's key would stay there for its ttl
            yield undo(policy, target, grant.old, grant.unswapped, wake=())
    except GeneratorExit:
        raise
    except BaseException:
        yield ask  # unknown what arrived; asking twice harms nobody
        raise
    return votes


# -- extending --------------------------------------------------------------------------------


def extend(policy: Policy, grant: Grant, *, ttl: float) -> Steps[Grant]:
    """Prolong a tenancy to ``ttl`` seconds from now; never shortens it, never revives it.

    Raises:
        LeaseLost: it is over, or a majority does not have it any more.
        NodesUnavailable: unknown; the tenancy stands until its old deadline.
    """
    (outcome,) = yield from extend_many(policy, (grant,), (ttl,))
    if isinstance(outcome, Grant):
        return outcome
    raise outcome


def extend_many(
    policy: Policy, grants: Sequence[Grant], ttls: Sequence[float]
) -> Steps[list[Outcome]]:
    """Prolong each tenancy to its ttl, in seconds from now; their outcomes, in order."""
    start = policy.clock()
    pairs = list(zip(grants, ttls, strict=True))
    asked = [pair for pair in pairs if start < pair[0].deadline]
    votes: Sequence[Vote] = ()
    if asked:
        votes = yield _question(policy, asked)
    now, place = policy.clock(), 0
    heard = [outcomes_of(vote) for vote in votes if vote.answer is Answer.YES]
    counts = list(map(sum, zip(*heard, strict=True))) if heard else [0] * len(asked)
    outcomes: list[Outcome] = []
    for grant, ttl in pairs:
        if start >= grant.deadline:
            outcomes.append(LeaseLost("over before it could be extended", name=grant.target.name))
            continue
        if counts[place] >= policy.majority and now < grant.deadline:
            deadline = max(grant.deadline, start + policy.validity(ttl))
            outcomes.append(grant._replace(deadline=deadline))
        else:
            outcomes.append(_failed(policy, grant, _told(votes, place), now))
        place += 1
    return outcomes


def _question(policy: Policy, asked: Sequence[tuple[Grant, float]]) -> Request:
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
    """The votes on one tenancy of those that were asked about."""
    return [
        vote
        if vote.answer is not Answer.YES
        else Vote(vote.node, Answer.YES)
        if outcomes_of(vote)[place]
        else Vote(vote.node, Answer.NO, why="the key is missing or somebody else's")
        for vote in votes
    ]


def _failed(policy: Policy, grant: Grant, votes: Sequence[Vote], now: float) -> Outcome:
    name = grant.target.name
    if now >= grant.deadline:
        return LeaseLost("over before a majority extended it", name=name, votes=votes)
    if majority_denies(votes, policy.majority):
        return LeaseLost("a majority does not have it any more", name=name, votes=votes)
    answered = sum(vote.answer is not Answer.UNKNOWN for vote in votes)
    reason = f"{answered} of {policy.size} nodes answered; held until its deadline"
    return NodesUnavailable(reason, name=name, votes=votes)
