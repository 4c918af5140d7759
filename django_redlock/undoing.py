"""The questions that take back what a nonce holds, and wake whoever waits next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .protocol import Ask, Ballot, Command, counting, milliseconds

if TYPE_CHECKING:
    from collections.abc import Container

    from .protocol import Policy, Target

RESERVED: Final = 0.05  # seconds for which a name is kept for whoever is woken


def hand_over(policy: Policy, target: Target, nonce: str, touched: frozenset[int]) -> Ask:
    """The question that frees what we held, keeps it for whoever waits, and wakes one of them."""
    return undo(policy, target, nonce, policy.everyone(), touched=touched, reserve=RESERVED)


def wake_next(policy: Policy, target: Target, word: str) -> Ask:
    """The question of a waiter that was woken by ``word`` and does not take its turn."""
    return undo(policy, target, word, policy.everyone(), touched=frozenset())


def give_back(policy: Policy, target: Target, nonce: str, old: str, touched: frozenset[int]) -> Ask:
    """The question of an adopter that has no majority: the handle it came with is good again."""
    return Ask(
        Command.RETURN,
        nonce,
        target.keys,
        (old,),
        counting(heard, policy.majority),
        touched,
        lasts=policy.max_ttl,
    )


def undo(
    policy: Policy,
    target: Target,
    nonce: str,
    to: frozenset[int],
    *,
    touched: frozenset[int] | None = None,
    reserve: float = 0.0,
    wake: Container[int] | None = None,
) -> Ask:
    """The question that deletes our keys, and wakes who waits next for some of the names.

    Args:
        touched: the nodes that may have our keys; None is all of ``to``.
        wake: the indices of the names; None is all of them.
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
        touched=touched,
        lasts=policy.max_ttl,
    )


def heard(ballot: Ballot, majority: int) -> bool:
    """Whether as many nodes as make a majority have answered, whatever they said."""
    return len(ballot) - ballot.count(None) >= majority
