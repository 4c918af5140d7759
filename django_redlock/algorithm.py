"""Redlock with fencing tokens, written once, as generators that never do anything themselves.

A generator here *yields* what it wants done and is *sent* what came of it:

    Ask(…)        put a question to the nodes; sent back: one ``Vote`` per node, in order
    Wait(seconds) let time pass; sent back: anything, ignored

(and what ``waiting`` needs to stand in line) and returns its result. Whoever runs it
(``drivers``: threads, asyncio; the simulator in the tests) owns sockets, sleeping and
interruption. Time, randomness and the size of the group come in through ``Policy``.

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
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from . import waiting
from .errors import LeaseLost, LockTaken, NodesUnavailable
from .extending import extend, extend_many
from .protocol import (
    Answer,
    Ask,
    Ballot,
    Command,
    Grant,
    Policy,
    Steps,
    Target,
    Vote,
    Wait,
    counting,
    milliseconds,
)
from .undoing import give_back, hand_over, heard, undo

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["acquire", "adopt", "extend", "extend_many", "release"]

Refusal: TypeAlias = LockTaken | NodesUnavailable

# An enum's member costs five times a name.
YES: Final = Answer.YES
NO: Final = Answer.NO
SPLITS: Final = 3  # how often those who do not wait try again after a split


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
        elif vote.answer is YES:
            yes += 1
        elif vote.answer is NO:
            no += 1
    return Count(yes, no, unheard)


def granted_or_not(ballot: Ballot, majority: int) -> bool:
    """Whether a grant's outcome is clear: granted; or not, and whether taken or unavailable."""
    yes, no, rest = count(ballot)
    if yes >= majority:
        return True
    hopeless = yes + rest < majority
    return hopeless and (yes + no >= majority or yes + no + rest < majority)


def unheard(ballot: Ballot, majority: int, *, patient: bool) -> bool:
    """Whether somebody may still be heard who matters, though the outcome is clear.

    Where no majority can be asked, everybody: the error says who could vote. And for who will
    wait: a node that has refused needs no undoing, and no look if it is that of the queue.
    """
    yes, no, rest = count(ballot)
    if yes + no + rest < majority:
        return rest > 0
    return patient and rest > 0 and yes < majority


def _micro(seconds: float) -> int:
    return int(seconds * 1_000_000)


# -- acquiring --------------------------------------------------------------------------------


def acquire(policy: Policy, target: Target, *, label: str, ttl: float, wait: float) -> Steps[Grant]:
    """Attempt until granted or ``wait`` seconds are over; 0 does not wait.

    While somebody holds the names, it stands in line (``waiting``). When several callers have
    split the nodes between them, nobody does, so even those who do not wait try again, soon.

    Raises:
        LockTaken: somebody held the names to the end.
        NodesUnavailable: at the end no majority could be asked.
    """
    give_up = policy.clock() + wait
    word, woken, splits, tries = "", 0, 0, 0
    while True:
        patient = policy.clock() < give_up
        grant, refusal = yield from attempt(
            policy, target, label=label, ttl=ttl, word=word, woken=woken, patient=patient
        )
        if grant is not None:
            return grant  # no call stands between the grant and its owner: see attempt()
        assert refusal is not None  # one of the two
        left, carried, word = give_up - policy.clock(), word, ""
        if isinstance(refusal, NodesUnavailable):
            if left <= 0:
                raise refusal
            yield Wait(min(_pause(policy, tries), left))
            tries += 1
        elif _split(refusal.votes, policy.majority, surely=left > 0) and (
            left > 0 or splits < SPLITS
        ):
            splits += 1
            yield Wait(policy.uniform(0.001, 0.01) * min(splits, 5))
        elif left > 0:
            woken = waiting.waited_for(refusal)
            word = yield from waiting.stand(policy, target, refusal, give_up)
        elif not patient:
            if not carried and _kept(refusal.votes, policy.majority):
                woken = waiting.waited_for(refusal)
                word = yield from waiting.claim(policy, target, refusal)
            if not word:
                raise refusal


def _split(votes: Sequence[Vote], majority: int, *, surely: bool) -> bool:
    """Whether nobody has the names: some nodes granted them to us, no majority to one other.

    Surely, if the nodes that were not heard cannot make that majority.
    """
    owners = Counter(vote.owner for vote in votes if vote.answer is Answer.NO)
    ours = any(vote.answer is Answer.YES for vote in votes)
    unknown = sum(vote.answer is Answer.LOST for vote in votes) if surely else 0
    return ours and max(owners.values(), default=0) + unknown < majority


def _kept(votes: Sequence[Vote], majority: int) -> bool:
    """Whether a majority keeps the names for whoever is woken next."""
    return len(_keeping(votes)) >= majority


def _keeping(votes: Sequence[Vote]) -> list[Vote]:
    kept = [vote for vote in votes if vote.left is not None and not vote.owner]
    return [vote for vote in kept if vote.answer is Answer.NO]


def adopt(policy: Policy, target: Target, *, old: str, label: str, ttl: float) -> Steps[Grant]:
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
        if _over(votes, policy.majority):
            reason = "too late to adopt: the tenancy is over or somebody else has it"
            raise LeaseLost(reason, name=target.name, votes=votes)
        if isinstance(refusal, NodesUnavailable) or tries == SPLITS:
            break
        yield Wait(policy.uniform(0.001, 0.01) * (tries + 1))
    good = "the handle can still be adopted, until its ttl is over"
    if isinstance(refusal, NodesUnavailable):
        raise NodesUnavailable(f"{refusal.reason}; {good}", name=target.name, votes=votes)
    reason = f"several adopt it at the same time; {good}"
    raise LockTaken(reason, name=target.name, votes=votes)


