"""Ask all nodes what they have, and ask those once more that were only too slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_redlock.core.protocol import Answer, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Command, Steps, Vote, Votes
    from django_redlock.transport.node import NodeStatus

AGAIN: Final = 2  # times that nodes which were only too slow are asked again


def question(
    backend: Backend,
    command: Command,
    args: tuple[str | int, ...] = (),
    *,
    to: frozenset[int] | None = None,
    each: dict[int, int] | None = None,
) -> Request:
    """What is asked of the index of held names; over when everybody has answered."""
    policy = backend.policy
    held = (f"{policy.prefix}held",)
    return Request(command, policy.nonce(), held, args, _everybody_answered, to, each)


def hear(backend: Backend, ask: Request) -> Steps[list[Vote]]:
    """Put a question to all nodes, again to those that were only too slow."""
    votes = list((yield ask))
    patient = True
    for _ in range(AGAIN):
        prompt, slow = _worth_another_try(votes, backend.group.states())
        to = prompt or (slow if patient else frozenset())
        if not to:
            break
        patient = patient and to is not slow  # waiting for connections once more is enough
        again = yield ask._replace(nonce=backend.policy.nonce(), to=to)
        votes = [again[i] if i in to else vote for i, vote in enumerate(votes)]
    return votes


def heard(votes: Sequence[Vote]) -> frozenset[int]:
    """The places of the nodes that answered."""
    return frozenset(i for i, vote in enumerate(votes) if vote.answer is Answer.YES)


def _everybody_answered(ballot: Votes) -> bool:
    return None not in ballot


def _worth_another_try(
    votes: Sequence[Vote], states: Sequence[NodeStatus]
) -> tuple[frozenset[int], frozenset[int]]:
    """The nodes that were only too slow: those connected by now, and those still connecting.

    A process that has just started connects to all nodes within the first question's time, and
    one node that takes all of it leaves nothing for the others' answers. Nodes known to be down,
    which say the same in their vote and their state, are let alone.
    """
    lost = frozenset(i for i, vote in enumerate(votes) if vote.answer is not Answer.YES)
    reached = frozenset(i for i in lost if states[i].uptime is not None)
    prompt = frozenset(
        i for i in reached if states[i].voting or states[i].guard_left > 0 or states[i].clock_off
    )
    slow = frozenset(i for i in lost - reached if states[i].why != votes[i].why)
    return prompt, slow
