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
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from .commands import Claim, Look
from .hold import wake_next
from .policy import milliseconds
from .protocol import (
    NONCE,
    Answer,
    BlockOnNode,
    JoinQueue,
    LeaveQueue,
    NextTry,
    Sleep,
    Vote,
    Waiter,
    Wakeup,
)
from .quorum import with_majority

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .errors import LockTaken
    from .policy import Policy
    from .protocol import LockKeys, Steps, Votes

T = TypeVar("T")  # what a node tells of a lock

NEWS: Final = 1.5  # seconds for which a node believes that a name has a waiter
FRESH: Final = 0.9  # seconds for which a refusal is as good as a look; less than a wake-up lasts
LOOK_EVERY: Final = (0.5, 0.9)  # seconds between two looks; less than NEWS
LONGEST: Final = 10.0  # seconds after which a node may forget a waiter (half-open connections)


class Line(Generic[T]):
    """Where a refused caller waits, and what it makes of what the nodes tell it there.

    Attributes:
        target, which: the name that is looked at, and its index; or the first of all slots.
        waiter: what stands in the queues.
        order: the nodes to block on, the first of them first.
        lefts: what each node that refused has said: for how long the lock is taken there.
        arrived: the time when the caller was refused, on ``Policy.clock``.
        is_clear: the rule by which the replies to a look are enough.
    """

    is_clear: ClassVar[Callable[..., bool]]
    which = 0

    def __init__(
        self,
        policy: Policy,
        target: LockKeys,
        waiter: Waiter,
        order: list[int],
        lefts: Mapping[int, T],
    ) -> None:
        self.policy, self.target, self.waiter = policy, target, waiter
        self.order, self.lefts, self.arrived = order, lefts, policy.clock()

    def read(self, looks: Sequence[Vote]) -> Mapping[int, T]:
        """Return what each node has said that was looked at."""
        raise NotImplementedError

    def free_in(self, lefts: Mapping[int, T], node: int, *, blocked: bool) -> float | None:
        """Return the seconds until an attempt is worth it; 0: now; None: wait at another node.

        Args:
            lefts: what each node has said.
            node: the first of them in ``order``.
            blocked: whether the caller has already blocked on a node.
        """
        raise NotImplementedError

    def next_try(self, wakeup: str) -> NextTry:
        """Return what is tried next: what was found free, or what this nonce opens."""
        raise NotImplementedError


def wait_in_line(policy: Policy, line: Line[T], until: float) -> Steps[NextTry]:
    """Join the line of this process, wait at the nodes as its first one, and leave.

    The wait ends when another attempt is worth it, or at ``until``, on ``Policy.clock``. An
    interrupted waiter passes its wake-up on.
    """
    waiter = line.waiter
    try:
        if (yield JoinQueue(waiter, until - line.arrived)):
            wakeup = yield from _at_the_nodes(policy, line, until)
            if wakeup:
                return line.next_try(wakeup)
        wakeup = yield LeaveQueue(waiter)
    except GeneratorExit:
        raise
    except BaseException:
        wakeup = _wakeup_in((yield LeaveQueue(waiter)))
        if wakeup:  # our turn, which is not used
            unused = line.next_try(wakeup)
            yield wake_next(policy, unused.target, unused.woken)
        raise
    return line.next_try(_wakeup_in(wakeup))


def _at_the_nodes(policy: Policy, line: Line[T], until: float) -> Steps[str]:
    """Look at the nodes, block on one, and look again; return the nonce of a wake-up, or ""."""
    order, lefts = line.order, None
    if order[0] in line.lefts and policy.clock() - line.arrived <= FRESH:
        lefts = line.lefts  # the refusal has noted that the name has a waiter, as a look does
    broken, blocked = 0, False
    while (left := until - policy.clock()) > 0:
        if lefts is None:
            lefts = yield from _look(policy, line, order)
        node = next((i for i in order if i in lefts), None)
        if node is None:
            yield Sleep(min(left, policy.uniform(0.05, 0.1)))
            return ""
        ends = line.free_in(lefts, node, blocked=blocked)
        lefts = None
        if ends is None:
            order = [i for i in order if i != node]
            continue
        if ends <= 0:
            if blocked:  # all waiters may have seen that now
                yield Sleep(policy.uniform(0.0, 0.01))
            return ""
        nap = min(left, policy.uniform(*LOOK_EVERY), ends + 0.001)
        came: Wakeup = yield BlockOnNode(line.waiter, node, nap, min(left, LONGEST))
        if came.wakeup:
            return _wakeup_in(came.wakeup)
        broken = broken + 1 if came.broken else 0
        if broken:
            yield _pause(policy, broken, left)
        blocked = True
    return ""


