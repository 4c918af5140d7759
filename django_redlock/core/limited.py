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
from typing import TYPE_CHECKING

from .errors import LockTaken
from .protocol import Answer, NextTry, Waiter
from .quorum import free_slots_in, is_split, slots_clear
from .reasons import ReasonCode, because
from .slots import Slot
from .wait import Line, nodes_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .commands import SlotsLeft
    from .policy import Policy
    from .protocol import LockKeys, Vote


class Slots:
    """Any slot of a limited lock, as ``acquire`` wants it; keys are made for those it tries."""

    __slots__ = ("_policy", "_template", "count", "name")

    def __init__(self, policy: Policy, name: str, count: int, template: str = "") -> None:
        self.name, self.count = name, count
        self._policy, self._template = policy, template

    def __iter__(self) -> Iterator[LockKeys]:
        return map(self.__getitem__, range(self.count))

    def __getitem__(self, number: int) -> LockKeys:
        return self._policy.target((self.name,), self._template, Slot(number, self.count))

    @property
    def first(self) -> NextTry:
        """A slot at random."""
        return NextTry(self[_one_of(self._policy, range(self.count))])

    def choose(self, refusal: LockTaken, tried: NextTry, *, surely: bool) -> NextTry | None:
        policy, votes, refused = self._policy, refusal.votes, tried.refused + 1
        slot = tried.target.slot.number if tried.target.slot else 0
        free = _free(votes, policy.majority, slot)
        if free and refused <= self.count:
            return NextTry(self[_one_of(policy, free)], refused=refused)
        # Several attempts have split the nodes, or others were faster every time.
        if free or is_split(votes, policy.majority, surely=surely):
            return NextTry(self[_one_of(policy, free or _not_taken(votes, slot))], pauses=True)
        return None

    def line(self, refusal: LockTaken) -> SlotLine:
        return SlotLine(self._policy, self, refusal.votes)

    def reserved(self, refusal: LockTaken) -> Iterator[NextTry]:
        nodes = Counter(slot for each in _lefts(refusal.votes).values() for slot in each.reserved)
        for slot, count in nodes.items():
            if count >= self._policy.majority:
                yield NextTry(self[slot])

    def held(self, refusal: LockTaken) -> LockTaken:
        ends = _free_in(_lefts(refusal.votes), self._policy.majority)
        if not ends or min(ends) <= 0:  # split, or others were faster
            return refusal
        left = min(ends)
        return LockTaken(
            because(ReasonCode.FULL, limit=self.count, holder=refusal.holder or ""),
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
        waiter = Waiter(f"{queues[0]} of {slots.count}", first.template, queues)
        waiter.which = _one_of(policy, range(slots.count))
        super().__init__(policy, first, waiter, order, _lefts(votes))

    def read(self, looks: Sequence[Vote]) -> dict[int, SlotsLeft]:
        return _lefts(looks, Answer.YES)

    def free_in(self, lefts: Mapping[int, SlotsLeft], node: int, *, blocked: bool) -> float:  # noqa: ARG002
        # Unlike a waiter for one name, this one can tell nothing from one node that lacks a key.
        ends = _free_in(lefts, self.policy.majority)
        if free := [slot for slot, end in enumerate(ends) if end <= 0]:
            self.waiter.which = _one_of(self.policy, free)
        return min(ends)

    def next_try(self, wakeup: str) -> NextTry:
        return NextTry(self._slots[self.waiter.which], wakeup)


def _one_of(policy: Policy, slots: Sequence[int]) -> int:
    return slots[int(policy.uniform(0, len(slots))) % len(slots)]


def _lefts(votes: Sequence[Vote], answer: Answer = Answer.NO) -> dict[int, SlotsLeft]:
    """Return what the nodes that voted so have said of the slots, by node."""
    return {i: vote.result for i, vote in enumerate(votes) if vote.answer is answer and vote.result}


def _free_in(lefts: Mapping[int, SlotsLeft], majority: int) -> list[float]:
    """Return the seconds until a majority of the nodes says that each slot is free."""
    return free_slots_in([each.left for each in lefts.values()], majority)


def _free(votes: Sequence[Vote], majority: int, slot: int) -> list[int]:
    """Return the slots that are free, beside the one that was wished.

    If there is none, those of which nodes that have not replied in time may make a majority.
    """
    unknown = sum(vote.answer is Answer.UNKNOWN and vote.sent for vote in votes)
    for missing in dict.fromkeys((0, unknown)):
        ends = _free_in(_lefts(votes), max(1, majority - missing))
        if free := [i for i, end in enumerate(ends) if end <= 0 and i != slot]:
            return free
    return []


def _not_taken(votes: Sequence[Vote], slot: int) -> list[int]:
    """Return the slots that no node calls taken; the one that was wished, if there is none."""
    lefts = zip(*[each.left for each in _lefts(votes).values()], strict=True)
    return [i for i, each in enumerate(lefts) if all(left == 0 for left in each)] or [slot]
