"""A grant that one generator extends, as a lease does that nobody else knows."""

from __future__ import annotations

from django_redlock.core import hold
from django_redlock.core.hold import Outcome
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Grant, Steps


class Alone:
    """A grant that no other thread can end: the plainest ``hold.Holding``."""

    def __init__(self, policy: Policy, grant: Grant) -> None:
        self._policy = policy
        self.grant = grant

    def touch(self, places: frozenset[int]) -> Grant | None:
        """Note that these nodes may have its keys from now on; see ``hold.Holding``."""
        self.grant = self.grant._replace(touched=self.grant.touched | places)
        return self.grant if self.remaining() > 0 else None

    def remaining(self) -> float:
        """Return the seconds until its deadline."""
        return self.grant.deadline - self._policy.clock()

    def extended(self, _: int, outcome: Outcome) -> None:
        """Take in the outcome of an extension, before it is healed."""
        if isinstance(outcome, Grant):
            self.grant = outcome


def extend(policy: Policy, grant: Grant, *, ttl: float) -> Steps[Grant]:
    """Prolong a lease to ``ttl`` seconds from now; never shorten it, never revive it.

    Raises:
        LeaseLost: it is over, or a majority does not have it any more.
        NodesUnavailable: unknown; the lease lasts until its old deadline.
    """
    lease = Alone(policy, grant)
    (outcome,) = yield from hold.extend_many(policy, (lease,), (ttl,), lease.extended)
    if isinstance(outcome, Grant):
        return outcome
    raise outcome
