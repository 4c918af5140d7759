"""Wait in a queue: a release wakes the waiters in order of arrival, and no waiter polls.

Each lock has a list beside it, the wait queue. A node that refuses an attempt which will wait notes
that the name has a waiter; so does a look, which goes to all nodes. The waiter then blocks on the
list of one node (BLPOP serves blocked clients in order of arrival). A release that finds the note
reserves the name for a moment and pushes one wake-up into the list: the nonce of the lease that is
over. The woken waiter sends that nonce with its attempt: to it a node grants a reserved name, and
also one that the release has not reached yet.

No wake-up is lost, since the note is written and the lock looked at in one step, by the refusal
or by a look of its own: a release before that is seen, and one after it finds the note. What
else can happen (the woken waiter died, the node lost its data, the holder is another program's
and wakes no waiter) is bounded by a look now and then, and by the holder's ttl.

All waiters for a name queue on one node, chosen by the name; where that one is down or owes a
reply, on the next. A release wakes on every node, so each waiter may be on any of them.

A wake-up never makes a waiter a holder: the votes on its attempt do, see ``acquire``.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from .commands import Claim, Look
from .hold import wake_next
from .policy import milliseconds
from .protocol import (
    NONCE,
    Answer,
    BlockOnNode,
    JoinQueue,
    LeaveQueue,
    Sleep,
    Vote,
    Waiter,
    Wakeup,
)
from .quorum import counting, free_slots_in, slots_clear
from .slots import entry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .errors import LockTaken
    from .policy import Policy
    from .protocol import LockKeys, Request, Steps, Votes

NEWS: Final = 1.5  # seconds for which a node believes that a name has a waiter
FRESH: Final = 0.9  # seconds for which a refusal is as good as a look; less than a wake-up lasts
LOOK_EVERY: Final = (0.5, 0.9)  # seconds between two looks; less than NEWS
LONGEST: Final = 10.0  # seconds after which a node may forget a waiter (half-open connections)


def wait_for_turn(policy: Policy, target: LockKeys, refusal: LockTaken, until: float) -> Steps[str]:
    """Wait until another attempt is worth it, or until ``until``, on ``Policy.clock``.

    Returns the nonce that woke the waiter, for its next attempt, or "".
    """
    which, arrived = waited_for(refusal), policy.clock()
    order = _order(policy, target, which, refusal.votes)
    waiter = Waiter(target.queues[which], target.template)

    def stand() -> Steps[str]:
        refusing = {i for i in order if _refused(refusal.votes[i], which)}
        seen = order[0] in refusing and policy.clock() - arrived <= FRESH
        return _at_the_nodes(
            policy,
            target,
            waiter,
            order=order,
            refusing=refusing,
            seen=refusal.votes[order[0]] if seen else None,
            until=until,
        )

    return in_line(waiter, until - arrived, stand, lambda: wake_next(policy, target, which))


def in_line(
    waiter: Waiter, seconds: float, stand: Callable[[], Steps[str]], pass_on: Callable[[], Request]
) -> Steps[str]:
    """Join the line of this process, carry out ``stand`` as the first one, and leave.

    Returns the nonce that woke the waiter, or "". An interruption passes it on.
    """
    try:
        if (yield JoinQueue(waiter, seconds)):
            wakeup = yield from stand()
            if wakeup:
                return wakeup
        wakeup = yield LeaveQueue(waiter)
    except GeneratorExit:
        raise
    except BaseException:
        wakeup = _wakeup_in((yield LeaveQueue(waiter)))
        if wakeup:  # our turn, which is not used
            yield pass_on()
        raise
    return _wakeup_in(wakeup)


# -- for any of several slots -------------------------------------------------------------------


def wait_for_slot(
    policy: Policy,
    slots: Sequence[LockKeys],
    votes: Sequence[Vote],
    until: float,
) -> Steps[tuple[int, str]]:
    """Wait until an attempt for a slot is worth it, or until ``until``.

    The waiter blocks on the lists of all slots at once, and each list has a wake-up of its own: a
    release of one slot replaces none of another. A wake-up opens the slot of its list only.

    Args:
        votes: those of the refusal, each with what the node told of all slots.

    Returns:
        The slot, and the nonce that woke the waiter for it, or "".
    """
    arrived, first = policy.clock(), slots[0]
    nodes = [(first.queue_nodes[0] + i) % policy.size for i in range(policy.size)]
    order = [i for i in nodes if votes[i].sent] or nodes
    # A waiter with another limit stands in another line: its first one blocks on other lists.
    line = f"{first.queue}{entry_of(first.names[0], len(slots))}"
    waiter = Waiter(line, first.template, tuple(each.queues[0] for each in slots))
    waiter.which = int(policy.uniform(0, len(slots))) % len(slots)

    def stand() -> Steps[str]:
        refused = {i: vote for i, vote in enumerate(votes) if vote.answer is Answer.NO}
        told = {i: vote.result.left for i, vote in refused.items() if vote.result}
        fresh = order[0] in told and policy.clock() - arrived <= FRESH
        seen = told if fresh else None
        return _at_a_node(policy, slots, waiter, order=order, seen=seen, until=until)

    def pass_on() -> Request:
        return wake_next(policy, slots[waiter.which], 0)

    wakeup = yield from in_line(waiter, until - arrived, stand, pass_on)
    return waiter.which, wakeup


def _at_a_node(
    policy: Policy,
    slots: Sequence[LockKeys],
    waiter: Waiter,
    *,
    order: list[int],
    seen: Mapping[int, Sequence[float | None]] | None,
    until: float,
) -> Steps[str]:
    """Look at the nodes, block on one, and look again; return the nonce of a wake-up, or "".

    Where there is none, ``waiter.which`` is a slot that is free. A slot is, if a majority says so:
    unlike a waiter for one name, this one can tell nothing from one node that lacks a key.

    Args:
        order: the nodes, the one to block on first.
        seen: what nodes told when they refused, if the first did, and that is as good as a look.
    """
    told, broken, blocked_before = seen, 0, False
    while (left := until - policy.clock()) > 0:
        if told is None:
            told = yield from _look_at_all(policy, slots, order)
        node = next((i for i in order if i in told), None)
        if node is None:
            yield Sleep(min(left, policy.uniform(0.05, 0.1)))
            return ""
        ends = free_slots_in(told.values(), policy.majority)
        free = [slot for slot, end in enumerate(ends) if end <= 0]
        if free:
            waiter.which = free[int(policy.uniform(0, len(free))) % len(free)]
            if blocked_before:  # all waiters may have seen that now
                yield Sleep(policy.uniform(0.0, 0.01))
            return ""
        nap = min(left, policy.uniform(*LOOK_EVERY), min(ends) + 0.001)
        came: Wakeup = yield BlockOnNode(waiter, node, nap, min(left, LONGEST))
        if came.wakeup:
            return _wakeup_in(came.wakeup)
        broken = broken + 1 if came.broken else 0
        if broken:
            yield _pause(policy, broken, left)
        told, blocked_before = None, True
    return ""


def _look_at_all(
    policy: Policy, slots: Sequence[LockKeys], order: list[int]
) -> Steps[dict[int, Sequence[float | None]]]:
    """Return the seconds until each slot is free, by node; note that each has a waiter."""
    votes = yield Look(
        policy.nonce(),
        counting(slots_clear, policy.majority),
        slots[0],
        0,
        milliseconds(NEWS),
        to=policy.everyone,
        worth=partial(_first_unheard, order=order),
        first=order[0],
    )
    return {i: vote.result.left for i, vote in enumerate(votes) if vote.answer is Answer.YES}


# -- one name, again ----------------------------------------------------------------------------


def head_start(policy: Policy, target: LockKeys, wait: float) -> Steps[None]:
    """Leave the names to the waiter that this process has just woken, if it has woken one."""
    seconds = policy.handed_over.head_start(target.entries, policy.clock())
    if seconds > 0:
        yield Sleep(min(seconds, wait))


def claim(policy: Policy, target: LockKeys, refusal: LockTaken) -> Steps[str]:
    """Take the wake-up that no waiter has taken; "" if there is none.

    For a caller that does not wait and finds the name reserved: perhaps its waiter is gone.
    """
    which = waited_for(refusal)
    node = _order(policy, target, which, refusal.votes)[0]
    votes = yield Claim(
        policy.nonce(),
        lambda votes: votes[node] is not None,
        target.queues[which],
        to=frozenset({node}),
    )
    return _wakeup_in(votes[node].result) if votes[node].answer is Answer.YES else ""


def waited_for(refusal: LockTaken) -> int:
    """Return the index of the name that was refused, and is waited for."""
    refused = [vote.which for vote in refusal.votes if vote.answer is Answer.NO]
    return Counter(refused).most_common(1)[0][0]


def _wakeup_in(found: str) -> str:
    """Return what was found in a queue if it is a nonce; else ""."""
    return found if NONCE.fullmatch(found) else ""


def _refused(vote: Vote, which: int) -> bool:
    return vote.answer is Answer.NO and vote.which == which


def _at_the_nodes(
    policy: Policy,
    target: LockKeys,
    waiter: Waiter,
    *,
    order: list[int],
    refusing: set[int],
    seen: Vote | None,
    until: float,
) -> Steps[str]:
    """Look at the nodes, block on one, and look again; return the nonce of a wake-up, or "".

    Args:
        order: the nodes, the one to block on first.
        refusing: the nodes that have refused this name. That another one does not have the
            key is no news: it may never have had it.
        seen: the refusal of the first node in ``order``, if that is as good as a look.
    """
    which = target.queues.index(waiter.queue)
    node, ends = (None, None) if seen is None else (order[0], seen.left)
    blocked_before, broken = False, 0
    while (left := until - policy.clock()) > 0:
        if node is None:
            looked = yield from _look(policy, target, which, order)
            node = next((i for i in order if i in looked), None)
            if node is None:
                yield Sleep(min(left, policy.uniform(0.05, 0.1)))
                return ""
            ends = looked[node]
            news = _is_gone(ends) and (blocked_before or node in refusing)
            # A release that was lost on this one node has freed the name all the same.
            if news or sum(map(_is_gone, looked.values())) >= policy.majority:
                if blocked_before:  # all waiters may have seen that now
                    yield Sleep(policy.uniform(0.0, 0.01))
                return ""
            if _is_gone(ends):
                order = [i for i in order if i != node]
                node = None
                continue
        nap = min(left, policy.uniform(*LOOK_EVERY), math.inf if ends is None else ends + 0.001)
        came: Wakeup = yield BlockOnNode(waiter, node, nap, min(left, LONGEST))
        if came.wakeup:
            return _wakeup_in(came.wakeup)
        broken = broken + 1 if came.broken else 0
        if broken:
            yield _pause(policy, broken, left)
        node, blocked_before = None, True
    return ""


def _pause(policy: Policy, broken: int, left: float) -> Sleep:
    """Return the pause before the next look, after so many broken connections in a row."""
    return Sleep(min(left, policy.uniform(0.5, 1.0) * min(LOOK_EVERY[0], 0.01 * 2**broken)))


def _look(
    policy: Policy, target: LockKeys, which: int, order: list[int]
) -> Steps[dict[int, float | None]]:
    """Return the seconds until the key is gone, by node: 0 there is none, None never."""
    votes = yield Look(
        policy.nonce(),
        counting(_heard, policy.majority),
        target,
        which,
        milliseconds(NEWS),
        to=policy.everyone,
        worth=partial(_first_unheard, order=order),
        first=order[0] if order else 0,
    )
    return {i: vote.left for i, vote in enumerate(votes) if vote.answer is Answer.YES}


def _is_gone(left: float | None) -> bool:
    return left is not None and left <= 0


def _heard(votes: Votes, majority: int) -> bool:
    """Tell whether it is clear if a majority lacks the key, or all nodes were heard."""
    if None not in votes:
        return True
    heard = [vote for vote in votes if vote and vote.answer is Answer.YES]
    gone = sum(_is_gone(vote.left) for vote in heard)
    return gone >= majority or len(heard) - gone > len(votes) - majority


def _first_unheard(votes: Votes, order: list[int]) -> bool:
    """Return True if a node may still reply that comes in ``order`` before all that did."""
    for node in order:
        vote = votes[node]
        if vote is None or vote.answer is Answer.YES:
            return vote is None
    return False


def _order(policy: Policy, target: LockKeys, which: int, votes: tuple[Vote, ...]) -> list[int]:
    """Return the nodes to block on, in order: of those with the lock, the same for all waiters."""
    first = target.queue_nodes[which]
    indices = [(first + i) % policy.size for i in range(policy.size)]
    having = [i for i in indices if votes[i].sent and votes[i].answer is not Answer.YES]
    return having or indices
