"""Redlock with fencing tokens, written once, as generators that never do anything themselves.

A generator here *yields* what it wants done and is *sent* what came of it:

    Ask(…)        put a question to the nodes; sent back: one ``Vote`` per node, in order
    Wait(seconds) let time pass; sent back: anything, ignored

and returns its result. Whoever runs it (``drivers``: threads, later asyncio; the simulator in
the tests) owns sockets, sleeping and interruption. Time, randomness and the size of the group
come in through ``Policy``.

Votes have three values. YES and NO are answers. LOST means that no answer counted: none came
in time, the node has no vote (restart guard, replica), or it answered with an error. A lost
grant may still have been carried out, so it is undone like a YES and counted like a NO.

The rules, and where they come from:

* Majority, one random value per attempt, release by comparing it, validity counted from
  before the first message less the clock drift: "Distributed Locks with Redis" (redis.io).
* No decision about a lease reads a wall clock: M. Kleppmann, "How to do distributed locking"
  (2016), and S. Sanfilippo's reply "Is Redlock safe?" (2016), agree on that.
* Fencing over a majority (``_token``): ours; the argument stands in
  docs/explanation/how-it-works.md.

Interruption: an exception thrown in between an ``Ask`` and its votes leaves it unknown what
the nodes did, so the attempt is undone on all nodes before the exception goes on. Only
``GeneratorExit`` passes at once, since a generator that is being closed may not yield.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .errors import LeaseLost, LockTaken, NodesUnavailable
from .extending import extend, extend_many
from .protocol import Answer, Ask, Ballot, Command, Grant, Policy, Steps, Target, Vote, Wait

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["acquire", "adopt", "extend", "extend_many", "release", "undo"]

Refusal: TypeAlias = LockTaken | NodesUnavailable


# -- counting ---------------------------------------------------------------------------------


class Count(NamedTuple):
    """A ballot, counted."""

    yes: int
    no: int
    open: int  # not heard yet


def count(ballot: Ballot) -> Count:
    """Count a ballot; a lost vote is none of the three."""
    yes = no = unheard = 0
    for vote in ballot:
        if vote is None:
            unheard += 1
        elif vote.answer is Answer.YES:
            yes += 1
        elif vote.answer is Answer.NO:
            no += 1
    return Count(yes, no, unheard)


def granted_or_not(ballot: Ballot, majority: int) -> bool:
    """Whether a grant's outcome is clear: granted; or not, and whether taken or unavailable."""
    yes, no, unheard = count(ballot)
    if yes >= majority:
        return True
    hopeless = yes + unheard < majority
    return hopeless and (yes + no >= majority or yes + no + unheard < majority)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _micro(seconds: float) -> int:
    return int(seconds * 1_000_000)


# -- acquiring --------------------------------------------------------------------------------


def acquire(policy: Policy, target: Target, *, label: str, ttl: float, wait: float) -> Steps[Grant]:
    """Attempt until granted or ``wait`` seconds are over; 0 attempts once.

    Raises:
        LockTaken: somebody held the names to the end.
        NodesUnavailable: at the end no majority could be asked.
    """
    give_up = policy.clock() + wait
    tries = 0
    while True:
        grant, refusal = yield from attempt(policy, target, label=label, ttl=ttl)
        if grant is not None:
            return grant  # no call stands between the grant and its owner: see attempt()
        assert refusal is not None  # one of the two
        left = give_up - policy.clock()
        if left <= 0:
            raise refusal
        yield Wait(min(_pause(policy, refusal, tries), left))
        tries += 1


def adopt(policy: Policy, target: Target, *, old: str, label: str, ttl: float) -> Steps[Grant]:
    """Take over the tenancy of the nonce ``old``: a grant that needs its key instead of none.

    Only nodes that swapped the nonce count, so of two adopters at most one succeeds.

    Raises:
        LeaseLost: the tenancy is over, or another adopter was first.
        NodesUnavailable: no majority could be asked.
    """
    grant, refusal = yield from attempt(policy, target, label=label, ttl=ttl, old=old)
    if grant is not None:
        return grant
    assert refusal is not None  # one of the two
    if isinstance(refusal, NodesUnavailable):
        raise refusal
    reason = "too late to adopt: the tenancy is over or somebody else has it"
    raise LeaseLost(reason, name=target.name, votes=refusal.votes)


def attempt(
    policy: Policy, target: Target, *, label: str, ttl: float, old: str = ""
) -> Steps[tuple[Grant | None, Refusal | None]]:
    """Ask all nodes once, with a value of its own; undo whatever was not enough.

    Returns the grant, or the reason why not. A signal handler may raise at any call: from
    the first message to the return there is none outside the ``try``.
    """
    nonce = policy.nonce()
    touched = policy.everyone()
    try:
        start = policy.clock()
        votes = yield _grant(policy, target, nonce, label=label, ttl=ttl, old=old)
        touched = frozenset(
            i for i, vote in enumerate(votes) if vote.sent and vote.answer is not Answer.NO
        )
        fence, evidence = yield from _token(policy, target, nonce, votes)
        deadline = start + policy.validity(ttl)
        if fence is not None and policy.clock() < deadline:
            return Grant(target, nonce, fence, deadline, start, ttl, touched), None
        refusal = _refusal(policy, target, evidence, in_time=fence is None)
        if touched:
            yield undo(policy, target, nonce, touched)
    except GeneratorExit:
        raise
    except BaseException:
        yield undo(policy, target, nonce, touched)
        raise
    return None, refusal


