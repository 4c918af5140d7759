"""The questions that take back what a nonce holds, and wake whoever waits next."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from .protocol import Ask, Ballot, Command

if TYPE_CHECKING:
    from .protocol import Policy, Target

RESERVED: Final = 0.05  # seconds for which a name is kept for whoever is woken


def hand_over(policy: Policy, target: Target, nonce: str) -> Ask:
    """The question that frees what we held, keeps it for whoever waits, and wakes one of them."""
    return undo(policy, target, nonce, policy.everyone(), reserve=RESERVED)


def undo(
    policy: Policy,
    target: Target,
    nonce: str,
    to: frozenset[int],
    *,
    reserve: float = 0.0,
    push: bool = True,
) -> Ask:
    """The question that deletes our keys and, with ``push``, wakes whoever waits next."""
    return Ask(
        Command.RELEASE,
        nonce,
        (target.held, target.waits, *target.keys, *target.queues),
        (int(reserve * 1000), int(push), *target.names),
        partial(heard, majority=policy.majority),
        to,
        first=target.queue_place(policy.size),
    )


def heard(ballot: Ballot, majority: int) -> bool:
    """Whether as many nodes as make a majority have answered, whatever they said."""
    return sum(vote is not None for vote in ballot) >= majority