def _pause(policy: Policy, broken: int, left: float) -> Sleep:
    """Return the pause before the next look, after so many broken connections in a row."""
    return Sleep(min(left, policy.uniform(0.5, 1.0) * min(LOOK_EVERY[0], 0.01 * 2**broken)))


def _look(policy: Policy, line: Line[T], order: list[int]) -> Steps[Mapping[int, T]]:
    """Return for how long the lock is taken on each node, and note there that it has a waiter."""
    votes = yield Look(
        policy.nonce(),
        with_majority(line.is_clear, policy.majority),
        line.target,
        line.which,
        milliseconds(NEWS),
        to=policy.everyone,
        worth=partial(_first_unheard, order=order),
        first=order[0] if order else 0,
    )
    return line.read(votes)


def _first_unheard(votes: Votes, order: list[int]) -> bool:
    """Return True if a node may still reply that comes in ``order`` before all that did."""
    for node in order:
        vote = votes[node]
        if vote is None or vote.answer is Answer.YES:
            return vote is None
    return False


def _wakeup_in(found: str) -> str:
    """Return what was found in a queue if it is a nonce; else ""."""
    return found if NONCE.fullmatch(found) else ""


# -- for one name ---------------------------------------------------------------------------------


class NameLine(Line["float | None"]):
    """The waiters for a name. A node tells the seconds until its key is gone; None: it never is."""

    def __init__(self, policy: Policy, target: LockKeys, refusal: LockTaken) -> None:
        votes, self.which = refusal.votes, waited_for(refusal)
        waiter = Waiter(target.queues[self.which], target.template)
        refused = [i for i, vote in enumerate(votes) if vote.answer is Answer.NO]
        lefts = {i: votes[i].left for i in refused if votes[i].which == self.which}
        super().__init__(policy, target, waiter, _order(policy, target, self.which, votes), lefts)

    @staticmethod
    def is_clear(votes: Votes, majority: int) -> bool:
        """Tell whether it is clear if a majority lacks the key, or all nodes were heard."""
        if None not in votes:
            return True
        heard = [vote for vote in votes if vote and vote.answer is Answer.YES]
        gone = sum(_is_gone(vote.left) for vote in heard)
        # With the key on n − majority + 1 nodes, too few are left to lack it.
        return gone >= majority or len(heard) - gone > len(votes) - majority

    def read(self, looks: Sequence[Vote]) -> dict[int, float | None]:
        return {i: vote.left for i, vote in enumerate(looks) if vote.answer is Answer.YES}

    def free_in(
        self, lefts: Mapping[int, float | None], node: int, *, blocked: bool
    ) -> float | None:
        # A node that has not refused and lacks the key is no news: it may never have had it.
        ends = lefts[node]
        news = _is_gone(ends) and (blocked or node in self.lefts)
        # A release that was lost on this one node has freed the name all the same.
        if news or sum(map(_is_gone, lefts.values())) >= self.policy.majority:
            return 0.0
        if _is_gone(ends):
            return None
        return math.inf if ends is None else ends

    def next_try(self, wakeup: str) -> NextTry:
        return NextTry(self.target, wakeup, self.which)


def _is_gone(left: float | None) -> bool:
    return left is not None and left <= 0


def head_start(policy: Policy, target: LockKeys, wait: float) -> Steps[None]:
    """Leave the names to the waiter that this process has just woken, if it has woken one."""
    seconds = policy.handed_over.head_start(target.entries, policy.clock())
    if seconds > 0:
        yield Sleep(min(seconds, wait))


def claim(policy: Policy, reserved: NextTry, votes: Sequence[Vote]) -> Steps[str]:
    """Take the wake-up that no waiter has taken; "" if there is none.

    For a caller that does not wait and finds the name reserved: perhaps its waiter is gone.
    """
    target, which = reserved.target, reserved.woken
    node = _order(policy, target, which, votes)[0]
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


def nodes_from(policy: Policy, first: int) -> list[int]:
    """Return all nodes, in the order in which waiters for a name prefer them."""
    return [(first + i) % policy.size for i in range(policy.size)]


def _order(policy: Policy, target: LockKeys, which: int, votes: Sequence[Vote]) -> list[int]:
    """Return the nodes to block on, in order: of those with the lock, the same for all waiters."""
    nodes = nodes_from(policy, target.queue_nodes[which])
    return [i for i in nodes if votes[i].sent and votes[i].answer is not Answer.YES] or nodes
