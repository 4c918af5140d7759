"""Find the nodes that delete keys to make room: a lock that is held may be among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.commands import Memory
from django_redlock.core.protocol import Answer
from django_redlock.core.quorum import all_heard
from django_redlock.core.reasons import Reason, ReasonCode, because

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps, Vote

KEEPS: Final = "noeviction"


class Eviction(NamedTuple):
    """What a node does when its memory is full.

    Attributes:
        policy: its ``maxmemory-policy``.
        limit: bytes that it may use; 0: no limit, so that it evicts nothing.
        evicted: keys that it has deleted to make room, since it was started.
    """

    policy: str = KEEPS
    limit: int = 0
    evicted: int = 0

    @property
    def threatens(self) -> bool:
        """Whether the node may delete a lock that is held."""
        return self.limit > 0 and self.policy != KEEPS


def threat(told: Sequence[Eviction | None]) -> Reason | None:
    """Return the reason that names the evicting nodes' policies; None if there is no such node."""
    threats = [each for each in told if each and each.threatens]
    if not threats:
        return None
    policies = ", ".join(sorted({each.policy for each in threats}))
    return because(ReasonCode.EVICTS, policy=policies, evicted=sum(e.evicted for e in threats))


def ask(backend: Backend, to: frozenset[int]) -> Steps[tuple[Eviction | None, ...]]:
    """Ask these nodes what they do when their memory is full; None: a node did not tell."""
    policy = backend.policy
    votes = yield Memory(policy.nonce(), all_heard, f"{policy.prefix}held", to=to)
    return tuple(map(_told, votes))


def _told(vote: Vote) -> Eviction | None:
    if vote.answer is not Answer.YES:
        return None
    limit, policy, evicted = vote.result
    return Eviction(policy.decode("ascii", "replace"), limit, evicted)
