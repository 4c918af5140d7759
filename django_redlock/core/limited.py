"""Take one of the k slots of a limited lock.

Not a counter on each node: of five nodes, of which each admits two, a majority admits three. Each
slot is an ordinary lock, with Redlock's promise, and a caller holds the lock if it holds a slot.
Whatever comes after the grant is that lock's: extending, healing, releasing, handing over.

``acquire`` tries, waits and gives up for all locks; here is which slot is tried next. A caller
wishes a slot at random. A node that refuses it tells of all slots which are free, and the next wish
is one of those that a majority calls free. If there is none, the caller waits for all of them. No
order is kept over the slots, and a slot may be idle for the moment that a wish takes.

Callers may take different numbers for k, as while a new version is rolled out: each gets slots
below its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import LockTaken
from .hold import wake_next
from .protocol import Answer, LockKeys, NextTry, Waiter
from .quorum import free_slots_in, is_split, slots_clear
from .reasons import ReasonCode, because
from .wait import Line, nodes_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .commands import SlotsLeft
    from .policy import Policy
    from .protocol import Request, Vote


class Slots(Sequence[LockKeys]):
    """Any slot of a limited lock, as ``acquire`` wants it; keys are made for those it tries."""

    __slots__ = ("_limit", "_name", "_policy", "_template")

    def __init__(self, policy: Policy, name: str, limit: int, template: str = "") -> None:
        self._policy, self._name, self._limit, self._template = policy, name, limit, template

    def __len__(self) -> int:
        return self._limit

    def __getitem__(self, slot: Any) -> Any:
        if not 0 <= slot < self._limit:
            raise IndexError(slot)
        names, limit = (self._name,), self._limit
        return self._policy.target(names, self._template, slot=slot, limit=limit)

    def first(self) -> NextTry:
        """Return a slot at random."""
        return NextTry(self[_one_of(self._policy, range(self._limit))])

    def choose(self, refusal: LockTaken, tried: NextTry, *, surely: bool) -> NextTry | None:
        """Return another slot that is free, or may be; None: all are held."""
        policy, votes = self._policy, refusal.votes
        slot, refused = tried.target.slot or 0, tried.refused + 1
        free = _free(votes, policy.majority, slot)
        if free and refused <= self._limit:
            return NextTry(self[_one_of(policy, free)], refused=refused)
        # Several attempts have split the nodes, or others were faster every time.
        if free or is_split(votes, policy.majority, surely=surely):
            return NextTry(self[_one_of(policy, free or _not_taken(votes, slot))], pauses=True)
        return None

    def line(self, refusal: LockTaken) -> SlotLine:
        """Return where a caller waits for any slot."""
        return SlotLine(self._policy, self, refusal.votes)

    def reserved(self, refusal: LockTaken) -> Iterator[NextTry]:
        """Yield each slot that a majority has reserved for a woken waiter."""
        nodes = Counter(slot for each in _left(refusal.votes).values() for slot in each.reserved)
        for slot, count in nodes.items():
            if count >= self._policy.majority:
                yield NextTry(self[slot])

    def held(self, refusal: LockTaken) -> LockTaken:
        """Return a refusal that tells of all slots."""
        ends = _free_in(refusal.votes, self._policy.majority)
        if not ends or min(ends) <= 0:  # split, or others were faster
            return refusal
        left = min(ends)
        return LockTaken(
            because(ReasonCode.FULL, limit=self._limit, holder=refusal.holder or ""),
            name=refusal.name,
            votes=refusal.votes,
            retry_after=None if left == float("inf") else left,
            holder=refusal.holder,
        )


class SlotLine(Line["SlotsLeft"]):
    """The waiters for any slot. A node tells when each is free.

    The waiter blocks on the lists of all slots at once, and each list has a wake-up of its own: a
    release of one slot replaces none of another. A wake-up opens the slot of its list only.
    """

    is_clear = staticmethod(slots_clear)

    def __init__(self, policy: Policy, slots: Slots, votes: Sequence[Vote]) -> None:
        self._slots, first = slots, slots[0]
        nodes = nodes_from(policy, first.queue_nodes[0])
        order = [i for i in nodes if votes[i].sent] or nodes
        queues = tuple([each.queues[0] for each in slots])
        # A waiter with another limit stands in another line: its first one blocks on other lists.
        waiter = Waiter(f"{queues[0]} of {len(slots)}", first.template, queues)
        waiter.which = _one_of(policy, range(len(slots)))
        super().__init__(policy, first, waiter, order, _left(votes))

    def read(self, looks: Sequence[Vote]) -> dict[int, SlotsLeft]:
        """Return what nodes told of each slot."""
        return _left(looks, Answer.YES)

    def free_in(self, told: Mapping[int, SlotsLeft], node: int, *, blocked: bool) -> float:  # noqa: ARG002
        """Return the seconds until a majority says that a slot is free; note one that is.

        Unlike a waiter for one name, this one can tell nothing from one node that lacks a key.
        """
        ends = free_slots_in([each.left for each in told.values()], self.policy.majority)
        if free := [slot for slot, end in enumerate(ends) if end <= 0]:
            self.waiter.which = _one_of(self.policy, free)
        return min(ends)

    def next_try(self, wakeup: str) -> NextTry:
        """Return the slot that was found free, or whose list had the wake-up."""
        return NextTry(self._slots[self.waiter.which], wakeup)

    def pass_on(self) -> Request:
        """Return the request that wakes the next waiter for the slot of the wake-up."""
        return wake_next(self.policy, self._slots[self.waiter.which], 0)


def _one_of(policy: Policy, slots: Sequence[int]) -> int:
    return slots[int(policy.uniform(0, len(slots))) % len(slots)]


def _left(votes: Sequence[Vote], answer: Answer = Answer.NO) -> dict[int, SlotsLeft]:
    """Return what the nodes that voted so have told of the slots, by node."""
    return {i: vote.result for i, vote in enumerate(votes) if vote.answer is answer and vote.result}


def _free_in(votes: Sequence[Vote], majority: int) -> list[float]:
    return free_slots_in([each.left for each in _left(votes).values()], majority)


def _free(votes: Sequence[Vote], majority: int, slot: int) -> list[int]:
    """Return the slots that are free, beside the one that was wished.

    If there is none, those of which nodes that have not replied in time may make a majority.
    """
    unknown = sum(vote.answer is Answer.UNKNOWN and vote.sent for vote in votes)
    for missing in dict.fromkeys((0, unknown)):
        ends = _free_in(votes, max(1, majority - missing))
        if free := [i for i, end in enumerate(ends) if end <= 0 and i != slot]:
            return free
    return []


def _not_taken(votes: Sequence[Vote], slot: int) -> list[int]:
    """Return the slots that no node calls taken; the one that was wished, if there is none."""
    ends = [free_slots_in([each.left], 1) for each in _left(votes).values()]
    return [i for i, each in enumerate(zip(*ends, strict=True)) if max(each) <= 0] or [slot]
