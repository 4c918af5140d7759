"""The life of a lease: held, renewed, lost, released or given away; and its public face.

A holder relies on its lease until the deadline, on a clock that cannot be set, or until the lease
is released, given away or lost, whichever is first. ``end`` comes *before* anything is sent: a
holder that still relies on a lease while its key is already gone would be a second holder.

A lease that is over is never revived, and it is lost at most once. What the section "decisions"
has asks no node: it takes in what they replied, and says what is to be told. Threads share a lease:
what must not come apart is decided under its lock, which is written in C, so that no interruption
leaves it locked.
"""

from __future__ import annotations

import base64
import enum
import json
import logging
import math
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol

from django_redlock import events
from django_redlock.core import completion, hold
from django_redlock.core.errors import LeaseLost, NodesUnavailable, RedlockError
from django_redlock.core.names import check_names
from django_redlock.core.protocol import NONCE, Answer, Grant, Steps, Vote
from django_redlock.core.quorum import NO, answer_of, count, majority_denies, revoked
from django_redlock.core.reasons import Reason, ReasonCode, because, describe
from django_redlock.core.slots import MOST, Slot, entry_of, read_entry
from django_redlock.events import Event, EventKind, VoteCount, log_fields
from django_redlock.interruption import why_not_here
from django_redlock.nodes.background import running_loop

if TYPE_CHECKING:
    from django_redlock.backend import Backend
    from django_redlock.core.hold import Outcome

logger = logging.getLogger("django_redlock")

NO_BLOCK: Final = (
    "a lease is no block, so that of {0!r} has been released: write '{1} redlock(name) as lease:', "
    "without {2}()"
)
RENEWALS: Final = 3  # in each ttl …
TRIES: Final = 20  # … or so many, while no majority replies


class Phase(enum.Enum):
    """What the holder did with its lease; it may be lost besides."""

    HELD = "held"
    RELEASED = "released"
    GIVEN = "given away"


