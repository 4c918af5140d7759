"""Which nodes delete keys to make room: a lock that is held may be among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.protocol import Answer, Command

from . import polling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps, Vote

KEEPS: Final = "noeviction"


class Eviction(NamedTuple):
    """What a node does when its memory is full.

    Attributes:
        policy: its ``maxmemory-policy``.
        limit: bytes that it may use; 0: as much as there is, and then it evicts nothing.
        evicted: keys that it has deleted to make room, since it was started.
    """

    policy: str = KEEPS
    limit: int = 0
    evicted: int = 0

    @property
    def threatens(self) -> bool:
        """Whether the node may delete a lock that is held."""
        return self.limit > 0 and self.policy != KEEPS


def advice(told: Sequence[Eviction | None]) -> str:
    """What to do about the nodes that may delete a lock, in a sentence; or ""."""
    threats = [each for each in told if each and each.threatens]
    if not threats:
        return ""
    policies = ", ".join(sorted({each.policy for each in threats}))
    gone = sum(each.evicted for each in threats)
    return (
        f"{policies}: with this maxmemory-policy a full node deletes locks that are held "
        f"(keys deleted since its start: {gone}); set noeviction"
    )


def ask(backend: Backend, to: frozenset[int]) -> Steps[tuple[Eviction | None, ...]]:
    """Ask these nodes; None for every node that did not tell."""
    votes = yield polling.question(backend, Command.MEMORY, to=to)
    return tuple(map(_told, votes))


def _told(vote: Vote) -> Eviction | None:
    if vote.answer is not Answer.YES:
        return None
    limit, policy, evicted = vote.data
    if not (isinstance(limit, int) and isinstance(policy, bytes) and isinstance(evicted, int)):
        return None
    return Eviction(policy.decode("ascii", "replace"), limit, evicted)
