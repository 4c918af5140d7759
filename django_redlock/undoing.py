"""The questions that take back what a nonce holds, and wake whoever waits next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .protocol import Ask, Ballot, Command, counting, milliseconds

if TYPE_CHECKING:
    from collections.abc import Container

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
    wake: Container[int] | None = None,
) -> Ask:
    """The question that deletes our keys, and wakes who waits next for the names ``wake``.

    These are indices; None is all of them.
    """
    flags = ("1" if wake is None or i in wake else "0" for i in range(len(target.names)))
    return Ask(
        Command.RELEASE,
        nonce,
        (target.held, target.waits, *target.keys, *target.queues),
        (milliseconds(reserve), "".join(flags), *target.names),
        counting(heard, policy.majority),
        to,
        first=target.queue_place(policy.size),
    )


def heard(ballot: Ballot, majority: int) -> bool:
    """Whether as many nodes as make a majority have answered, whatever they said."""
    return len(ballot) - ballot.count(None) >= majority
