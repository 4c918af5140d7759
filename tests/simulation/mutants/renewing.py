"""Broken variants of renewing and of telling of a loss."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from django_redlock.core import hold
from django_redlock.core.hold import Outcome
from django_redlock.core.protocol import Grant, Steps
from django_redlock.events import EventKind
from django_redlock.leases import lease as leases
from django_redlock.leases.lease import Lease, Phase
from django_redlock.leases.renewal import Due, Found, RenewalSchedule

from .edits import mutant


def losing_with_any_failure(real: Callable[..., Any]) -> Callable[..., Any]:
    """Lose the lease with any extension that failed."""

    def take_extension(self: Lease, outcome: Outcome) -> EventKind | None:
        told = real(self, outcome)
        if self.held and not isinstance(outcome, Grant):
            return EventKind.LOST if self.lose() else None
        return told  # type: ignore[no-any-return]

    return take_extension


def forgetting_who_was_put_off(real: Callable[..., Any]) -> Callable[..., Any]:
    """Watch no lease any more that was looked at before there was something to do."""

    def take(self: RenewalSchedule, now: float) -> tuple[list[Lease], list[Lease]]:
        looked = [each for each, entry in self._entries.items() if entry.not_before <= now]
        over, due = real(self, now)
        for reference in looked:
            if reference() not in due:
                self._entries.pop(reference, None)
        return over, due

    return take


def adding_silently(real: Callable[..., float]) -> Callable[..., float]:
    """Add a lease, and do not note its time."""

    def add(self: RenewalSchedule, lease: Lease) -> float:
        at = real(self, lease)
        reference = weakref.ref(lease)
        self._entries[reference] = self._entries[reference]._replace(at=math.inf)
        return at

    return add


def looking_at_the_first_deadline(real: Callable[..., Any]) -> Callable[..., Any]:
    """Take the deadline of the grant for that of the lease."""

    def look(self: RenewalSchedule, now: float) -> Iterator[Found]:
        for found in real(self, now):
            grant = found.lease.grant
            yield found._replace(deadline=grant.since + grant.ttl)

    return look


def renewing_once(real: Callable[..., Any]) -> Callable[..., Any]:
    """Give a lease that was renewed no next turn."""

    def take_renewal(self: Lease, outcome: Outcome, asked: float) -> EventKind | None:
        told: EventKind | None = real(self, outcome, asked)
        if isinstance(outcome, Grant):
            self._renew_at = math.inf
        return told

    return take_renewal


def unwatched_while_renewed(real: Callable[..., Due]) -> Callable[..., Due]:
    """Give a lease that is being renewed no time."""

    def due_of(self: RenewalSchedule, lease: Lease, *, waiting: bool = True) -> Due:
        if waiting or math.isinf(lease.renew_at):
            return real(self, lease, waiting=waiting)
        return Due(math.inf, math.inf, waiting=False, kept=lease.grant)

    return due_of


def ending_last(real: Callable[..., Steps[None]]) -> Callable[..., Steps[None]]:
    """End the lease when its release is answered."""

    def releasing(self: Lease) -> Steps[None]:
        if self.phase is Phase.HELD:
            yield from hold.release(self.backend.policy, self.grant)
            self.end(Phase.RELEASED)
        else:
            yield from real(self)

    return releasing


RENEWAL: Final = (
    mutant(
        "unknown-is-lost",
        "A renewal that failed ends the lease.",
        "cut",
        10,
        (Lease, "take_extension", losing_with_any_failure),
    ),
    mutant(
        "minority-is-lost",
        "One node's denial ends the lease.",
        "forgotten",
        10,
        (leases, "majority_denies", lambda real: lambda votes, _: real(votes, 1)),
    ),
    mutant(
        "forgets-deadlines",
        "A deadline that was put off once is watched no more.",
        "cut",
        10,
        (RenewalSchedule, "take", forgetting_who_was_put_off),
    ),
    mutant(
        "forgets-the-young",
        "Nobody wakes for a new lease.",
        "kept",
        10,
        (RenewalSchedule, "add", adding_silently),
    ),
    mutant(
        "trusts-the-first-deadline",
        "A loss is told at the first deadline, whatever was renewed since.",
        "kept",
        10,
        (RenewalSchedule, "_look", looking_at_the_first_deadline),
        (Lease, "run_out", lambda _: lambda self: self.held and self.lose()),
    ),
    mutant(
        "renews-once",
        "What was renewed has no next turn.",
        "kept",
        10,
        (Lease, "take_renewal", renewing_once),
    ),
    mutant(
        "waits-for-the-nodes",
        "The time of a lease that is being renewed is not watched.",
        "cut",
        10,
        (RenewalSchedule, "_due_of", unwatched_while_renewed),
    ),
    mutant(
        "forgets-max-hold",
        "A lease is renewed although its `max_hold` is over.",
        "kept",
        20,
        (Lease, "renew_at", lambda _: property(lambda self: self._renew_at)),
    ),
    mutant(
        "believes-while-releasing",
        "The holder believes until its release is answered.",
        "cut",
        80,
        (Lease, "_releasing", ending_last),
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
        (hold, "_is_over", lambda _: lambda lease: False),
    ),
)
