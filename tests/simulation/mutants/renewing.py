"""Broken variants of renewing and of telling of a loss."""

from __future__ import annotations

from typing import Final

from django_redlock.core import hold
from django_redlock.leases import lease as leases
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import RenewalSchedule

from .edits import mutant

ENDS_FIRST: Final = """\
        if self.end(Phase.RELEASED):
            votes = yield from self._give_back()
"""
ENDS_LAST: Final = """\
        if self.phase is Phase.HELD:
            votes = yield from self._give_back()
            self.end(Phase.RELEASED)
"""

RENEWAL: Final = (
    mutant(
        "unknown-is-lost",
        "A renewal that failed ends the lease.",
        "cut",
        10,
        (Lease, "extended", "denied and self.lose()", "self.lose()"),
    ),
    mutant(
        "minority-is-lost",
        "One node's denial ends the lease.",
        "forgotten",
        10,
        (leases, "majority_denies", ">= majority", ">= 1"),
    ),
    mutant(
        "forgets-deadlines",
        "A deadline that was put off once is watched no more.",
        "cut",
        10,
        (
            RenewalSchedule,
            "take",
            "each.chunk.put(each.lease, each.place)",
            "each.chunk.places.pop(weakref.ref(each.lease))",
        ),
    ),
    mutant(
        "forgets-the-young",
        "Nobody wakes for a new lease.",
        "kept",
        10,
        (RenewalSchedule, "add", "chunk.note(place)", "pass"),
    ),
    mutant(
        "trusts-the-first-deadline",
        "A loss is told at the first deadline, whatever was renewed since.",
        "kept",
        10,
        (RenewalSchedule, "_look", "lease.grant.deadline", "lease.grant.since + lease.grant.ttl"),
        (Lease, "run_out", "self.remaining() <= 0 and ", ""),
    ),
    mutant(
        "renews-once",
        "What was renewed has no next turn.",
        "kept",
        10,
        (Lease, "renewed", "asked + self.grant.ttl / RENEWALS", "math.inf"),
    ),
    mutant(
        "waits-for-the-nodes",
        "The time of a lease that is being renewed is not watched.",
        "cut",
        10,
        (
            RenewalSchedule,
            "take",
            "self._place(each.lease, renews=False)",
            "(math.inf, math.inf, False, None)",
        ),
    ),
    mutant(
        "forgets-max-hold",
        "A lease is renewed although its `max_hold` is over.",
        "kept",
        20,
        (
            Lease,
            "renew_at",
            "self._renew_at < self.renew_until and ",
            "",
        ),
    ),
    mutant(
        "believes-while-releasing",
        "The holder believes until its release is answered.",
        "cut",
        80,
        (Lease, "_releasing", ENDS_FIRST, ENDS_LAST),
    ),
    mutant(
        "renewal-counts-from-the-answer",
        "A renewal counts from when the answers are there.",
        "cut-and-paused",
        200,
        (
            hold,
            "_prolonged",
            lambda real: lambda policy, lease, _, ttl: real(policy, lease, policy.clock(), ttl),
        ),
    ),
    mutant(
        "renews-by-one",
        "One node is enough to renew.",
        "cut",
        30,
        (hold, "_kept", lambda real: lambda *votes: [99 * bool(n) for n in real(*votes)]),
    ),
    mutant(
        "never-heals",
        "A renewal puts no lease back on a node that has lost it.",
        "rolling",
        20,
        (hold, "_free", lambda _: lambda votes: {}),
    ),
    mutant(
        "heals-what-is-over",
        "A heal is not rolled back where the lease has ended meanwhile.",
        "cut-and-paused",
        1500,
        (Lease, "has", "return self.remaining() > 0 and", "return True or"),
    ),
)
