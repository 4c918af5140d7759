"""Count votes: whether a request has a majority, cannot have one any more, or is still open.

Everything here is a function of votes alone. YES and NO are answers; a vote that is UNKNOWN counts
as neither, and one that is None has not been heard yet.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from .protocol import Answer, Vote, Votes

if TYPE_CHECKING:
    from collections.abc import Sequence

# An enum's member costs five times a name.
YES: Final = Answer.YES
NO: Final = Answer.NO


class Count(NamedTuple):
    """A ballot, counted."""

    yes: int
    no: int
    open: int  # not heard yet


def count(ballot: Votes) -> Count:
    """Count a ballot; an unknown vote is none of the three."""
    yes = no = unheard = 0
    for vote in ballot:
        if vote is None:
            unheard += 1
        elif vote.answer is YES:
            yes += 1
        elif vote.answer is NO:
            no += 1
    return Count(yes, no, unheard)


def majority_of(size: int) -> int:
    """More than half, for even sizes too: two majorities always share a node."""
    return size // 2 + 1


@functools.cache
def counting(rule: Callable[..., bool], majority: int, **facts: bool) -> Callable[[Votes], bool]:
    """``rule`` for a ballot that this majority decides.

    One for all questions: with thousands at once, one more for each is work for the garbage
    collector, which looks at everything else that the process has as well.
    """
    return functools.partial(rule, majority=majority, **facts)


def granted_or_not(ballot: Votes, majority: int) -> bool:
    """Whether a grant's outcome is clear: granted; or not, and whether taken or unavailable."""
    yes, no, rest = count(ballot)
    if yes >= majority:
        return True
    hopeless = yes + rest < majority
    return hopeless and (yes + no >= majority or yes + no + rest < majority)


def unheard(ballot: Votes, majority: int, *, patient: bool) -> bool:
    """Whether somebody may still be heard who matters, though the outcome is clear.

    Where no majority can be asked, everybody: the error says who could vote. And for who will
    wait: a node that has refused needs no undoing, and no look if it is that of the queue.
    """
    yes, no, rest = count(ballot)
    if yes + no + rest < majority:
        return rest > 0
    return patient and rest > 0 and yes < majority


def is_split(votes: Sequence[Vote], majority: int, *, surely: bool) -> bool:
    """Whether nobody has the names: some nodes granted them to us, no majority to one other.

    Surely, if the nodes that were not heard cannot make that majority.
    """
    owners = Counter(vote.owner for vote in votes if vote.answer is Answer.NO)
    ours = any(vote.answer is Answer.YES for vote in votes)
    unknown = sum(vote.answer is Answer.UNKNOWN for vote in votes) if surely else 0
    return ours and max(owners.values(), default=0) + unknown < majority


def majority_reserves(votes: Sequence[Vote], majority: int) -> bool:
    """Whether a majority keeps the names for whoever is woken next."""
    return len(reserving(votes)) >= majority


def reserving(votes: Sequence[Vote]) -> list[Vote]:
    """The votes of the nodes that keep a name for whoever is woken next."""
    kept = [vote for vote in votes if vote.left is not None and not vote.owner]
    return [vote for vote in kept if vote.answer is Answer.NO]


def adoption_is_over(ballot: Votes, majority: int) -> bool:
    """Whether nobody can adopt a tenancy any more: too few nodes have it, or one other has them.

    What different others have may be given back: they are adopters as we are.
    """
    owners = [vote.owner for vote in ballot if vote is not None and vote.answer is NO]
    missing = owners.count("")
    most = max((owners.count(owner) for owner in owners if owner), default=0)
    return missing > len(ballot) - majority or most >= majority


def adopted_or_not(ballot: Votes, majority: int) -> bool:
    """Whether an adoption's outcome is clear; that others have split the nodes is not the end."""
    yes, no, rest = count(ballot)
    return (
        yes >= majority
        or adoption_is_over(ballot, majority)
        or not rest
        or yes + no + rest < majority
    )


def not_yes(votes: Sequence[Vote]) -> frozenset[int]:
    """The places of the nodes that did not say yes."""
    return frozenset(i for i, vote in enumerate(votes) if vote.answer is not YES)


def sent_to(votes: Sequence[Vote]) -> frozenset[int]:
    """The places of the nodes that the request was sent to."""
    return frozenset(i for i, vote in enumerate(votes) if vote.sent)


def commonest(numbers: list[int]) -> tuple[int, int]:
    """The number that is there most often, and how often. A ``Counter`` costs ten times as much."""
    most = max(numbers, key=numbers.count)
    return most, numbers.count(most)


def heard(ballot: Votes, majority: int) -> bool:
    """Whether as many nodes as make a majority have answered, whatever they said."""
    return len(ballot) - ballot.count(None) >= majority


def kept_or_not(ballot: Votes, majority: int) -> bool:
    """Whether each outcome is clear: kept, denied by a majority, or never to be known."""
    unheard = ballot.count(None)
    heard = [outcomes_of(vote) for vote in ballot if vote is not None and vote.answer is Answer.YES]
    if not heard:
        return unheard < majority
    for yes in map(sum, zip(*heard, strict=True)):
        no = len(heard) - yes
        if yes < majority and no < majority and max(yes, no) + unheard >= majority:
            return False
    return True


def majority_denies(votes: Sequence[Vote], majority: int) -> bool:
    """Whether a majority said that it does not have the tenancy."""
    return sum(vote.answer is Answer.NO for vote in votes) >= majority


def outcomes_of(vote: Vote) -> Sequence[int]:
    """What a node that answered says of each tenancy: 1 kept, 0 gone."""
    return cast("Sequence[int]", vote.data)
