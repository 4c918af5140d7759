"""Prolonging tenancies: many of them in one question, each with an outcome of its own.

A node answers for each tenancy whether all its keys still carry its nonce; those it has
prolonged. What a majority of nodes says of a tenancy is its outcome:

    Grant              kept, to a new deadline that is never before the old one
    LeaseLost          over: a majority does not have it, or its time was up before it was heard
    NodesUnavailable   unknown: it stands until its old deadline

One tenancy's outcome says nothing of another's, so a question for many is as good as one for
each. The steps are as in ``algorithm``: nothing here asks or waits by itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from .errors import LeaseLost, NodesUnavailable
from .protocol import Answer, Ask, Ballot, Command, Grant, Policy, Steps, Vote, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

Outcome: TypeAlias = Grant | LeaseLost | NodesUnavailable


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
    heard = [_words(vote) for vote in votes if vote.answer is Answer.YES]
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


def kept_or_not(ballot: Ballot, majority: int) -> bool:
    """Whether each outcome is clear: kept, denied by a majority, or never to be known."""
    unheard = ballot.count(None)
    heard = [_words(vote) for vote in ballot if vote is not None and vote.answer is Answer.YES]
    if not heard:
        return unheard < majority
    for yes in map(sum, zip(*heard, strict=True)):
        no = len(heard) - yes
        if yes < majority and no < majority and max(yes, no) + unheard >= majority:
            return False
    return True


def majority_denies(policy: Policy, votes: Sequence[Vote]) -> bool:
    """Whether a majority said that it does not have the tenancy."""
    return sum(vote.answer is Answer.NO for vote in votes) >= policy.majority


def _question(policy: Policy, asked: Sequence[tuple[Grant, float]]) -> Ask:
    keys = [asked[0][0].target.held]
    args: list[str | int] = []
    for grant, ttl in asked:
        names = grant.target.names
        keys += grant.target.keys
        args += [grant.nonce, milliseconds(ttl), len(names), *names]
    return Ask(
        Command.EXTEND,
        policy.nonce(),
        tuple(keys),
        tuple(args),
        partial(kept_or_not, majority=policy.majority),
    )


def _words(vote: Vote) -> Sequence[int]:
    """What a node that answered says of each tenancy: 1 kept, 0 gone."""
    return cast("Sequence[int]", vote.data)


def _told(votes: Sequence[Vote], place: int) -> list[Vote]:
    """The votes on one tenancy of those that were asked about."""
    return [
        vote
        if vote.answer is not Answer.YES
        else Vote(vote.node, Answer.YES)
        if _words(vote)[place]
        else Vote(vote.node, Answer.NO, why="the key is missing or somebody else's")
        for vote in votes
    ]


def _failed(policy: Policy, grant: Grant, votes: Sequence[Vote], now: float) -> Outcome:
    name = grant.target.name
    if now >= grant.deadline:
        return LeaseLost("over before a majority extended it", name=name, votes=votes)
    if majority_denies(policy, votes):
        return LeaseLost("a majority does not have it any more", name=name, votes=votes)
    answered = sum(vote.answer is not Answer.LOST for vote in votes)
    reason = f"{answered} of {policy.size} nodes answered; held until its deadline"
    return NodesUnavailable(reason, name=name, votes=votes)
