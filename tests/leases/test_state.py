"""What a lease decides: scripted outcomes and a clock that the test moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core.errors import LeaseLost, NodesUnavailable
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Grant, Vote
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import EventKind
from django_redlock.leases import lease as leases
from django_redlock.leases.lease import RENEWALS, TRIES, Lease, Phase
from django_redlock.nodes.memory import MemoryNodes
from tests.simulation.mutants import Patch, with_edits

START, TTL = 100.0, 12.0
YES, NO, UNKNOWN = Answer.YES, Answer.NO, Answer.UNKNOWN


class Held:
    """A lease of three nodes that began at ``START``, and the clock by which it lives."""

    def __init__(self, *, renew: bool = True, max_hold: float | None = None) -> None:
        self.now = START
        self.policy = Policy(size=3, clock=lambda: self.now)
        self.grant = Grant(
            self.policy.target(["a"]),
            "f" * 32,
            7,
            START + self.policy.validity(TTL),
            START,
            TTL,
            self.policy.everyone,
            votes(YES, YES, YES),
        )
        backend = Backend("default", MemoryNodes([]), self.policy)
        self.lease = Lease(backend, self.grant, renew=renew, max_hold=max_hold)

    def until(self, deadline: float) -> Grant:
        """The outcome of an extension that succeeded."""
        return self.grant._replace(deadline=deadline)

    def pass_deadline(self) -> None:
        """Let the time of the lease run out."""
        self.now = self.lease.grant.deadline


def votes(*answers: Answer, waiters: int = 0) -> list[Vote]:
    """Votes of nodes that had so many waiters."""
    return [Vote(f"node{i}", answer, woken=waiters) for i, answer in enumerate(answers)]


def denied(*answers: Answer) -> LeaseLost:
    """The outcome of an extension to which the nodes gave these votes."""
    return LeaseLost(because(ReasonCode.DENIED), name="a", votes=votes(*answers))


def unknown(*answers: Answer) -> NodesUnavailable:
    """The outcome of an extension that has no majority."""
    reason = because(ReasonCode.NOT_EXTENDED, votes=len(answers), size=3)
    return NodesUnavailable(reason, name="a", votes=votes(*answers))


# -- held -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("renew", "max_hold", "renewed"),
    [(False, None, False), (True, None, True), (True, TTL, True), (True, TTL / RENEWALS, False)],
)
def test_a_renewal_is_due_unless_it_is_not_wanted_or_max_hold_is_over(
    renew: bool, max_hold: float | None, renewed: bool
) -> None:
    """A renewal that would begin at ``max_hold`` or after it does not begin."""
    lease = Held(renew=renew, max_hold=max_hold).lease
    assert (lease.renew_at < math.inf) is renewed


# -- renewed, extended ----------------------------------------------------------------------------


def test_a_renewal_moves_the_deadline() -> None:
    """The next one is due a third of a ttl after this one was asked."""
    held = Held()
    held.now += 5
    assert held.lease.take_renewal(held.until(START + 16), asked=START + 4) is EventKind.EXTENDED
    assert held.lease.grant.deadline == START + 16
    assert held.lease.remaining() == 11
    assert held.lease.renew_at == START + 4 + TTL / RENEWALS


def test_a_deadline_never_moves_back() -> None:
    """Of two extensions that overlap, the later deadline counts, in whatever order they end."""
    held = Held()
    held.lease.take_extension(held.until(START + 30))
    held.lease.take_extension(held.until(START + 20))
    assert held.lease.grant.deadline == START + 30


def test_an_unknown_renewal_is_told_once_and_tried_again_soon() -> None:
    """The lease lasts until its deadline; a renewal that succeeds ends the silence."""
    held = Held()
    assert held.lease.take_renewal(unknown(YES), asked=START + 4) is EventKind.UNKNOWN
    assert held.lease.renew_at == START + 4 + TTL / TRIES
    assert held.lease.take_renewal(unknown(YES), asked=START + 5) is None
    assert held.lease.held
    assert held.lease.take_renewal(held.until(START + 18), asked=START + 6) is EventKind.EXTENDED
    assert held.lease.take_renewal(unknown(), asked=START + 10) is EventKind.UNKNOWN


def test_an_unknown_renewal_is_not_told_when_an_extension_succeeded_since() -> None:
    """The extension has given the lease what the renewal would have."""
    held = Held()
    held.lease.take_extension(held.until(START + 30))
    assert held.lease.take_renewal(unknown(), asked=START + 4) is None


def test_a_majority_that_denies_ends_the_lease() -> None:
    """A minority does not."""
    held = Held()
    assert held.lease.take_renewal(denied(NO, YES, UNKNOWN), asked=START + 4) is None
    assert held.lease.remaining() > 0
    assert held.lease.take_renewal(denied(NO, NO, UNKNOWN), asked=START + 5) is EventKind.LOST
    assert not held.lease.held
    assert held.lease.remaining() == 0
    assert held.lease.ending().code == ReasonCode.LOST
    assert held.lease.loss().code == ReasonCode.DENIED


def test_a_lease_that_is_over_is_not_revived() -> None:
    """Neither by a renewal that succeeded too late to be heard, nor after the loss was noticed."""
    held = Held()
    held.pass_deadline()
    later = held.until(START + 60)
    assert held.lease.take_renewal(later, asked=START + 4) is EventKind.LOST
    assert held.lease.take_extension(later) is None
    assert held.lease.remaining() == 0
    assert held.lease.loss().code == ReasonCode.RAN_OUT


# -- lost -----------------------------------------------------------------------------------------


def test_a_lease_runs_out_at_its_deadline_and_once() -> None:
    """Not before it, and not where a renewal has moved it."""
    held = Held()
    held.now = held.lease.grant.deadline - 0.001
    assert not held.lease.run_out()
    held.lease.take_extension(held.until(START + 20))
    held.now = START + 19.999
    assert not held.lease.run_out()
    held.pass_deadline()
    assert held.lease.run_out()
    assert not held.lease.run_out()
    assert held.lease.lost


def test_a_lease_that_has_run_out_unnoticed_gives_nothing_away() -> None:
    """By its clock, as ``ensure``: its name may be somebody else's."""
    held = Held()
    held.pass_deadline()
    with pytest.raises(LeaseLost):
        held.lease.handle()


