"""Standing in line: who waits is woken by the release, in order of arrival, and does not poll.

Beside each lock lies a list, the queue. A node that refuses one who will wait notes that somebody
does, and so does a node that is looked at (a look asks all). Whoever waits then blocks on the list
of one node (BLPOP serves blocked clients in order of arrival). A release that finds the note keeps
the name for a moment and puts one word into the list: the value of the tenancy that is over.
Whoever is woken takes the name with it: for the bearer a reserved name is free, and so is one that
a release on its way has not reached yet.

No wake-up is lost, since the note is written and the lock looked at in one step, by the refusal
or by a look of its own: a release before that is seen, and one after it finds the note. What
else can happen (the one who was woken died, the node lost its data, the holder is another
program's and wakes nobody) is bounded by a look now and then, and by the time the holder has.

All stand at one node, chosen by the name; where that one is down or owes us an answer, at the
next. A release wakes on every node, so it does not matter who stands where.

The wake-ups are our own, built on what Redis documents of BLPOP: it serves in order of arrival.
What keeps them safe is in ``acquire``: a wake-up never makes anybody a holder.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from .hold import wake_next
from .policy import milliseconds
from .protocol import (
    NONCE,
    Answer,
    BlockOnNode,
    Command,
    JoinQueue,
    LeaveQueue,
    Request,
    Sleep,
    Vote,
    Waiter,
    Wakeup,
)
from .quorum import counting

if TYPE_CHECKING:
    from .errors import LockTaken
    from .policy import Policy
    from .protocol import LockKeys, Steps, Votes

NEWS: Final = 1.5  # seconds for which a node believes that somebody waits
FRESH: Final = 0.9  # seconds for which a refusal is as good as a look; less than a word lasts
LOOK_EVERY: Final = (0.5, 0.9)  # seconds between two looks; less than NEWS
LONGEST: Final = 10.0  # seconds after which a node may forget who stands there (half-open lines)


def stand(policy: Policy, target: LockKeys, refusal: LockTaken, until: float) -> Steps[str]:
    """Wait until it is worth another attempt, or until the moment ``until``.

    Returns the word that woke us, to be carried into the attempt; "" where there is none.
    """
    which, came = waited_for(refusal), policy.clock()
    order = _order(policy, target, which, refusal.votes)
    ticket = Waiter(target.queues[which])
    try:
        if (yield JoinQueue(ticket, until - came)):
            refusing = {i for i in order if _refused(refusal.votes[i], which)}
            seen = order[0] in refusing and policy.clock() - came <= FRESH
            wakeup = yield from _at_the_nodes(
                policy,
                target,
                ticket,
                order=order,
                refusing=refusing,
                seen=refusal.votes[order[0]] if seen else None,
                until=until,
            )
            if wakeup:
                return wakeup
        wakeup = yield LeaveQueue(ticket)
    except GeneratorExit:
        raise
    except BaseException:
        wakeup = _word((yield LeaveQueue(ticket)))
        if wakeup:  # our turn, which we do not take
            yield wake_next(policy, target, wakeup)
        raise
    return _word(wakeup)


def claim(policy: Policy, target: LockKeys, refusal: LockTaken) -> Steps[str]:
    """The word that nobody who waits has taken; "" if there is none.

    For those who do not wait, and find the name kept for somebody: perhaps nobody is there.
    """
    which = waited_for(refusal)
    place = _order(policy, target, which, refusal.votes)[0]
    votes = yield Request(
        Command.CLAIM,
        policy.nonce(),
        (target.queues[which],),
        (),
        lambda ballot: ballot[place] is not None,
        frozenset({place}),
    )
    return _word(str(votes[place].data[0])) if votes[place].answer is Answer.YES else ""


def waited_for(refusal: LockTaken) -> int:
    """The index of the name that was refused, and is waited for."""
    refused = [vote.which for vote in refusal.votes if vote.answer is Answer.NO]
    return Counter(refused).most_common(1)[0][0]


def _word(found: str) -> str:
    """What was found in a queue, if it is the value of a tenancy; else ""."""
    return found if NONCE.fullmatch(found) else ""


def _refused(vote: Vote, which: int) -> bool:
    return vote.answer is Answer.NO and vote.which == which


def _at_the_nodes(
    policy: Policy,
    target: LockKeys,
    ticket: Waiter,
    *,
    order: list[int],
    refusing: set[int],
    seen: Vote | None,
    until: float,
) -> Steps[str]:
    """Look, stand, and look again.

    Args:
        refusing: the nodes that have refused us this name. That another one does not have the
            key is no news: it may never have had it.
        seen: the refusal of the first node in ``order``, if that is as good as a look.
    """
    which = target.queues.index(ticket.queue)
    place, ends = (None, None) if seen is None else (order[0], seen.left)
    stood_before, broken = False, 0
    while (left := until - policy.clock()) > 0:
        if place is None:
            looked = yield from _look(policy, target, which, order)
            place = next((i for i in order if i in looked), None)
            if place is None:
                yield Sleep(min(left, policy.uniform(0.05, 0.1)))
                return ""
            ends = looked[place]
            news = _is_gone(ends) and (stood_before or place in refusing)
            # A release that was lost at this one node has freed the name all the same.
            if news or sum(map(_is_gone, looked.values())) >= policy.majority:
                if stood_before:  # everybody who waits may have seen that now
                    yield Sleep(policy.uniform(0.0, 0.01))
                return ""
            if _is_gone(ends):
                order = [i for i in order if i != place]
                place = None
                continue
        nap = min(left, policy.uniform(*LOOK_EVERY), math.inf if ends is None else ends + 0.001)
        stood: Wakeup = yield BlockOnNode(ticket, place, nap, min(left, LONGEST))
        if stood.wakeup:
            return _word(stood.wakeup)
        broken = broken + 1 if stood.broken else 0
        if broken:
            yield Sleep(min(left, policy.uniform(0.5, 1.0) * min(LOOK_EVERY[0], 0.01 * 2**broken)))
        place, stood_before = None, True
    return ""


def _look(
    policy: Policy, target: LockKeys, which: int, order: list[int]
) -> Steps[dict[int, float | None]]:
    """The seconds until the key is gone, by node: 0 there is none, None never."""
    votes = yield Request(
        Command.LOOK,
        policy.nonce(),
        (target.waits, target.keys[which]),
        (milliseconds(NEWS), target.names[which]),
        counting(_heard, policy.majority),
        policy.everyone(),
        worth=partial(_first_unheard, places=order),
        first=order[0] if order else 0,
    )
    return {i: vote.left for i, vote in enumerate(votes) if vote.answer is Answer.YES}


def _is_gone(left: float | None) -> bool:
    return left is not None and left <= 0


def _heard(ballot: Votes, majority: int) -> bool:
    """Whether it is clear if the key is gone from a majority, or nobody else will answer."""
    if None not in ballot:
        return True
    told = [vote for vote in ballot if vote and vote.answer is Answer.YES]
    gone = sum(_is_gone(vote.left) for vote in told)
    return gone >= majority or len(told) - gone > len(ballot) - majority


def _first_unheard(ballot: Votes, places: list[int]) -> bool:
    """Whether one of these nodes may still answer that comes before all that have."""
    for place in places:
        vote = ballot[place]
        if vote is None or vote.answer is Answer.YES:
            return vote is None
    return False


def _order(policy: Policy, target: LockKeys, which: int, votes: tuple[Vote, ...]) -> list[int]:
    """The nodes to stand at: all who wait begin with the same one, of those that have the lock."""
    first = target.queue_place(policy.size, which)
    places = [(first + i) % policy.size for i in range(policy.size)]
    having = [i for i in places if votes[i].sent and votes[i].answer is not Answer.YES]
    return having or places
