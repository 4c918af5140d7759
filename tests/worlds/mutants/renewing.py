"""Broken variants of renewing and of telling of a loss."""

from __future__ import annotations

from typing import Final

from django_redlock import algorithm, lease
from django_redlock.lease import Lease
from django_redlock.rota import Rota

from .edits import mutant

RENEWAL: Final = (
    mutant(
        "unknown-is-lost",
        "A renewal that failed ends the lease.",
        "cut",
        10,
        (Lease, "_take_in", "return denied and", "return"),
    ),
    mutant(
        "minority-is-lost",
        "One node's denial ends the lease.",
        "forgotten",
        10,
        (lease, "majority_denies", ">= policy.majority", ">= 1"),
    ),
    mutant(
        "forgets-deadlines",
        "A deadline that was put off once is watched no more.",
        "cut",
        10,
        (Rota, "_take_over", "moved.append(entry._replace(when=deadline))", "pass"),
    ),
    mutant(
        "trusts-the-first-deadline",
        "A loss is told at the first deadline, whatever was renewed since.",
        "kept",
        10,
        (Rota, "_take_over", "deadline = lease.tenancy.deadline +", "deadline = entry.when + 0 *"),
        (Lease, "over", "self.remaining() <= 0 and ", ""),
    ),
    mutant(
        "renews-once",
        "What was renewed has no next turn.",
        "kept",
        10,
        (Lease, "renewed", "asked + self._grant.ttl / RENEWALS", "math.inf"),
    ),
    mutant(
        "waits-for-the-nodes",
        "The time of a lease that is being renewed is not watched.",
        "cut",
        10,
        (Rota, "_take_over", "or not lease.held:", "or not lease.held or lease.renew_at <= now:"),
    ),
    mutant(
        "renewal-counts-from-the-answer",
        "A renewal counts from when the answers are there.",
        "cut-and-paused",
        200,
        (algorithm, "extend_many", "deadline, start + policy", "deadline, now + policy"),
    ),
    mutant(
        "renews-by-one",
        "One node is enough to renew.",
        "cut",
        30,
        (algorithm, "extend_many", "counts[place] >= policy.majority", "counts[place] >= 1"),
    ),
)
