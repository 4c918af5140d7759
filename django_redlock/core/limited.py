"""Take one of the k slots of a limited lock.

Not a counter on each node: of five nodes, of which each admits two, a majority admits three. Each
slot is an ordinary lock, with Redlock's promise, and a caller holds the lock if it holds a slot.
Whatever comes after the grant is that lock's: extending, healing, releasing, handing over.

A caller wishes a slot at random. A node that refuses it tells of all slots which are free, and the
next wish is one of those that a majority calls free. If there is none, the caller waits for all of
them (``wait.wait_for_slot``). No order is kept over the slots, and a slot may be idle for the
moment that a wish takes.

Callers may take different numbers for k, as while a new version is rolled out: each gets slots
below its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import wait as waiting
from .acquire import SPLITS, attempt, sleep_or_raise
from .errors import LockTaken, NodesUnavailable
from .protocol import Answer, Grant, LockKeys, Sleep, Steps
from .quorum import free_slots_in, is_split
from .reasons import ReasonCode, because

if TYPE_CHECKING:
    from .acquire import WaitsFor
    from .policy import Policy
    from .protocol import Vote


class Slots(Sequence[LockKeys]):
    """The keys of each slot of a limited lock, made when asked for: an attempt needs one."""

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


def acquire_slot(
    policy: Policy,
    slots: Sequence[LockKeys],
    *,
    label: str,
    ttl: float,
    wait: float,
    waits_for: WaitsFor = None,
) -> Steps[Grant]:
    """Attempt until one of the slots is granted or ``wait`` seconds are over; 0 does not wait.

    The pauses are those of ``acquire``, which has the arguments, too.

    Raises:
        LockTaken: all slots were held to the end, or are, with "nodes".
        NodesUnavailable: as by ``acquire``.
    """
    give_up, limit = policy.clock() + wait, len(slots)
    slot, wakeup, wishes, splits, tries = _one_of(policy, range(limit)), "", 0, 0, 0
    while True:
        patient = policy.clock() < give_up and waits_for != "nodes"
        grant, refusal = yield from attempt(
            policy,
            slots[slot],
            label=label,
            ttl=ttl,
            wakeup=wakeup,
            patient=patient,
        )
        if grant is not None:
            return grant  # no call between the grant and its owner: see attempt()
        assert refusal is not None  # one of the two
        left, carried, wakeup = give_up - policy.clock(), wakeup, ""
        if isinstance(refusal, NodesUnavailable):
            yield sleep_or_raise(policy, refusal, tries, left=left, waits_for=waits_for)
            tries += 1
            continue
        free = _free(refusal.votes, policy.majority, slot)
        wishes += 1
        # Another slot is free …
        if free and wishes <= limit:
            slot = _one_of(policy, free)
        # … several attempts have split the nodes, or were faster every time …
        elif (free or is_split(refusal.votes, policy.majority, surely=left > 0)) and (
            left > 0 or splits < SPLITS
        ):
            splits, wishes = splits + 1, 0
            yield Sleep(policy.uniform(0.001, 0.01) * min(splits, 5))
            slot = _one_of(policy, free or _not_taken(refusal.votes, slot))
        # … all are held: the queues wake this caller …
        elif left > 0 and waits_for != "nodes":
            slot, wakeup = yield from waiting.wait_for_slot(policy, slots, refusal.votes, give_up)
            wishes = 0
        # … or some are reserved for waiters that may be gone: a wake-up may be claimed, once.
        elif not patient:
            if not carried:
                slot, wakeup = yield from _claimed(policy, slots, refusal)
            if not wakeup:
                raise _full(policy, refusal, limit)


def _one_of(policy: Policy, slots: Sequence[int]) -> int:
    return slots[int(policy.uniform(0, len(slots))) % len(slots)]


def _told(votes: Sequence[Vote]) -> list[Sequence[float | None]]:
    return [vote.result.left for vote in votes if vote.answer is Answer.NO and vote.result]


def _claimed(
    policy: Policy, slots: Sequence[LockKeys], refusal: LockTaken
) -> Steps[tuple[int, str]]:
    """Take the wake-up of a slot that a majority has reserved, if no waiter has taken it.

    Returns the slot and the wake-up; "": there is none.
    """
    votes = [vote for vote in refusal.votes if vote.answer is Answer.NO and vote.result]
    reserved = Counter(slot for vote in votes for slot in vote.result.reserved)
    for slot, nodes in reserved.items():
        if nodes >= policy.majority:
            wakeup = yield from waiting.claim(policy, slots[slot], refusal)
            if wakeup:
                return slot, wakeup
    return 0, ""


def _free(votes: Sequence[Vote], majority: int, slot: int) -> list[int]:
    """Return the slots that are free, beside the one that was wished.

    If there is none, those of which nodes that have not replied in time may make a majority.
    """
    told = _told(votes)
    unheard = sum(vote.answer is Answer.UNKNOWN and vote.sent for vote in votes)
    for missing in dict.fromkeys((0, unheard)):
        needed = max(1, majority - missing)
        ends = free_slots_in(told, needed)
        if free := [i for i, end in enumerate(ends) if end <= 0 and i != slot]:
            return free
    return []


def _not_taken(votes: Sequence[Vote], slot: int) -> list[int]:
    """Return the slots that no node calls taken; the one that was wished, if there is none."""
    ends = [free_slots_in([told], 1) for told in _told(votes)]
    return [i for i, each in enumerate(zip(*ends, strict=True)) if max(each) <= 0] or [slot]


def _full(policy: Policy, refusal: LockTaken, limit: int) -> LockTaken:
    """Return a refusal that tells of all slots."""
    ends = free_slots_in(_told(refusal.votes), policy.majority)
    if not ends or min(ends) <= 0:  # split, or others were faster
        return refusal
    left = min(ends)
    return LockTaken(
        because(ReasonCode.FULL, limit=limit, holder=refusal.holder or ""),
        name=refusal.name,
        votes=refusal.votes,
        retry_after=None if left == float("inf") else left,
        holder=refusal.holder,
    )