def test_an_end_is_told_once() -> None:
    """Though a lease may be lost while it is released."""
    held = Held()
    assert held.lease.tell_once()
    assert not held.lease.tell_once()


# -- released, given away -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "code"),
    [(Phase.RELEASED, ReasonCode.RELEASED), (Phase.GIVEN, ReasonCode.GIVEN_AWAY)],
)
def test_an_end_is_final(phase: Phase, code: ReasonCode) -> None:
    """What the holder let go is not let go again, prolonged, or lost by its deadline."""
    held = Held()
    assert held.lease.end(phase)
    assert held.lease.remaining() == 0
    assert held.lease.ending().code == code
    assert not any(held.lease.end(other) for other in (Phase.RELEASED, Phase.GIVEN))
    assert held.lease.phase is phase
    assert held.lease.take_renewal(held.until(START + 60), asked=START + 4) is None
    assert held.lease.take_renewal(unknown(), asked=START + 4) is None
    assert held.lease.take_extension(denied(NO, NO, NO)) is None
    held.pass_deadline()
    assert not held.lease.run_out()
    assert not held.lease.lost


def test_a_release_may_find_a_loss_but_a_lease_that_was_given_away_is_nobodys_loss() -> None:
    """The nodes tell a release that the key was gone; the adopter's key is not the giver's."""
    held, given = Held(), Held()
    held.lease.end(Phase.RELEASED)
    given.lease.end(Phase.GIVEN)
    assert held.lease.lose()
    assert not held.lease.lose()
    assert not given.lease.lose()
    assert held.lease.ending().code == ReasonCode.LOST


