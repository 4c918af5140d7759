"""Redlock with fencing tokens, written once, as generators that never do anything themselves.

A generator here *yields* what it wants done and is *sent* what came of it:

    Ask(…)        put a question to the nodes; sent back: one ``Vote`` per node, in order
    Wait(seconds) let time pass; sent back: anything, ignored

(and what ``wait`` needs to stand in line) and returns its result. Whoever runs it
(``driver``: threads, asyncio; the simulator in the tests) owns sockets, sleeping and
interruption. Time, randomness and the size of the group come in through ``Policy``.

Votes have three values. YES and NO are answers. UNKNOWN means that no answer counted: none came
in time, the node has no vote (restart guard, replica), or it answered with an error. A lost
grant may still have been carried out, so it is undone like a YES and counted like a NO.

The rules, and where they come from:

* Majority, one random value per attempt, release by comparing it, validity counted from
  before the first message less the clock drift: "Distributed Locks with Redis" (redis.io).
* No decision about a lease reads a wall clock: M. Kleppmann, "How to do distributed locking"
  (2016), and S. Sanfilippo's reply "Is Redlock safe?" (2016), agree on that.
* Fencing over a majority (``_token``): ours; the argument stands in
  docs/explanation/how-it-works.md.

Interruption: an exception thrown in between an ``Request`` and its votes leaves it unknown what
the nodes did, so the attempt is undone on all nodes before the exception goes on. Only
``GeneratorExit`` passes at once, since a generator that is being closed may not yield.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from . import wait as waiting
from .errors import LeaseLost, LockTaken, NodesUnavailable
from .hold import give_back, undo
from .policy import Policy, milliseconds
from .protocol import Answer, Command, Grant, LockKeys, Request, Sleep, Steps, Vote
from .quorum import (
    NO,
    YES,
    adopted_or_not,
    adoption_is_over,
    commonest,
    count,
    counting,
    granted_or_not,
    is_split,
    majority_reserves,
    not_yes,
    reserving,
    sent_to,
    unheard,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Refusal: TypeAlias = LockTaken | NodesUnavailable

SPLITS: Final = 3  # how often those who do not wait try again after a split


def _micro(seconds: float) -> int:
    return int(seconds * 1_000_000)


# -- acquiring --------------------------------------------------------------------------------


def acquire(
    policy: Policy, target: LockKeys, *, label: str, ttl: float, wait: float
) -> Steps[Grant]:
    """Attempt until granted or ``wait`` seconds are over; 0 does not wait.

    While somebody holds the names, it stands in line (``wait``). When several callers have
    split the nodes between them, nobody does, so even those who do not wait try again, soon.

    Raises:
        LockTaken: somebody held the names to the end.
        NodesUnavailable: at the end no majority could be asked.
    """
    give_up = policy.clock() + wait
    wakeup, woken, splits, tries = "", 0, 0, 0
    while True:
        patient = policy.clock() < give_up
        grant, refusal = yield from attempt(
            policy, target, label=label, ttl=ttl, wakeup=wakeup, woken=woken, patient=patient
        )
        if grant is not None:
            return grant  # no call stands between the grant and its owner: see attempt()
        assert refusal is not None  # one of the two
        left, carried, wakeup = give_up - policy.clock(), wakeup, ""
        if isinstance(refusal, NodesUnavailable):
            if left <= 0:
                raise refusal
            yield Sleep(min(_pause(policy, tries), left))
            tries += 1
        elif is_split(refusal.votes, policy.majority, surely=left > 0) and (
            left > 0 or splits < SPLITS
        ):
            splits += 1
            yield Sleep(policy.uniform(0.001, 0.01) * min(splits, 5))
        elif left > 0:
            woken = waiting.waited_for(refusal)
            wakeup = yield from waiting.stand(policy, target, refusal, give_up)
        elif not patient:
            if not carried and majority_reserves(refusal.votes, policy.majority):
                woken = waiting.waited_for(refusal)
                wakeup = yield from waiting.claim(policy, target, refusal)
            if not wakeup:
                raise refusal


def adopt(policy: Policy, target: LockKeys, *, old: str, label: str, ttl: float) -> Steps[Grant]:
    """Take over the tenancy of the nonce ``old``: a grant that needs its key instead of none.

    Only nodes that swapped the nonce count, so of two adopters at most one succeeds. When several
    have split the nodes between them, each gives back what it has, and tries again, soon.

    Raises:
        LeaseLost: the tenancy is over, or another adopter was first.
        LockTaken: several split the nodes to the end; the handle is as good as before.
        NodesUnavailable: no majority could be asked; the handle is as good as before.
    """
    for tries in range(SPLITS + 1):
        grant, refusal = yield from attempt(policy, target, label=label, ttl=ttl, old=old)
        if grant is not None:
            return grant
        assert refusal is not None  # one of the two
        votes = refusal.votes
        if adoption_is_over(votes, policy.majority):
            reason = "too late to adopt: the tenancy is over or somebody else has it"
            raise LeaseLost(reason, name=target.name, votes=votes)
        if isinstance(refusal, NodesUnavailable) or tries == SPLITS:
            break
        yield Sleep(policy.uniform(0.001, 0.01) * (tries + 1))
    good = "the handle can still be adopted, until its ttl is over"
    if isinstance(refusal, NodesUnavailable):
        raise NodesUnavailable(f"{refusal.reason}; {good}", name=target.name, votes=votes)
    reason = f"several adopt it at the same time; {good}"
    raise LockTaken(reason, name=target.name, votes=votes)


def attempt(
    policy: Policy,
    target: LockKeys,
    *,
    label: str,
    ttl: float,
    old: str = "",
    wakeup: str = "",
    woken: int = 0,
    patient: bool = False,
) -> Steps[tuple[Grant | None, Refusal | None]]:
    """Ask all nodes once, with a value of its own; undo whatever was not enough.

    With ``wakeup``, what we were woken by for the name of index ``woken``, reserved names are free
    for us; ``patient`` says that we shall wait if refused. Who was granted something or had the
    word, and ends without the names, wakes the next, unless a majority has the same owner, who
    will do that for what he has; see ``_ours_to_wake``.

    Returns the grant, or the reason why not. A signal handler may raise at any call: from
    the first message to the return there is none outside the ``try``.
    """
    nonce = policy.nonce()
    touched = policy.everyone()
    queue = target.queue_place(policy.size)
    worth = counting(unheard, policy.majority, patient=patient)
    try:
        start = policy.clock()
        votes = yield Request(
            Command.GRANT,
            nonce,
            (target.fences, target.held, target.waits, *target.keys),
            (
                policy.wall(),
                _micro(policy.slack),
                milliseconds(ttl),
                label,
                old,
                wakeup,
                milliseconds(waiting.NEWS) if patient else 0,
                *target.fields,
                *target.names,
            ),
            counting(adopted_or_not if old else granted_or_not, policy.majority),
            first=queue,
            worth=worth,
        )
        reached = [i for i, vote in enumerate(votes) if vote.sent and vote.answer is not NO]
        if len(reached) < policy.size:
            touched = frozenset(reached)
        fence, evidence = yield from _token(policy, target, nonce, votes)
        deadline = start + policy.validity(ttl)
        if fence is not None and policy.clock() < deadline:
            late = not_yes(votes) if old else frozenset()
            return Grant(
                target, nonce, fence, deadline, start, ttl, touched, votes, old, late
            ), None
        refusal = _refusal(policy, target, evidence, in_time=fence is None)
        if old and not adoption_is_over(evidence, policy.majority):
            yield give_back(policy, target, nonce, old, touched)
            return None, refusal
        wake = _ours_to_wake(target, evidence, policy.majority, wakeup, woken)
        if (touched or wakeup) and wake:
            yield undo(policy, target, nonce, sent_to(votes), touched=touched, wake=wake)
        elif touched:
            yield undo(policy, target, nonce, touched, wake=())
    except GeneratorExit:
        raise
    except BaseException:
        to = policy.everyone() if wakeup else touched
        if old:
            yield give_back(policy, target, nonce, old, touched)
        else:
            yield undo(policy, target, nonce, to, touched=touched)
        raise
    return None, refusal


def _ours_to_wake(
    target: LockKeys, votes: Sequence[Vote], majority: int, wakeup: str, woken: int
) -> set[int]:
    """The indices of the names for which we wake, since nobody else will.

    Of several names one may be spoken for. Those before it were free, and so was the one that we
    were woken for. For no other is anybody woken: two who want the same names in another order,
    of which each has another owner, would wake each other again and again.
    """
    others = _speaking(votes, wakeup)
    if len(others) < majority:
        return set(range(len(target.names)))
    taken = min(vote.which for vote in others)
    free = set(range(taken)) | ({woken} if wakeup else set())
    return free - {taken}


def _speaking(votes: Sequence[Vote], wakeup: str) -> list[Vote]:
    """The votes of those who say that another will wake the next: that of a living owner.

    Who had no word and heard of no grant has met a hand-over, if some nodes keep the name: the
    owner to be was woken. A second one woken now would find it taken, and lose its turn.
    """
    refusals = [vote for vote in votes if vote.answer is Answer.NO]
    owners = Counter(vote.owner for vote in refusals if vote.owner)
    speaking = {owner for owner, _ in owners.most_common(1)}
    said = [vote for vote in refusals if vote.owner in speaking]
    if not wakeup and all(vote.answer is not Answer.YES for vote in votes):
        said += reserving(votes)
    return said


def _token(
    policy: Policy, target: LockKeys, nonce: str, votes: Sequence[Vote]
) -> Steps[tuple[int | None, Sequence[Vote]]]:
    """The number that a majority acknowledges, and the votes that decided; None without one.

    A grant acknowledges its own number. When a majority granted but no number has a majority,
    the largest is the token and the nodes below are raised to it.
    """
    numbers = {i: vote.number for i, vote in enumerate(votes) if vote.answer is YES}
    if len(numbers) < policy.majority:
        return None, votes
    token, agreeing = commonest(list(numbers.values()))
    if agreeing >= policy.majority:
        return token, votes
    token = max(numbers.values())
    below = {i: number for i, number in numbers.items() if number < token}
    agreeing = len(numbers) - len(below)
    raised = yield Request(
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


def _refusal(policy: Policy, target: LockKeys, votes: Sequence[Vote], *, in_time: bool) -> Refusal:
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


def _pause(policy: Policy, tries: int) -> float:
    """Seconds until the next attempt when the nodes cannot be asked: growing, jittered."""
    return policy.uniform(0.5, 1.0) * min(0.2, 0.01 * 1.5 ** min(tries, 20))
