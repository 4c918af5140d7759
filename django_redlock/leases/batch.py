"""Renew many leases in one request: which leases go together, and what the outcomes are."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Final

from django_redlock.core import hold
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.reasons import ReasonCode, because

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
    """One request that renews many leases of a backend, and its outcomes.

    Attributes:
        leases: those that are still held.
        asked: when the request began, on the clock of the deadline.
        lost: the leases whose holders must be told of a loss, as far as ``settle`` has come.
    """

    def __init__(self, backend: Backend, batch: Sequence[Reference]) -> None:
        leases = (reference() for reference in batch)
        self.leases = [lease for lease in leases if lease is not None and lease.held]
        self.backend = backend
        self.lost: list[Lease] = []
        self.asked = backend.policy.clock()

    def steps(self) -> Steps[list[Outcome]]:
        """Return the steps that extend the leases."""
        grants = [lease.grant for lease in self.leases]
        return hold.extend_many(self.backend.policy, grants, [grant.ttl for grant in grants])

    def unknown(self) -> list[Outcome]:
        """Return the outcomes when the request failed; call it in the handler of that error."""
        logger.exception("renewing %d leases of %r failed", len(self.leases), self.backend.alias)  # noqa: LOG004
        reason = because(ReasonCode.NOT_ASKED)
        return [NodesUnavailable(reason, name=lease.name) for lease in self.leases]

    def settle(self, outcomes: Sequence[Outcome]) -> list[Lease]:
        """Report each outcome to its lease; return those whose holders must be told of a loss."""
        for lease, outcome in zip(self.leases, outcomes, strict=True):
            if lease.renewed(outcome, self.asked):
                self.lost.append(lease)
        return self.lost
