"""Count votes: whether a request has a majority, cannot have one any more, or is still open.

Everything here is a function of votes alone. A vote that is UNKNOWN counts as neither YES nor NO,
and one that is None has not been heard yet.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from .protocol import Answer, Vote, Votes
from .reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# An enum's member costs five times a name.
YES: Final = Answer.YES
NO: Final = Answer.NO
# For ``map``: a comprehension costs more, and each lock looks through its votes.
answer_of: Final = attrgetter("answer")
was_sent: Final = attrgetter("sent")
fence_of: Final = attrgetter("fence")


class Count(NamedTuple):
    """How many votes there are of each kind."""

    yes: int
    no: int
    open: int  # not heard yet


def count(votes: Votes) -> Count:
    """Count votes; an unknown one is none of the three."""
    yes = no = unheard = 0
    for vote in votes:
        if vote is None:
            unheard += 1
        elif vote.answer is YES:
            yes += 1
        elif vote.answer is NO:
            no += 1
    return Count(yes, no, unheard)


def majority_of(size: int) -> int:
    """Return more than half, for even sizes too: two majorities always share a node."""
    return size // 2 + 1


@functools.cache
def with_majority(
    rule: Callable[..., bool], majority: int, **facts: bool
) -> Callable[[Votes], bool]:
    """Return a rule as ``Request.decided`` and ``worth`` want it: of votes alone.

    It counts nothing itself: ``rule`` is called with the votes, this majority and these facts. All
    requests share one: with thousands at once, one more for each is work for the garbage
    collector, which looks at everything else that the process has as well.
    """
    return functools.partial(rule, majority=majority, **facts)


def granted_or_not(votes: Votes, majority: int) -> bool:
    """Tell whether a grant's outcome is clear: granted, taken or unavailable."""
    yes, no, rest = count(votes)
    if yes >= majority:
        return True
    hopeless = yes + rest < majority
    return hopeless and (yes + no >= majority or yes + no + rest < majority)


def recorded_or_heard(votes: Votes, majority: int) -> bool:  # noqa: ARG001 - as the others
    """Tell whether a record was found, or no node can have one any more that was not heard."""
    return None not in votes or has_record(votes)


def has_record(votes: Votes) -> bool:
    """Return True if a node has the record that the work is done; one is enough.

    The holder wrote the record to all nodes that it could reach, and some may have lost it since.
    A node can have it from the holder alone.
    """
    for vote in votes:  # a generator costs more, and each lock calls this
        if vote is not None and vote.answer is NO and vote.code == ReasonCode.RECORDED:
            return True
    return False


def unheard(votes: Votes, majority: int, *, patient: bool) -> bool:
    """Return True if a vote that is not heard yet still matters, though the outcome is clear.

    Where no majority can vote, each vote matters: the error names the nodes that could vote. For a
    caller that will wait, a refusal matters: that node needs no undo, and no look if it has the
    wait queue.
    """
    yes, no, rest = count(votes)
    if yes + no + rest < majority:
        return rest > 0
    return patient and rest > 0 and yes < majority


def is_split(votes: Sequence[Vote], majority: int, *, surely: bool) -> bool:
    """Return True if the nodes are split: we hold some of them, and nobody holds a majority.

    With ``surely``, the nodes that were not heard cannot make that majority either.
    """
    owners = Counter(vote.owner for vote in votes if vote.answer is Answer.NO)
    ours = any(vote.answer is Answer.YES for vote in votes)
    unknown = sum(vote.answer is Answer.UNKNOWN for vote in votes) if surely else 0
    return ours and max(owners.values(), default=0) + unknown < majority


def majority_reserves(votes: Sequence[Vote], majority: int) -> bool:
    """Tell whether a majority has the names reserved for a woken waiter."""
    return len(reserving(votes)) >= majority


def reserving(votes: Sequence[Vote]) -> list[Vote]:
    """Return the votes of the nodes that have a name reserved for a woken waiter."""
    kept = [vote for vote in votes if vote.left is not None and not vote.owner]
    return [vote for vote in kept if vote.answer is Answer.NO]


def ours_to_wake(
    votes: Sequence[Vote], majority: int, *, names: int, woken: int | None
) -> set[int]:
    """Return the indices of the names whose next waiter a failed attempt must wake.

    If a majority says that a name is spoken for, its holder will wake for that name. The attempt
    wakes for the names before it, which were free, and for the one that it was woken for. It wakes
    for no other: two attempts for the same names in another order, each refused by another holder,
    would wake each other again and again.

    Args:
        names: how many names were asked for.
        woken: the index of the one that the attempt was woken for; None if it was not.
    """
    others = _spoken_for(votes, woken=woken is not None)
    if len(others) < majority:
        return set(range(names))
    taken = min(vote.which for vote in others)
    free = set(range(taken)) | ({woken} if woken is not None else set())
    return free - {taken}


