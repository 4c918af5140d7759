"""Renew many leases in one request: which leases go together, and what the outcomes are.

A lease whose extension has a majority may still need healing, which is a request for it alone.
After the restart of a node every lease does. So heals of such leases wait until no renewal does,
else the last leases would be renewed too late. One whose majority depends on the heal is healed at
once.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Final

from django_redlock.core import hold
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.interruption import first

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.hold import Outcome
    from django_redlock.core.protocol import Steps

    from .lease import Lease
    from .schedule import Reference

logger = logging.getLogger("django_redlock")

# A request must fit into what a fresh connection takes at once, and keep no node busy for long.
MOST_LEASES: Final = 128
MOST_BYTES: Final = 16_384


def batches(leases: Sequence[Lease]) -> Iterator[tuple[Backend, list[Reference]]]:
    """Yield the leases by backend, each time as many as one request carries."""
    groups: dict[int, tuple[Backend, list[Lease]]] = {}
    for lease in leases:
        backend = lease.backend
        groups.setdefault(id(backend), (backend, []))[1].append(lease)
    for backend, group in groups.values():
        batch: list[Reference] = []
        size = 0
        for lease in group:
            more = _bytes(lease)
            if batch and (len(batch) >= MOST_LEASES or size + more > MOST_BYTES):
                yield backend, batch
                batch, size = [], 0
            batch.append(weakref.ref(lease))
            size += more
        yield backend, batch


def _bytes(lease: Lease) -> int:
    """Estimate the bytes of a lease in a request: each name also as a key, and RESP's framing."""
    return 64 + sum(2 * len(key.encode()) + 16 for key in lease.grant.target.keys)


class RenewalBatch:
    """One request that renews many leases of a backend, and what heals those that need it.

    Attributes:
        leases: those that are still held, and not by a block that is gone.
        asked: when the request began, on the clock of the deadline.
        lost: the leases whose holders must be told of a loss, as far as outcomes are known.
        wounded: those that were prolonged and need healing.
    """

    def __init__(self, backend: Backend, batch: Sequence[Reference]) -> None:
        leases = (reference() for reference in batch)
        self.leases = [each for each in leases if each is not None and each.held and not each.torn]
        self.backend = backend
        self.lost: list[Lease] = []
        self.wounded = Wounded()
        self.asked = backend.policy.clock()
        self._open = set(range(len(self.leases)))  # those whose outcome is not known

    def steps(self) -> Steps[list[Outcome]]:
        """Return the steps that extend and heal the leases; each lease is told its outcome."""
        leases = [lease.holding for lease in self.leases]
        ttls = [lease.grant.ttl for lease in leases]
        return hold.extend_many(self.backend.policy, leases, ttls, self._told, self._heal_later)

    def fail(self) -> None:
        """Report that the request failed; call it in the handler of that error."""
        logger.exception("renewing %d leases of %r failed", len(self._open), self.backend.alias)  # noqa: LOG004
        reason = because(ReasonCode.NOT_ASKED)
        for i in tuple(self._open):
            self._told(i, NodesUnavailable(reason, name=self.leases[i].name))

    def _told(self, i: int, outcome: Outcome) -> None:
        self._open.discard(i)
        lease = self.leases[i]
        if lease.renewed(outcome, self.asked):
            self.lost.append(lease)

    def _heal_later(self, i: int, places: frozenset[int]) -> None:
        self.wounded[weakref.ref(self.leases[i])] = places


class Healing(RenewalBatch):
    """The request that heals one lease, which was prolonged; it has no outcome."""

    def __init__(self, lease: Lease, places: frozenset[int]) -> None:
        super().__init__(lease.backend, ())
        self.lease, self._places = lease, places

    def steps(self) -> Steps[list[Outcome]]:
        """Return the steps that heal the lease."""
        lease = self.lease
        yield from hold.heal(self.backend.policy, lease.holding, self._places, lease.grant.ttl)
        return []

    def fail(self) -> None:
        """Report that the request failed; call it in the handler of that error."""
        logger.exception("healing %r failed", self.lease.name)  # noqa: LOG004


class Wounded(dict["Reference", frozenset[int]]):
    """Leases of a group that need healing, each with the nodes on which its names are free.

    A lease that waits here when it is renewed again is there once, and keeps its turn.
    """

    def next_one(self) -> Healing | None:
        """Take out the lease that has waited for the longest; None: no lease waits any more."""
        while (reference := first(self)) is not None:
            places, lease = self.pop(reference, None), reference()
            if places and lease is not None and lease.held and not lease.torn:
                return Healing(lease, places)
        return None