@pytest.mark.parametrize(
    ("had", "heard", "proof"),
    [
        (votes(YES, YES, YES), votes(NO, NO, NO), True),
        (votes(YES, YES, YES), votes(NO, NO, YES), True),
        (votes(YES, YES, YES), votes(NO, YES, YES), False),  # a minority
        (votes(YES, YES, YES), votes(NO, NO, UNKNOWN), True),  # no waiter that it could wake
        (votes(YES, YES, YES), votes(NO, NO, UNKNOWN, waiters=1), False),
        (votes(YES, YES, YES), votes(NO, NO, YES, waiters=1), False),  # that key woke a waiter
        (votes(NO, YES, YES), votes(NO, NO, NO, waiters=1), False),  # node 0 woke one, without it
        (votes(YES, YES, YES), votes(NO, NO, NO, waiters=1), True),  # gone before it was woken
    ],
)
def test_a_release_proves_a_loss_unless_a_woken_waiter_explains_it(
    had: Sequence[Vote], heard: Sequence[Vote], proof: bool
) -> None:
    """A waiter that the release woke at one node may have taken the others before it came."""
    held = Held()
    held.lease.grant = held.grant._replace(votes=had)
    assert held.lease.denied(heard) is proof


# -- broken variants ------------------------------------------------------------------------------


def reviving(real: Any) -> Any:
    """Take any new deadline, also when the old one is over."""

    def take_extension(self: Lease, outcome: Any) -> EventKind | None:
        if not isinstance(outcome, Grant):
            return real(self, outcome)  # type: ignore[no-any-return]
        self._change(deadline=outcome.deadline)
        return EventKind.EXTENDED

    return take_extension


def moving_back(self: Lease, *, deadline: float) -> None:
    """Take the deadline of the last reply."""
    self.grant = self.grant._replace(deadline=deadline)


def telling_again(real: Any) -> Any:
    """Forget that the holder knows that its renewal failed."""

    def become_unknown(self: Lease, asked: float) -> bool:
        is_news: bool = real(self, asked)
        self._unknown = False
        return is_news

    return become_unknown


def ending_again(self: Lease, phase: Phase) -> bool:
    """End a lease, however it has ended."""
    self._claims[leases.END] = [phase]
    return True


def losing_anyway(self: Lease) -> bool:
    """Lose a lease, to whomever it was given away."""
    return self._claim(leases.LOSS)


@pytest.mark.parametrize(
    ("edit", "proof"),
    [
        (
            Patch(Lease, "take_extension", reviving),
            test_a_lease_that_is_over_is_not_revived,
        ),
        (
            Patch(Lease, "_change", lambda _: moving_back),
            test_a_deadline_never_moves_back,
        ),
        (
            Patch(leases, "majority_denies", lambda real: lambda votes, _: real(votes, 1)),
            test_a_majority_that_denies_ends_the_lease,
        ),
        (
            Patch(Lease, "_become_unknown", telling_again),
            test_an_unknown_renewal_is_told_once_and_tried_again_soon,
        ),
        (
            Patch(Lease, "lose", lambda _: losing_anyway),
            test_a_release_may_find_a_loss_but_a_lease_that_was_given_away_is_nobodys_loss,
        ),
        (
            Patch(Lease, "end", lambda _: ending_again),
            lambda: test_an_end_is_final(Phase.GIVEN, ReasonCode.GIVEN_AWAY),
        ),
        (
            Patch(Lease, "run_out", lambda _: lambda self: self.remaining() <= 0 and self.lose()),
            lambda: test_an_end_is_final(Phase.RELEASED, ReasonCode.RELEASED),
        ),
    ],
    ids=lambda each: each.name if isinstance(each, Patch) else "",
)
def test_a_broken_rule_is_noticed(edit: Patch, proof: Callable[[], None]) -> None:
    """Each of these conversations fails where its rule is broken."""
    with with_edits(edit), pytest.raises(AssertionError):
        proof()