HELD: Final = Phase.HELD  # an enum's member costs five times a name
NOT_ENDED: Final = [HELD]
END, LOSS, TELLING = "end", "loss", "telling"  # what one call does, of all that try
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
    template: str = ""
    slot: Slot | None = None

    def encode(self) -> str:
        """Return the handle as one line of text without spaces; a slot is written as an entry."""
        names, of = [*self.names], list[int]()
        if self.slot:
            names, of = [entry_of(names[0], self.slot.number)], [self.slot.of]
        parts = (1, self.alias, self.nonce, names, self.template, *of)
        text = json.dumps(parts, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Read the handle in ``text``.

        Raises:
            ValueError: it is not a handle; the error does not quote it, for it may be a secret.
        """
        try:
            padded = text.encode() + b"=" * (-len(text) % 4)
            version, alias, nonce, names, made_of, *of = json.loads(
                base64.urlsafe_b64decode(padded)
            )
            texts = isinstance(alias, str) and isinstance(made_of, str)
            if version == 1 and texts and NONCE.fullmatch(nonce):
                if not of:
                    return cls(alias, nonce, check_names(names), made_of)
                ((entry,), (most,)) = names, of
                name, number = read_entry(entry)
                if isinstance(most, int) and number is not None and number < most <= MOST:
                    return cls(alias, nonce, check_names(name), made_of, Slot(number, most))
        except (AttributeError, RecursionError, TypeError, ValueError):
            pass
        msg = "this is not a handle of a lease"
        raise ValueError(msg)


class Schedule(Protocol):
    """Where a lease is watched; see ``renewal``."""

    def forget(self, lease: Lease) -> None:
        """Drop a lease that has ended."""


class Lease:
    """A grant in the hands of its holder. ``Lock`` makes it; several threads may use it.

    Attributes:
        name: the name, or a tuple of names.
        fence: the fencing token, an integer, larger for each later holder of a name; of a limited
            lock, for each later holder of the same slot.
    """

    # For this package:
    #   backend       the backend of its alias
    #   grant         what the nodes granted; its deadline moves
    #   renew_until   when, on the policy's clock, renewals end; infinite: never
    #   block         returns None once the block is gone that is to release it (``interruption``)
    #   schedule      the one that watches it
    __slots__ = (
        "__weakref__",
        "_changing",
        "_claims",
        "_min_hold",
        "_on_lost",
        "_pid",
        "_renew_at",
        "_revoked",
        "_unknown",
        "backend",
        "block",
        "fence",
        "grant",
        "name",
        "renew_until",
        "schedule",
    )

    def __init__(
        self,
        backend: Backend,
        grant: Grant,
        *,
        min_hold: float = 0.0,
        renew: bool = False,
        max_hold: float | None = None,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> None:
        self.backend = backend
        self.grant = grant
        self.name = grant.target.name
        self.fence = grant.fence
        self.renew_until = math.inf if max_hold is None else grant.since + max_hold
        self.block: Callable[[], object] | None = None
        self.schedule: Schedule | None = None
        self._claims: dict[str, list[Phase]] = {}
        self._revoked: Reason | None = None  # why it was taken away
        self._unknown = False  # since its renewal failed
        self._renew_at = grant.since + grant.ttl / RENEWALS if renew else math.inf
        self._min_hold = min_hold
        self._on_lost = on_lost
        self._pid = os.getpid()  # a forked child holds none of its parent's leases
        self._changing = threading.RLock()  # re-entrant: a handler may release it

    def __repr__(self) -> str:
        state = "lost" if self.lost else self.phase.value
        slot = "" if self.slot is None else f" slot={self.slot}"
        left = f"{self.remaining():.3f} s left"
        return f"<Lease {self.name!r}{slot} fence={self.fence} {state} {left}>"

    # -- what it is not -------------------------------------------------------------------------

    if not TYPE_CHECKING:  # a type checker knows that it has none of these

        def __enter__(self) -> NoReturn:
            self.release()
            raise TypeError(NO_BLOCK.format(self.name, "with", "acquire"))

        async def __aenter__(self) -> NoReturn:
            await self.arelease()
            raise TypeError(NO_BLOCK.format(self.name, "async with", "aacquire"))

        __exit__ = __aexit__ = __enter__  # Python looks it up before it enters

        @property
        def locked(self) -> NoReturn:
            """Say what to write in place of what other clients' locks have."""
            raise AttributeError(
                "a lease has no 'locked' and no 'owned': ask lease.remaining() > 0, or call "
                "lease.ensure()"
            )

        owned = locked

    # -- for the holder -------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the lease, a tuple also where there is only one."""
        return self.grant.target.names

    @property
    def slot(self) -> int | None:
        """Which of the slots of a limited lock it is, from 0; None if the lock has no limit."""
        slot = self.grant.target.slot
        return slot.number if slot else None

    @property
    def limit(self) -> int | None:
        """How many may hold the lock at a time, as its holder wrote it; None without a limit."""
        slot = self.grant.target.slot
        return slot.of if slot else None

    @property
    def template(self) -> str:
        """Of which the names were made, as in ``"invoice:{pk}"``; "" where there is none."""
        return self.grant.target.template

    @property
    def lost(self) -> bool:
        """True once the lease is known to have ended against the holder's will."""
        if LOSS in self._claims or END in self._claims:
            return LOSS in self._claims
        return self._pid != os.getpid() or self.backend.policy.clock() >= self.grant.deadline

    def remaining(self) -> float:
        """Return the seconds until the holder must have stopped; 0 or less when over."""
        if not self.held:
            return 0.0
        return self.grant.deadline - self.backend.policy.clock()

    def ensure(self) -> None:
        """Return if the lease has time left; call it before each step that must not be done twice.

        It compares a clock, and asks no node. Time passes between its return and your write, so
        the write should carry ``fence``.

        Raises:
            LeaseLost: the lease ran out, or is lost, released or given away.
        """
        if self.remaining() <= 0:
            raise LeaseLost(self.ending(), name=self.name)

    def extend(self, ttl: float | None = None) -> None:
        """Prolong the lease to ``ttl`` seconds from now; never shortens it.

        Args:
            ttl: seconds; None: the ttl with which the lease was acquired.

        Raises:
            LeaseLost: the lease is over, or a majority of nodes does not have it any more.
            NodesUnavailable: no majority replied; the lease lasts until its old deadline.
            ValueError: ``ttl`` is not positive or above MAX_TTL.
        """
        self.backend.run(self._extending(ttl))

    async def aextend(self, ttl: float | None = None) -> None:
        """Prolong the lease as ``extend`` does, in a task."""
        await self.backend.arun(self._extending(ttl))

    def release(self) -> None:
        """Give the name back; do nothing if the lease is released or given away already.

        Never raises because of the nodes: a key that cannot be deleted ends with its ttl.
        """
        if self._pid != os.getpid():
            self._warn_of_parent()
        elif why_not_here():
            self.backend.run_elsewhere(self._releasing())
        else:
            self.backend.run(self._releasing())

    async def arelease(self) -> None:
        """Give the name back as ``release`` does, in a task.

        Cancelling it ends the waiting, not the release.
        """
        if self._pid != os.getpid():
            self._warn_of_parent()
        elif running_loop() is None or why_not_here():
            self.release()  # a coroutine is closed after its loop, or by the collector
        else:
            await self.backend.arun(self._releasing())

    def handle(self) -> str:
        """Give the lease away: the process that passes this text to ``adopt`` first has it.

        This lease ends before the text exists. Keep the text secret: it is the power to take the
        lock. The name stays taken for at most what is left of the ttl.

        Returns:
            One line of text without spaces.

        Raises:
            LeaseLost: the lease is over already.
        """
        self.ensure()
        if not self.end(Phase.GIVEN):
            raise LeaseLost(self.ending(), name=self.name)
        if self.tell_once():
            self.tell(EventKind.GIVEN)
        nonce, target = self.grant.nonce, self.grant.target
        alias, names = self.backend.alias, target.names
        return Handle(alias, nonce, names, target.template, target.slot).encode()

    def _warn_of_parent(self) -> None:
        message = f"{self.name!r} belongs to the parent process: not released here"
        warnings.warn(message, RuntimeWarning, stacklevel=3)

    # -- decisions: what it is ------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """Whether the holder has neither let go nor lost it, as far as that was noticed."""
        claims = self._claims
        return END not in claims and LOSS not in claims and self._pid == os.getpid()

    @property
    def ended(self) -> bool:
        """Whether it was released, given away, or belongs to the parent of this process."""
        return END in self._claims or self._pid != os.getpid()

    @property
    def torn(self) -> bool:
        """Whether what was to release it is gone, such as a block: it is renewed no more."""
        block = self.block
        return block is not None and block() is None and END not in self._claims

    @property
    def untold(self) -> bool:
        """Whether it is lost and that was not told: an interruption came between."""
        claims = self._claims
        return LOSS in claims and TELLING not in claims and self._pid == os.getpid()

    @property
    def renew_at(self) -> float:
        """When, on the clock of the deadline, to renew it next; infinite: never."""
        if self._renew_at < self.renew_until and not self.torn:
            return self._renew_at
        return math.inf

    def ending(self) -> Reason:
        """Return why the lease is over."""
        if self._pid != os.getpid():
            return because(ReasonCode.PARENTS)
        if self._revoked is not None:
            return self._revoked
        return because(ReasonCode.LOST if LOSS in self._claims else ENDINGS[self.phase])

    # -- decisions: prolonging ------------------------------------------------------------------

    def take_renewal(self, outcome: Outcome, asked: float) -> EventKind | None:
        """Take in the outcome of a renewal that began at ``asked``; return what is to be told.

        An unknown outcome is told once, and the renewal is tried again before the deadline.
        """
        if isinstance(outcome, Grant):
            self._renew_at = asked + self.grant.ttl / RENEWALS
            return self.take_extension(outcome)
        self._renew_at = asked + self.grant.ttl / TRIES
        event = self.take_extension(outcome)
        if isinstance(outcome, NodesUnavailable):
            # The end of a loop is no outage: the watchdog's thread renews what the loop leaves.
            ends = any(vote.code == ReasonCode.LOOP_ENDS for vote in outcome.votes)
            if not ends and self._become_unknown(asked):
                return EventKind.UNKNOWN
        return event

    def take_extension(self, outcome: Outcome) -> EventKind | None:
        """Take in the outcome of an extension; return what is to be told: EXTENDED, LOST or None.

        Other extensions may have ended in the meantime: the latest deadline counts, and one
        message that came too late does not prove a loss. A lease that is over is not revived:
        another thread may have seen that it is over.
        """
        with self._changing:
            if not self.held:
                return None
            if self.remaining() <= 0:
                return EventKind.LOST if self.lose() else None
            if not isinstance(outcome, Grant):
                denied = majority_denies(outcome.votes, self.backend.policy.majority)
                if outcome.code == ReasonCode.REVOKED:
                    self._revoked, denied = revoked(outcome.votes), True
                return EventKind.LOST if denied and self.lose() else None
            self._change(deadline=outcome.deadline)
            self._unknown = False
        return None if self.told else EventKind.EXTENDED

    def touch(self, nodes: frozenset[int]) -> Grant | None:
        """Note that these nodes may have its keys from now on; see ``core.hold.Holding``."""
        with self._changing:
            if self.remaining() <= 0:
                return None
            self._change(touched=nodes)
            return self.grant

    def _change(self, deadline: float = -math.inf, touched: frozenset[int] = frozenset()) -> None:
        """Put the deadline off, and add nodes to those that may have its keys."""
        before = self.grant
        later, more = max(deadline, before.deadline), before.touched | touched
        self.grant = before._replace(deadline=later, touched=more)

    def _become_unknown(self, asked: float) -> bool:
        """Note that a renewal failed, unless that is noted, or another extension succeeded."""
        with self._changing:
            grant = self.grant
            kept = grant.deadline >= asked + self.backend.policy.validity(grant.ttl)
            if self._unknown or self.told or kept or not self.held:
                return False
            self._unknown = True
            return True

    # -- decisions: ending ----------------------------------------------------------------------

    def _claim(self, what: str, phase: Phase = HELD) -> bool:
        """Note in one step that this call does it; return False if another one has.

        Args:
            phase: of its end, what the holder did with it.
        """
        mine = [phase]
        return self._claims.setdefault(what, mine) is mine

    @property
    def phase(self) -> Phase:
        """What the holder did with it."""
        return self._claims.get(END, NOT_ENDED)[0]

    def end(self, phase: Phase) -> bool:
        """Leave the phase HELD for ``phase``; return False if the lease has left it already.

        No event is told.
        """
        if not self._claim(END, phase):
            return False
        if self.schedule is not None:
            self.schedule.forget(self)
        return True

    def disown(self) -> None:
        """End the lease; the caller gives the names back."""
        self.end(Phase.RELEASED)

    def denied(self, votes: Sequence[Vote]) -> bool:
        """Take in the votes on a release; return True if the lease was lost or revoked before.

        A majority without the key proves nothing if the release woke a waiter, which may have
        taken the other nodes before the release arrived there; unless the waiter was woken at a
        node that had the key and has it no more. If there are waiters, a node that did not reply
        may have woken one. So a release may miss a loss, and never makes one up.
        """
        self._revoked = revoked(votes) or self._revoked
        if self._revoked is not None:
            return True
        if NO not in map(answer_of, votes):  # as nearly always
            return False
        if not majority_denies(votes, self.backend.policy.majority):
            return False
        waited = any(vote.woken for vote in votes)
        return not any(
            (vote.woken and (vote.answer is Answer.YES or had.answer is not Answer.YES))
            or (waited and vote.answer is Answer.UNKNOWN and vote.sent)
            for vote, had in zip(votes, self.grant.votes, strict=False)
        )

    def run_out(self) -> bool:
        """Become lost if the deadline of a held lease has passed; return whether that is new."""
        return self.held and self.remaining() <= 0 and self.lose()

    def expire(self) -> bool:
        """Let the deadline of a held lease be now, for a test; return whether it was held."""
        with self._changing:
            deadline = min(self.grant.deadline, self.backend.policy.clock())
            self.grant = self.grant._replace(deadline=deadline)
            return self.run_out()

    def lose(self) -> bool:
        """Become lost; return False if the lease is lost already, or given away."""
        return self.phase is not Phase.GIVEN and self._claim(LOSS)

    def loss(self) -> Reason:
        """Return why the lease is lost: it was revoked, ran out, or a majority denied it before."""
        if self._revoked is not None:
            return self._revoked
        late = self.backend.policy.clock() >= self.grant.deadline
        return because(ReasonCode.RAN_OUT if late else ReasonCode.DENIED)

    @property
    def told(self) -> bool:
        """Whether its end was told; nothing is told afterwards."""
        return TELLING in self._claims

    def tell_once(self) -> bool:
        """Note that the end is told; return False if it was told already."""
        return self._claim(TELLING)

    # -- the steps of threads and tasks ---------------------------------------------------------

    def _extending(self, ttl: float | None) -> Steps[None]:
        self.ensure()
        seconds = self.grant.ttl if ttl is None else self.backend.check_ttl(ttl)
        (outcome,) = yield from hold.extend_many(
            self.backend.policy, (self,), (seconds,), self._hear_extension
        )
        if isinstance(outcome, Grant):
            self.ensure()
        elif isinstance(outcome, LeaseLost) and self.remaining() > 0:
            reason = because(ReasonCode.PROLONGED_ELSEWHERE)
            raise NodesUnavailable(reason, name=self.name, votes=outcome.votes)
        else:
            raise outcome

    def _hear_extension(self, _: int, outcome: Outcome) -> None:
        change = self.take_extension(outcome)
        if change is EventKind.LOST:
            self.tell_lost()
        elif change is not None:
            self.tell(change)

    def hear_renewal(self, outcome: Outcome, asked: float) -> bool:
        """Take in the outcome of a renewal; return True if the holder must be told of a loss."""
        change = self.take_renewal(outcome, asked)
        if change is EventKind.EXTENDED:
            self.tell(change)
        elif isinstance(outcome, NodesUnavailable) and change is EventKind.UNKNOWN and self.held:
            self.tell(change, votes=outcome.votes, error=outcome)
        return change is EventKind.LOST

    def _releasing(self) -> Steps[None]:
        policy, over, denied = self.backend.policy, self.lost, False
        votes: Sequence[Vote] | None = None
        try:
            if self.end(Phase.RELEASED):
                votes = yield from hold.release(policy, self.grant, min_hold=self._min_hold)
                denied = self.denied(votes)
        except GeneratorExit:
            raise
        except BaseException:  # rule: interrupted after the lease ended, so the keys must go, too
            if self.phase is Phase.RELEASED:
                votes = yield from hold.release(policy, self.grant, min_hold=self._min_hold)
                if not over and self.tell_once():
                    self.tell(EventKind.RELEASED, votes=votes)
            raise
        if over or denied:
            self.lose()
            if self.untold:
                self.tell_lost()
        elif votes is not None and self.tell_once():  # it may be lost while it is released
            self.tell(EventKind.RELEASED, votes=votes)

    def recording(self, life: float, *, at: int = 0) -> Steps[bool]:
        """End the lease and leave completion records for its names, in place of a release.

        Twice does no harm, where the first was interrupted.

        Args:
            life: seconds for which the records stay; they stay until ``min_hold`` is over, too.
            at: when the work was done, in milliseconds since 1970, of work that is done once; its
                waiters are told. 0: of a run name, which has none.

        Returns:
            Whether a majority of the nodes has them. They are written only where the names are
            still the lease's, and not at all if its time is over.
        """
        if self._pid != os.getpid():
            self._warn_of_parent()
            return False
        if self.phase is not Phase.RELEASED and self.remaining() <= 0:
            yield from self._releasing()  # of a mark, too, if it was revoked
            logger.warning("%r has left no record: %s", self.name, describe(self.ending()))
            return False
        policy, again = self.backend.policy, self.phase is Phase.RELEASED
        self.disown()
        life = max(life, self.grant.since + self._min_hold - policy.clock())
        votes = yield from completion.complete(policy, self.grant, life=life, at=at)
        if at:
            yield hold.wake_next(policy, self.grant.target, 0)
        recorded = count(votes).yes
        if (why := revoked(votes)) is not None:
            left = f"a record on {recorded} nodes that were not told" if recorded else "no record"
            logger.warning("%r has left %s: %s", self.name, left, describe(why))
        # The second time, the names may be records already, which denies nothing.
        if (why is not None or not again) and self.denied(votes):
            self.lose()
            if self.untold:
                self.tell_lost()
        elif self.tell_once():
            self.tell(EventKind.RELEASED, votes=votes)
        return recorded >= policy.majority

    # -- telling --------------------------------------------------------------------------------

    def tell(
        self,
        kind: EventKind,
        *,
        since: float | None = None,
        votes: Sequence[Vote] | None = None,
        error: RedlockError | None = None,
    ) -> None:
        """Tell an event of the lease to those who listen.

        Args:
            kind: what happened.
            since: when the seconds of the event began, on the clock of the deadline; None: with
                the attempt that got the lease. They end at the deadline at the latest.
            votes: of the nodes; None: those of the last grant or extension.
            error: why the lease is lost, or was not renewed.
        """
        if not events.wanted(kind):
            return
        grant, backend = self.grant, self.backend
        seconds = min(backend.policy.clock(), grant.deadline)
        seconds -= grant.since if since is None else since
        counted = VoteCount.of(grant.votes if votes is None else votes)
        of, made_of = (backend.alias, self.name), grant.target.template
        events.tell(Event(kind, *of, seconds, self.fence, counted, self, error, made_of))

    def tell_lost(self) -> None:
        """Tell of the loss, by an event and, if there is still a holder, by ``on_lost``; once."""
        torn = self.torn
        reason = because(ReasonCode.NEVER_RELEASED) if torn else self.loss()
        if self.schedule is not None:
            self.schedule.forget(self)  # nobody has to release it
        if not self.tell_once():
            return
        try:
            self.tell(EventKind.LOST, error=LeaseLost(reason, name=self.name))
        finally:  # a listener may want to exit
            if not torn:
                self._call_on_lost()

    def _call_on_lost(self) -> None:
        if self._on_lost is None:
            return
        try:
            self._on_lost(self)
        except Exception:  # the holder's error must not end the watchdog or hide the body's
            fields = log_fields(self.backend.alias, self.name, fence=self.fence)
            logger.exception("on_lost of %r failed", self.name, extra=fields)