def _over(ballot: Ballot, majority: int) -> bool:
    """Whether nobody can adopt a tenancy any more: too few nodes have it, or one other has them.

    What different others have may be given back: they are adopters as we are.
    """
    owners = [vote.owner for vote in ballot if vote is not None and vote.answer is NO]
    missing = owners.count("")
    most = max((owners.count(owner) for owner in owners if owner), default=0)
    return missing > len(ballot) - majority or most >= majority


def adopted_or_not(ballot: Ballot, majority: int) -> bool:
    """Whether an adoption's outcome is clear; that others have split the nodes is not the end."""
    yes, no, rest = count(ballot)
    return yes >= majority or _over(ballot, majority) or not rest or yes + no + rest < majority


def attempt(
    policy: Policy,
    target: Target,
    *,
    label: str,
    ttl: float,
    old: str = "",
    word: str = "",
    woken: int = 0,
    patient: bool = False,
) -> Steps[tuple[Grant | None, Refusal | None]]:
    """Ask all nodes once, with a value of its own; undo whatever was not enough.

    With ``word``, what we were woken by for the name of index ``woken``, reserved names are free
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
        votes = yield Ask(
            Command.GRANT,
            nonce,
            (target.fences, target.held, target.waits, *target.keys),
            (
                policy.wall(),
                _micro(policy.slack),
                milliseconds(ttl),
                label,
                old,
                word,
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
            late = _not_yes(votes) if old else frozenset()
            return Grant(
                target, nonce, fence, deadline, start, ttl, touched, votes, old, late
            ), None
        refusal = _refusal(policy, target, evidence, in_time=fence is None)
        if old and not _over(evidence, policy.majority):
            yield give_back(policy, target, nonce, old, touched)
            return None, refusal
        wake = _ours_to_wake(target, evidence, policy.majority, word, woken)
        if (touched or word) and wake:
            yield undo(policy, target, nonce, _asked(votes), touched=touched, wake=wake)
        elif touched:
            yield undo(policy, target, nonce, touched, wake=())
    except GeneratorExit:
        raise
    except BaseException:
        to = policy.everyone() if word else touched
        if old:
            yield give_back(policy, target, nonce, old, touched)
        else:
            yield undo(policy, target, nonce, to, touched=touched)
        raise
    return None, refusal


def _ours_to_wake(
    target: Target, votes: Sequence[Vote], majority: int, word: str, woken: int
) -> set[int]:
    """The indices of the names for which we wake, since nobody else will.

    Of several names one may be spoken for. Those before it were free, and so was the one that we
    were woken for. For no other is anybody woken: two who want the same names in another order,
    of which each has another owner, would wake each other again and again.
    """
    others = _speaking(votes, word)
    if len(others) < majority:
        return set(range(len(target.names)))
    taken = min(vote.which for vote in others)
    free = set(range(taken)) | ({woken} if word else set())
    return free - {taken}


def _speaking(votes: Sequence[Vote], word: str) -> list[Vote]:
    """The votes of those who say that another will wake the next: that of a living owner.

    Who had no word and heard of no grant has met a hand-over, if some nodes keep the name: the
    owner to be was woken. A second one woken now would find it taken, and lose its turn.
    """
    refusals = [vote for vote in votes if vote.answer is Answer.NO]
    owners = Counter(vote.owner for vote in refusals if vote.owner)
    speaking = {owner for owner, _ in owners.most_common(1)}
    said = [vote for vote in refusals if vote.owner in speaking]
    if not word and all(vote.answer is not Answer.YES for vote in votes):
        said += _keeping(votes)
    return said


def _not_yes(votes: Sequence[Vote]) -> frozenset[int]:
    return frozenset(i for i, vote in enumerate(votes) if vote.answer is not YES)


def _asked(votes: Sequence[Vote]) -> frozenset[int]:
    return frozenset(i for i, vote in enumerate(votes) if vote.sent)


def _token(
    policy: Policy, target: Target, nonce: str, votes: Sequence[Vote]
) -> Steps[tuple[int | None, Sequence[Vote]]]:
    """The number that a majority acknowledges, and the votes that decided; None without one.

    A grant acknowledges its own number. When a majority granted but no number has a majority,
    the largest is the token and the nodes below are raised to it.
    """
    numbers = {i: vote.number for i, vote in enumerate(votes) if vote.answer is YES}
    if len(numbers) < policy.majority:
        return None, votes
    token, agreeing = _commonest(list(numbers.values()))
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


def _commonest(numbers: list[int]) -> tuple[int, int]:
    """The number that is there most often, and how often. A ``Counter`` costs ten times as much."""
    most = max(numbers, key=numbers.count)
    return most, numbers.count(most)


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


def _pause(policy: Policy, tries: int) -> float:
    """Seconds until the next attempt when the nodes cannot be asked: growing, jittered."""
    return policy.uniform(0.5, 1.0) * min(0.2, 0.01 * 1.5 ** min(tries, 20))


# -- holding ----------------------------------------------------------------------------------


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
        ask = Ask(
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