def _grant(policy: Policy, target: Target, nonce: str, *, label: str, ttl: float, old: str) -> Ask:
    return Ask(
        Command.GRANT,
        nonce,
        (target.fences, target.held, *target.keys),
        (
            policy.wall(),
            _micro(policy.slack),
            _milliseconds(ttl),
            label,
            old,
            *target.fields,
            *target.names,
        ),
        partial(granted_or_not, majority=policy.majority),
    )


def _token(
    policy: Policy, target: Target, nonce: str, votes: Sequence[Vote]
) -> Steps[tuple[int | None, Sequence[Vote]]]:
    """The number that a majority acknowledges, and the votes that decided; None without one.

    A grant acknowledges its own number. When a majority granted but no number has a majority,
    the largest is the token and the nodes below are raised to it.
    """
    numbers = {i: vote.number for i, vote in enumerate(votes) if vote.answer is Answer.YES}
    if len(numbers) < policy.majority:
        return None, votes
    token, agreeing = Counter(numbers.values()).most_common(1)[0]
    if agreeing >= policy.majority:
        return token, votes
    token = max(numbers.values())
    below = {i: number for i, number in numbers.items() if number < token}
    agreeing = len(numbers) - len(below)
    raised = yield Ask(
        Command.RAISE,
        nonce,
        (target.fences, *target.keys),
        (token, *target.fields),
        lambda ballot: agreeing + count(ballot).yes >= policy.majority,
        to=frozenset(below),
        each=below,
    )
    acknowledged = agreeing + count(raised).yes
    # A node that does not answer now did answer the grant: it could be asked.
    denied = {i for i in below if raised[i].answer is Answer.NO}
    evidence = [raised[i] if i in denied else vote for i, vote in enumerate(votes)]
    return (token if acknowledged >= policy.majority else None), evidence


def _refusal(policy: Policy, target: Target, votes: Sequence[Vote], *, in_time: bool) -> Refusal:
    """Taken, if a majority answered at all; else unavailable."""
    if not in_time:
        reason = "a majority granted it, but too late for its ttl"
        return NodesUnavailable(reason, name=target.name, votes=votes)
    yes, no, _ = count(votes)
    if yes + no < policy.majority:
        reason = f"{yes + no} of {policy.size} nodes could vote, {policy.majority} are needed"
        return NodesUnavailable(reason, name=target.name, votes=votes)
    if not no:
        reason = "a majority granted it and then did not answer"
        return NodesUnavailable(reason, name=target.name, votes=votes)
    refused = [vote for vote in votes if vote.answer is Answer.NO]
    holders = Counter(vote.holder for vote in refused if vote.holder)
    holder = holders.most_common(1)[0][0] if holders else None
    return LockTaken(
        f"held by {holder or 'somebody'} on {no} of {policy.size} nodes",
        name=target.name,
        votes=votes,
        retry_after=_free_in(refused, policy.majority - yes),
        holder=holder,
    )


def _free_in(refused: Sequence[Vote], missing: int) -> float | None:
    """Seconds until so many more nodes have forgotten their holder; None: unknown, or never."""
    ends = sorted(math.inf if vote.left is None else vote.left for vote in refused)
    end = ends[max(0, min(missing, len(ends)) - 1)]
    return None if math.isinf(end) else end


def _pause(policy: Policy, refusal: Refusal, tries: int) -> float:
    """Seconds until the next attempt: growing, jittered, and not past the holder's end."""
    pause = policy.uniform(0.5, 1.0) * min(0.2, 0.01 * 1.5 ** min(tries, 20))
    if isinstance(refusal, LockTaken) and refusal.retry_after is not None:
        return min(pause, refusal.retry_after + policy.uniform(0.0, 0.005))
    return pause


# -- holding ----------------------------------------------------------------------------------


def release(policy: Policy, grant: Grant, *, min_hold: float = 0.0) -> Steps[Sequence[Vote]]:
    """Give the names back on every node that may have our keys; the holder believes no more.

    With ``min_hold`` the names stay taken until that many seconds after the attempt began.
    """
    rest = grant.since + min_hold - policy.clock()
    ask = undo(policy, grant.target, grant.nonce, grant.touched, rest=rest)
    try:
        return (yield ask)
    except GeneratorExit:
        raise
    except BaseException:
        yield ask  # unknown what arrived; asking twice harms nobody
        raise


def undo(
    policy: Policy, target: Target, nonce: str, to: frozenset[int], *, rest: float = 0.0
) -> Ask:
    """The question that deletes our keys, or lets them rest for ``rest`` seconds."""
    pause = _milliseconds(rest)
    keys = (target.held, *target.keys)

    def decided(ballot: Ballot) -> bool:
        return sum(vote is not None for vote in ballot) >= policy.majority

    if pause > 0:
        return Ask(Command.REST, nonce, keys, (pause, *target.names), decided, to)
    return Ask(Command.RELEASE, nonce, keys, target.names, decided, to)
