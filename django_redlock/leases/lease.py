"""What a holder has: the fence, the time left, and the duty to stop.

A lease believes in itself until its deadline on a clock that nobody sets, or until it is
released, given away or lost, whichever is first. Belief ends *before* anything is sent: a
holder that still believes while its key is already gone would be a second holder.
"""

from __future__ import annotations

import enum
import logging
import math
import os
import threading
import warnings
from typing import TYPE_CHECKING, Final

from django_redlock import events
from django_redlock.concurrency.loops import running_loop
from django_redlock.core import hold
from django_redlock.core.errors import LeaseLost, NodesUnavailable
from django_redlock.core.protocol import Answer, Grant
from django_redlock.core.quorum import majority_denies
from django_redlock.events import Event, EventKind, VoteCount, log_fields

from . import blocks
from .handles import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.errors import RedlockError
    from django_redlock.core.hold import Outcome
    from django_redlock.core.protocol import Steps, Vote

    from .blocks import Block

logger = logging.getLogger("django_redlock")
RENEWALS: Final = 3  # in each ttl …
TRIES: Final = 20  # … or so many, while no majority answers


class State(enum.Enum):
    """Where a lease is in its life."""

    HELD = "held"
    RELEASED = "released"
    GIVEN = "given away"


class Lease:
    """A tenancy as its holder sees it. Made by ``Lock``; safe to use from several threads.

    Attributes:
        name: the name, or a tuple of names.
        fence: the fencing token, strictly increasing over successive holders of each name.
    """

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
        self._backend = backend
        self._grant = grant
        self._min_hold = min_hold
        self._on_lost = on_lost
        self._renew_until = grant.since + (math.inf if max_hold is None else max_hold)
        self._renew_at = grant.since + grant.ttl / RENEWALS if renew else math.inf
        self._state = State.HELD
        self._lost = False
        self._told = False  # of its end
        self._unknown = False  # since its renewal failed
        self._changing = threading.RLock()
        self._pid = os.getpid()
        self.block: Block | None = None  # the ``with`` block that holds it
        self.name = grant.target.name
        self.fence = grant.fence

    def __repr__(self) -> str:
        state = "lost" if self.lost else self._state.value
        return f"<Lease {self.name!r} fence={self.fence} {state} {self.remaining():.3f} s left>"

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the lease, also where there is only one."""
        return self._grant.target.names

    @property
    def lost(self) -> bool:
        """True once it is known that the lease ended against the holder's will."""
        return self._lost or (self._held() and self.remaining() <= 0)

    def remaining(self) -> float:
        """Seconds until the holder must have stopped; 0 or less when over."""
        if not self._held() or self._pid != os.getpid():
            return 0.0
        return self._grant.deadline - self._backend.policy.clock()

    def ensure(self) -> None:
        """Return if the lease stands; call it before each step that must not be done twice.

        No input or output: it compares a clock. Between its return and your write time
        passes, which is why the write should carry ``fence``.

        Raises:
            LeaseLost: it is over, lost, released or given away.
        """
        if self.remaining() <= 0:
            raise LeaseLost(self._ending(), name=self.name)

    def extend(self, ttl: float | None = None) -> None:
        """Prolong the lease to ``ttl`` seconds from now; never shortens it.

        Args:
            ttl: seconds; None is the ttl it was acquired with.

        Raises:
            LeaseLost: it is over, or a majority of nodes does not have it any more.
            NodesUnavailable: no majority answered; the lease stands until its old deadline.
            ValueError: ``ttl`` is not positive or above MAX_TTL.
        """
        self._backend.run(self._extending(ttl))

    async def aextend(self, ttl: float | None = None) -> None:
        """``extend`` in a task."""
        await self._backend.arun(self._extending(ttl))

    def release(self) -> None:
        """Give the name back. A lease that is released or given away already is left alone.

        Never raises because of the nodes: what cannot be deleted ends with its ttl.
        """
        if not self._inherited():
            self._backend.run(self._releasing())

    async def arelease(self) -> None:
        """``release`` in a task. Cancelling it ends the waiting, not the release."""
        if self._inherited():
            return
        if running_loop() is None:
            self._backend.run(self._releasing())  # a coroutine is closed after its loop
        else:
            await self._backend.arun(self._releasing())

    def handle(self) -> str:
        """Give the lease away: whoever passes this text to ``adopt`` first becomes the holder.

        This lease stops believing before the text exists. Keep the text secret; it is the
        power to take the lock. The name stays taken for at most what is left of the ttl.

        Raises:
            LeaseLost: there is nothing to give away any more.
        """
        self.ensure()
        if not self._end(State.GIVEN):
            raise LeaseLost(self._ending(), name=self.name)
        blocks.need_no_more(self)
        self._tell_end(EventKind.GIVEN)
        return Handle(self._backend.alias, self._grant.nonce, self.names).encode()

    def abandon(self) -> None:
        """Release, since the block that held it is gone; called in the middle of anything."""
        if self._pid != os.getpid():
            return
        if running_loop() is None:
            self.release()
            return
        over = self.lost
        if self._end(State.RELEASED):
            blocks.give_back(self._backend, self._grant)
            if over:
                self._lose()
            else:
                self._tell_end(EventKind.RELEASED)

    def disown(self) -> None:
        """Stop believing, untold: whoever calls this gives the names back."""
        self._end(State.RELEASED)
        blocks.need_no_more(self)

    # -- for the watchdog -----------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """Whether the holder has neither let go nor lost it, and its block has not ended."""
        block = self.block
        alive = block is None or block() is not None
        return alive and self._held() and self._pid == os.getpid()

    @property
    def untold(self) -> bool:
        """Whether it was lost and nobody was told: an interruption came between."""
        return self._lost and not self._told and self._pid == os.getpid()

    @property
    def ended(self) -> bool:
        """Whether it was released, given away, or belongs to the parent of this process."""
        return self._state is not State.HELD or self._pid != os.getpid()

    @property
    def backend(self) -> Backend:
        """What to ask for it."""
        return self._backend

    @property
    def tenancy(self) -> Grant:
        """What it has from the nodes now; its deadline moves."""
        return self._grant

    @property
    def renew_at(self) -> float:
        """When, on the clock of the deadline, to prolong it next; infinite: never."""
        return self._renew_at if self._renew_at < self._renew_until else math.inf

    def renewed(self, outcome: Outcome, asked: float) -> bool:
        """Take in what came of a renewal; whether the holder must be told of a loss.

        What is unknown is told, once, and tried again before the deadline.
        """
        if isinstance(outcome, Grant):
            self._renew_at = asked + self._grant.ttl / RENEWALS
            return self._take_in(outcome)
        self._renew_at = asked + self._grant.ttl / TRIES
        lost = self._take_in(outcome)
        if isinstance(outcome, NodesUnavailable) and self._become_unknown(asked):
            self.tell(EventKind.UNKNOWN, votes=outcome.votes, error=outcome)
        return lost

    def _become_unknown(self, asked: float) -> bool:
        """Note that it could not be renewed, unless that is noted, or somebody else could since."""
        with self._changing:
            grant = self._grant
            kept = grant.deadline >= asked + self._backend.policy.validity(grant.ttl)
            if self._unknown or kept or not self.held:
                return False
            self._unknown = True
            return True

    def over(self) -> bool:
        """See whether its time has run out; whether the holder must be told of a loss."""
        with self._changing:
            return self.held and self.remaining() <= 0 and self._become_lost()

    # -- endings --------------------------------------------------------------------------------

    def _held(self) -> bool:
        return self._state is State.HELD and not self._lost

    def _ending(self) -> str:
        if self._pid != os.getpid():
            return "the lease belongs to the parent process"
        if self._lost:
            return "the lease was lost"
        return "its time is over" if self._held() else f"the lease was {self._state.value}"

    def _end(self, state: State) -> bool:
        with self._changing:
            if self._state is not State.HELD:
                return False
            self._state = state
            return True

    def _inherited(self) -> bool:
        """Whether a fork brought the lease here; then it is not ours to release."""
        if self._pid == os.getpid():
            return False
        message = f"{self.name!r} belongs to the parent process: not released here"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return True

    # -- what is done with the nodes, for threads and tasks ---------------------------------------

    def _extending(self, ttl: float | None) -> Steps[None]:
        self.ensure()
        seconds = self._grant.ttl if ttl is None else self._backend.check_ttl(ttl)
        policy = self._backend.policy
        (outcome,) = yield from hold.extend_many(policy, (self._grant,), (seconds,))
        if self._take_in(outcome):
            self.tell_lost()
        if isinstance(outcome, Grant):
            self.ensure()
        elif isinstance(outcome, LeaseLost) and self.remaining() > 0:
            reason = "too late; the watchdog has prolonged it, and it stands until its deadline"
            raise NodesUnavailable(reason, name=self.name, votes=outcome.votes)
        else:
            raise outcome

    def _take_in(self, outcome: Outcome) -> bool:
        """Believe what the nodes said of an extension; whether we became lost by that.

        Other extensions may have ended in the meantime: the latest deadline counts, and that
        one message came too late proves nothing. What is over is not revived, though: somebody
        may have seen it.
        """
        with self._changing:
            if not self._held():
                return False
            if self.remaining() <= 0:
                return self._become_lost()
            if not isinstance(outcome, Grant):
                denied = majority_denies(outcome.votes, self._backend.policy.majority)
                return denied and self._become_lost()
            deadline = max(outcome.deadline, self._grant.deadline)
            self._grant = outcome._replace(deadline=deadline)
            self._unknown = False
        self.tell(EventKind.EXTENDED)
        return False

    def _releasing(self) -> Steps[None]:
        over, denied = self.lost, False
        votes: Sequence[Vote] | None = None
        try:
            if self._end(State.RELEASED):
                blocks.need_no_more(self)
                votes = yield from self._giving_back()
                denied = self._denied(votes)
        except GeneratorExit:
            raise
        except BaseException:  # rule: interrupted after belief ended, so the keys must go, too
            if self._state is State.RELEASED:
                votes = yield from self._giving_back()
                if not over:
                    self._tell_end(EventKind.RELEASED, votes)
            raise
        if over or denied:
            self._lose()
        elif votes is not None:
            self._tell_end(EventKind.RELEASED, votes)

    def _giving_back(self) -> Steps[Sequence[Vote]]:
        policy = self._backend.policy
        return (yield from hold.release(policy, self._grant, min_hold=self._min_hold))

    def _denied(self, votes: Sequence[Vote]) -> bool:
        """Whether a majority said that the lease was not ours any more.

        That says nothing where we woke somebody, who may then have been faster at the other
        nodes than our release; unless it was at a node that had our key and has it no more.
        Where somebody waits, a node without an answer may have woken him. So a release rather
        misses a loss than makes one up.
        """
        if not majority_denies(votes, self._backend.policy.majority):
            return False
        waited = any(vote.number for vote in votes)
        return not any(
            (vote.number and (vote.answer is Answer.YES or had.answer is not Answer.YES))
            or (waited and vote.answer is Answer.UNKNOWN and vote.sent)
            for vote, had in zip(votes, self._grant.votes, strict=False)
        )

    # -- loss -----------------------------------------------------------------------------------

    def _lose(self) -> None:
        """Become lost, and tell whoever asked to be told; once."""
        self._become_lost()
        if self.untold:
            self.tell_lost()

    def _become_lost(self) -> bool:
        with self._changing:
            if self._lost or self._state is State.GIVEN:
                return False
            self._lost = True
            return True

    def tell_lost(self) -> None:
        """Tell whoever asked to be told; once."""
        late = self._backend.policy.clock() >= self._grant.deadline
        why = "its time ran out" if late else "a majority does not have it any more"
        if not self._first_to_tell():
            return
        try:
            self.tell(EventKind.LOST, error=LeaseLost(why, name=self.name))
        finally:  # a listener may want to exit
            self._call_on_lost()

    def _call_on_lost(self) -> None:
        if self._on_lost is None:
            return
        try:
            self._on_lost(self)
        except Exception:  # a caller's error must not end the watchdog or hide the body's
            told = log_fields(self._backend.alias, self.name, fence=self.fence)
            logger.exception("on_lost of %r failed", self.name, extra=told)

    # -- telling others -------------------------------------------------------------------------

    def tell(
        self,
        kind: EventKind,
        *,
        since: float | None = None,
        votes: Sequence[Vote] | None = None,
        error: RedlockError | None = None,
    ) -> None:
        """Tell whoever listens what became of the lease.

        Args:
            since: when the seconds of the event began, on the clock of the deadline; None: with
                the attempt that got the lease. They end where belief does.
            votes: of the nodes; None: those of the last grant or extension.
        """
        if not events.wanted(kind):
            return
        grant, now = self._grant, self._backend.policy.clock()
        event = Event(
            kind,
            self._backend.alias,
            self.name,
            min(now, grant.deadline) - (grant.since if since is None else since),
            self.fence,
            VoteCount.of(grant.votes if votes is None else votes),
            self,
            error,
        )
        events.tell(event)

    def _tell_end(self, kind: EventKind, votes: Sequence[Vote] | None = None) -> None:
        """Tell how the lease ended; once, though it may be lost while it is released."""
        if self._first_to_tell():
            self.tell(kind, votes=votes)

    def _first_to_tell(self) -> bool:
        with self._changing:
            first, self._told = not self._told, True
            return first
