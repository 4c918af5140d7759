"""Decide a lease's life: held, renewed, lost, released or given away. No I/O.

A holder relies on its lease until the deadline, on a clock that cannot be set, or until the lease
is released, given away or lost, whichever is first. ``end`` comes *before* anything is sent: a
holder that still relies on a lease while its key is already gone would be a second holder.

A lease that is over is never revived, and it is lost at most once. Time comes from the clock of
the policy; ``Lease`` reports what the nodes replied and tells the events that are decided here.
Threads share a state: what must not come apart is decided under its lock, which is written in C,
so that a signal handler's exception cannot leave it locked.
"""

from __future__ import annotations

import base64
import enum
import json
import math
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.completion import split
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.names import check_names
from django_redlock.core.protocol import NONCE, Answer, Grant
from django_redlock.core.quorum import majority_denies
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.core.hold import Outcome
    from django_redlock.core.policy import Policy
    from django_redlock.core.protocol import Vote
    from django_redlock.core.reasons import Reason

RENEWALS: Final = 3  # in each ttl …
TRIES: Final = 20  # … or so many, while no majority replies


class Phase(enum.Enum):
    """What the holder did with its lease; it may be lost besides."""

    HELD = "held"
    RELEASED = "released"
    GIVEN = "given away"


HELD: Final = Phase.HELD  # an enum's member costs five times a name
ENDINGS: Final = {  # why a lease in this phase is over
    Phase.HELD: ReasonCode.TIME_OVER,
    Phase.RELEASED: ReasonCode.RELEASED,
    Phase.GIVEN: ReasonCode.GIVEN_AWAY,
}


