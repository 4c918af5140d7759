"""Ask all nodes about their indexes of names, and again those that were only too slow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from django_redlock.core.commands import Heal
from django_redlock.core.protocol import Answer
from django_redlock.core.quorum import all_heard
from django_redlock.core.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Request, Steps, Vote
    from django_redlock.transport.node import NodeStatus

AGAIN: Final = 2  # times that nodes which were only too slow are asked again


def hear(backend: Backend, ask: Request) -> Steps[list[Vote]]:
    """Send a request to all nodes, and again to those that were only too slow."""
    votes = list((yield ask))
    patient = True
    for _ in range(AGAIN):
        prompt, slow = _worth_another_try(votes, backend.group.states())
        to = prompt or (slow if patient else frozenset())
        if not to:
            break
        patient = patient and to is not slow  # waiting for connections once more is enough
        again = yield replace(ask, nonce=backend.policy.nonce(), to=to)
        votes = [again[i] if i in to else vote for i, vote in enumerate(votes)]
    return votes


def any_emptied(backend: Backend, to: frozenset[int]) -> Steps[bool]:
    """Tell whether one of these nodes lost its data after this process had connected to it.

    Such a node lists what it has, and has no vote. Putting a lease without names back writes
    nothing, and is refused by it as every grant is; its connection is closed then.
    """
    policy = backend.policy
    ask = Heal(policy.nonce(), all_heard, policy.target(()), fence=0, ttl=0, label="", to=to)
    votes = yield ask
    return any(votes[i].code == ReasonCode.EMPTIED for i in to)


def heard(votes: Sequence[Vote]) -> frozenset[int]:
    """Return the places of the nodes that replied."""
    return frozenset(i for i, vote in enumerate(votes) if vote.answer is Answer.YES)


def _worth_another_try(
    votes: Sequence[Vote], states: Sequence[NodeStatus]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the nodes that were only too slow: those connected by now, and those connecting.

    A process that has just started connects to all nodes within the time of the first request,
    and one slow node may leave no time for the replies of the others. A node whose vote and state
    have the same reason is known to be down, and is not asked again.
    """
    lost = frozenset(i for i, vote in enumerate(votes) if vote.answer is not Answer.YES)
    reached = frozenset(i for i in lost if states[i].uptime is not None)
    prompt = frozenset(
        i for i in reached if states[i].voting or states[i].guard_left > 0 or states[i].clock_off
    )
    slow = frozenset(i for i in lost - reached if states[i].reason != votes[i].reason)
    return prompt, slow
