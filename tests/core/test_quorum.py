"""When listening may stop: exactly when no vote that is still to come can change the outcome."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from django_redlock.core import completion
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.core.quorum import granted_or_not, kept_or_not

from .table import LOST, NO, Held, vote


def count(votes: Sequence[Vote], answer: Answer) -> int:
    """How many votes are so."""
    return sum(each.answer is answer for each in votes)


def of_a_grant(votes: Sequence[Vote], majority: int) -> str:
    """Granted, taken or unavailable, by the book."""
    heard = len(votes) - count(votes, Answer.UNKNOWN)
    granted = count(votes, Answer.YES) >= majority
    return "granted" if granted else "taken" if heard >= majority else "unavailable"


def of_an_extension(votes: Sequence[Vote], majority: int) -> list[str]:
    """Kept, lost or unknown, of each of two leases."""
    heard = [each.result.kept for each in votes if each.answer is Answer.YES]
    counts = [(sum(each), len(each) - sum(each)) for each in zip(*heard, strict=True)]
    return [
        "kept" if yes >= majority else "lost" if no >= majority else "unknown" for yes, no in counts
    ] or ["unknown"] * 2


def of_a_mark(votes: Sequence[Vote], majority: int) -> str:
    """Set, the id of the other one, or neither."""
    other, naming = completion.named(votes)
    is_set = count(votes, Answer.YES) >= majority
    return "set" if is_set else other if naming >= majority else "neither"


def of_a_record(votes: Sequence[Vote], majority: int) -> bool:
    """Whether a majority has it."""
    return count(votes, Answer.YES) >= majority


RULES: list[Any] = [
    (granted_or_not, of_a_grant, Command.GRANT, [5, NO, LOST]),
    (kept_or_not, of_an_extension, Command.EXTEND, ["11", "10", "01", "00", LOST]),
    (
        completion.marked_or_not,
        of_a_mark,
        Command.MARK,
        [1, Held(holder="a", owner="1"), Held(holder="b", owner="2"), LOST],
    ),
    (completion.recorded_or_not, of_a_record, Command.COMPLETE, [1, NO, LOST]),
]


@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize(
    ("rule", "outcome", "command", "words"), RULES, ids=lambda each: getattr(each, "__name__", "")
)
def test_listening_stops_exactly_when_no_answer_can_change_the_outcome(
    size: int,
    rule: Callable[..., bool],
    outcome: Callable[..., object],
    command: Command,
    words: list[object],
) -> None:
    """Not later, which would cost time; not earlier, which would mix up outcomes.

    Of two leases neither outcome is cut short because the other's is clear.
    """
    majority = Policy(size=size).majority
    every = [vote(0, word, command) for word in words]
    for known in range(size + 1):
        for heard in itertools.combinations_with_replacement(every, known):
            rests = itertools.combinations_with_replacement(every, size - known)
            ends = [outcome((*heard, *rest), majority) for rest in rests]
            clear = ends.count(ends[0]) == len(ends)
            assert rule([*heard, *[None] * (size - known)], majority) is clear, heard