class Handle(NamedTuple):
    """A lease on its way to another process: its nonce, and what that is for."""

    alias: str
    nonce: str
    names: tuple[str, ...]

    def encode(self) -> str:
        """Return the handle as one line of text without spaces."""
        text = json.dumps([1, *self], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Read the handle in ``text``.

        Raises:
            ValueError: it is not a handle; the error does not quote it, for it may be a secret.
        """
        try:
            padded = text.encode() + b"=" * (-len(text) % 4)
            version, alias, nonce, names = json.loads(base64.urlsafe_b64decode(padded))
            if version == 1 and isinstance(alias, str) and NONCE.fullmatch(nonce):
                return cls(alias, nonce, check_names(names))
        except (AttributeError, RecursionError, TypeError, ValueError):
            pass
        msg = "this is not a handle of a lease"
        raise ValueError(msg)


class LeaseState:
    """The state of one lease; safe to use from several threads.

    Attributes:
        grant: what the nodes granted; its deadline moves.
        phase: what the holder did with it.
        lost: whether it ended against the holder's will, as far as that was noticed.
        told: whether its end was told; nothing is told afterwards.
        renew_until: when, on the policy's clock, renewals end; infinite: never.
        keeps_private: whether a release frees the names without the private ones.
    """

    __slots__ = (
        "_changing",
        "_policy",
        "_renew_at",
        "_unknown",
        "grant",
        "keeps_private",
        "lost",
        "phase",
        "renew_until",
        "told",
    )

    def __init__(
        self, policy: Policy, grant: Grant, *, renew: bool = False, max_hold: float | None = None
    ) -> None:
        self._policy = policy
        self.grant = grant
        self.phase = HELD
        self.lost = False
        self.told = False
        self.keeps_private = False
        self.renew_until = math.inf if max_hold is None else grant.since + max_hold
        self._renew_at = grant.since + grant.ttl / RENEWALS if renew else math.inf
        self._unknown = False  # since its renewal failed
        self._changing = threading.RLock()  # re-entrant: a signal handler may lock, too

    @property
    def held(self) -> bool:
        """Whether it is neither released, given away nor known to be lost."""
        return self.phase is HELD and not self.lost

    def remaining(self) -> float:
        """Return the seconds until the holder must have stopped; 0 or less when over."""
        if self.phase is not HELD or self.lost:
            return 0.0
        return self.grant.deadline - self._policy.clock()

    @property
    def renew_at(self) -> float:
        """When, on the policy's clock, to renew it next; infinite: never."""
        return self._renew_at if self._renew_at < self.renew_until else math.inf

    @property
    def freed(self) -> Grant:
        """What a release gives back."""
        return split(self.grant)[1] if self.keeps_private else self.grant

    def ending(self) -> Reason:
        """Return why the lease is over."""
        return because(ReasonCode.LOST if self.lost else ENDINGS[self.phase])

    # -- prolonging -----------------------------------------------------------------------------

    def renewed(self, outcome: Outcome, asked: float) -> EventKind | None:
        """Take in the outcome of a renewal that began at ``asked``; return what is to be told.

        An unknown outcome is told once, and the renewal is tried again before the deadline.
        """
        if isinstance(outcome, Grant):
            self._renew_at = asked + self.grant.ttl / RENEWALS
            return self.extended(outcome)
        self._renew_at = asked + self.grant.ttl / TRIES
        told = self.extended(outcome)
        if isinstance(outcome, NodesUnavailable) and self._become_unknown(asked):
            return EventKind.UNKNOWN
        return told

    def extended(self, outcome: Outcome) -> EventKind | None:
        """Take in the outcome of an extension; return what is to be told: EXTENDED, LOST or None.

        Other extensions may have ended in the meantime: the latest deadline counts, and one
        message that came too late does not prove a loss. A lease that is over is not revived:
        another thread may have seen that it is over.
        """
        with self._changing:
            if not self.held:
                return None
            if self.remaining() <= 0:
                return self._lost_now()
            if not isinstance(outcome, Grant):
                denied = majority_denies(outcome.votes, self._policy.majority)
                return self._lost_now() if denied else None
            while True:
                before = self.grant
                later = before._replace(deadline=max(outcome.deadline, before.deadline))
                if self.grant is before:  # no call from here on: a handler may extend it, too
                    self.grant = later
                    break
            self._unknown = False
        return None if self.told else EventKind.EXTENDED

    def touch(self, places: frozenset[int]) -> Grant | None:
        """Note that these nodes may have its keys from now on; see ``core.hold.Holding``."""
        with self._changing:
            if self.remaining() <= 0:
                return None
            while True:
                before = self.grant
                more = before._replace(touched=before.touched | places)
                if self.grant is before:  # as in ``extended``
                    self.grant = more
                    return self.freed

    def has(self, grant: Grant) -> bool:
        """Tell whether time is left, and a release would free what ``grant`` has."""
        return self.remaining() > 0 and self.freed.target == grant.target

    def _become_unknown(self, asked: float) -> bool:
        """Note that a renewal failed, unless that is noted, or another extension succeeded."""
        with self._changing:
            grant = self.grant
            kept = grant.deadline >= asked + self._policy.validity(grant.ttl)
            if self._unknown or self.told or kept or not self.held:
                return False
            self._unknown = True
            return True

    # -- ending ---------------------------------------------------------------------------------

    def end(self, phase: Phase) -> bool:
        """Leave the phase HELD for ``phase``; return False if the lease has left it already."""
        with self._changing:
            if self.phase is not HELD:
                return False
            self.phase = phase
            return True

    def denied(self, votes: Sequence[Vote]) -> bool:
        """Return True if the votes on a release prove that the lease was lost before.

        A majority without the key proves nothing if the release woke a waiter, which may have
        taken the other nodes before the release arrived there; unless the waiter was woken at a
        node that had the key and has it no more. If there are waiters, a node that did not reply
        may have woken one. So a release may miss a loss, and never makes one up.
        """
        if not majority_denies(votes, self._policy.majority):
            return False
        waited = any(vote.woken for vote in votes)
        return not any(
            (vote.woken and (vote.answer is Answer.YES or had.answer is not Answer.YES))
            or (waited and vote.answer is Answer.UNKNOWN and vote.sent)
            for vote, had in zip(votes, self.grant.votes, strict=False)
        )

    def run_out(self) -> bool:
        """Become lost if the deadline of a held lease has passed; return whether that is new."""
        with self._changing:
            return self.held and self.remaining() <= 0 and self.lose()

    def expire(self) -> bool:
        """Let the deadline of a held lease be now, for a test; return whether it was held."""
        with self._changing:
            deadline = min(self.grant.deadline, self._policy.clock())
            self.grant = self.grant._replace(deadline=deadline)
            return self.run_out()

    def lose(self) -> bool:
        """Become lost; return False if the lease is lost already, or given away."""
        with self._changing:
            if self.lost or self.phase is Phase.GIVEN:
                return False
            self.lost = True
            return True

    def _lost_now(self) -> EventKind | None:
        return EventKind.LOST if self.lose() else None

    # -- telling --------------------------------------------------------------------------------

    def loss(self) -> Reason:
        """Return why the lease is lost: it ran out, or a majority denied it before."""
        late = self._policy.clock() >= self.grant.deadline
        return because(ReasonCode.RAN_OUT if late else ReasonCode.DENIED)

    def tell_once(self) -> bool:
        """Note that the end is told; return False if it was told already."""
        with self._changing:
            first, self.told = not self.told, True
            return first