def _spoken_for(votes: Sequence[Vote], *, woken: bool) -> list[Vote]:
    """Return the votes that name a living holder, which will wake the next waiter.

    If this attempt was not woken and got no grant, a reserved name means that another waiter is
    being served: a second one woken now would find the name taken, and lose its turn.
    """
    refusals = [vote for vote in votes if vote.answer is Answer.NO]
    owners = Counter(vote.owner for vote in refusals if vote.owner)
    holders = {owner for owner, _ in owners.most_common(1)}
    said = [vote for vote in refusals if vote.owner in holders]
    if not woken and all(vote.answer is not Answer.YES for vote in votes):
        said += reserving(votes)
    return said


def free_in(refusals: Sequence[Vote], missing: int) -> float | None:
    """Return the seconds until so many nodes have forgotten their holder; None: never."""
    ends = sorted(math.inf if vote.left is None else vote.left for vote in refusals)
    end = ends[max(0, min(missing, len(ends)) - 1)]
    return None if math.isinf(end) else end


def free_slots_in(lefts: Iterable[Sequence[float | None]], majority: int) -> list[float]:
    """Return the seconds until a majority of the nodes has forgotten the holder of each slot.

    0: the slot is free. Infinite: never, or too few nodes replied.

    Args:
        lefts: what each node has said: the seconds for each slot; None: never.
    """
    ends = [
        sorted(math.inf if left is None else left for left in each)
        for each in zip(*lefts, strict=True)
    ]
    return [each[majority - 1] if len(each) >= majority else math.inf for each in ends]


def slots_clear(votes: Votes, majority: int) -> bool:
    """Tell whether it is clear if a slot is free, from looks at all slots."""
    if None not in votes:
        return True
    lefts = [vote.result.left for vote in votes if vote and vote.answer is YES]
    taken = [sum(left is None or left > 0 for left in each) for each in zip(*lefts, strict=True)]
    # With the holder of a slot on n − majority + 1 nodes, too few are left to call it free.
    most = len(votes) - majority
    return bool(taken) and (min(taken) > most or len(lefts) - min(taken) >= majority)


def adoption_is_over(votes: Votes, majority: int) -> bool:
    """Tell whether a lease cannot be adopted: too few nodes have it, or another has a majority.

    What several others have may be given back: they are adopters, too.
    """
    owners = [vote.owner for vote in votes if vote is not None and vote.answer is NO]
    missing = owners.count("")
    most = max((owners.count(owner) for owner in owners if owner), default=0)
    # Of n nodes n − majority may lack the lease: the others are a majority that may have it.
    return missing > len(votes) - majority or most >= majority


def adopted_or_not(votes: Votes, majority: int) -> bool:
    """Tell whether an adoption's outcome is clear; a split between adopters alone is no outcome."""
    yes, no, rest = count(votes)
    return (
        yes >= majority
        or adoption_is_over(votes, majority)
        or not rest
        or yes + no + rest < majority
    )


def not_yes(votes: Sequence[Vote]) -> frozenset[int]:
    """Return the indices of the nodes that did not vote yes."""
    return frozenset(i for i, vote in enumerate(votes) if vote.answer is not YES)


def reached(votes: Sequence[Vote]) -> frozenset[int]:
    """Return the indices of the nodes that may have done what they were asked for, or will."""
    return frozenset(i for i, vote in enumerate(votes) if vote.sent and vote.answer is not NO)


def sent_to(votes: Sequence[Vote]) -> frozenset[int]:
    """Return the indices of the nodes that the request was sent to."""
    return frozenset(i for i, vote in enumerate(votes) if vote.sent)


def heard(votes: Votes, majority: int) -> bool:
    """Tell whether a majority of the nodes has replied, with whatever vote."""
    return len(votes) - votes.count(None) >= majority


def kept_or_not(votes: Votes, majority: int) -> bool:
    """Tell whether each lease's outcome is clear: kept, denied by a majority, or unknown."""
    unheard = votes.count(None)
    heard = [vote.result.kept for vote in votes if vote is not None and vote.answer is YES]
    if not heard:
        return unheard < majority
    for yes in map(sum, zip(*heard, strict=True)):
        no = len(heard) - yes
        if yes < majority and no < majority and max(yes, no) + unheard >= majority:
            return False
    return True


def majority_denies(votes: Sequence[Vote], majority: int) -> bool:
    """Tell whether a majority replied that it does not have the lease."""
    denials = 0
    for vote in votes:
        if vote.answer is NO:
            denials += 1
    return denials >= majority


def revoked(votes: Sequence[Vote]) -> Reason | None:
    """Return why a node says that the lease was taken away; one is enough: to stop is safe."""
    for vote in votes:
        if vote.reason is not None and vote.code == ReasonCode.REVOKED:
            return vote.reason
    return None


def some_unheard(votes: Votes) -> bool:
    """Tell whether a node has not been heard."""
    return None in votes


def all_heard(votes: Votes) -> bool:
    """Return True if every node has been heard."""
    return None not in votes
