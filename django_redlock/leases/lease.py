"""What a holder has: the fence, the time left, and the duty to stop.

``LeaseState`` decides; a ``Lease`` asks the nodes, reports to the state what they replied, and
tells events. It checks by itself what a state does not know: the process, and the ``with`` block.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Protocol

from django_redlock.concurrency.loops import running_loop
from django_redlock.core import hold
from django_redlock.core.errors import LeaseLost, NodesUnavailable
from django_redlock.core.protocol import Grant
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import EventKind

from .state import Handle, LeaseState, Phase
from .telling import call_on_lost, tell, warn_of_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.hold import Holding, Outcome
    from django_redlock.core.protocol import Steps, Vote
    from django_redlock.core.reasons import Reason


class Schedule(Protocol):
    """The part of a ``RenewalSchedule`` in which a lease is: what its end uses."""

    def forget(self, lease: Lease) -> None:
        """Drop a lease that has ended."""


class Lease:
    """A grant in the hands of its holder. ``Lock`` makes it; several threads may use it.

    Attributes:
        name: the name, or a tuple of names.
        fence: the fencing token, an integer, larger for each later holder of a name.
    """

    __slots__ = (
        *("__weakref__", "_backend", "_min_hold", "_on_lost", "_pid", "_state"),
        *("block", "fence", "name", "schedules"),
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
        self._backend = backend
        self._state = LeaseState(backend.policy, grant, renew=renew, max_hold=max_hold)
        self._min_hold = min_hold
        self._on_lost = on_lost
        self._pid = os.getpid()
        self.block: Callable[[], object] | None = None  # returns None once it is gone; see ``torn``
        self.schedules: tuple[Schedule, ...] = ()  # those that watch it
        self.name = grant.target.name
        self.fence = grant.fence

    def __repr__(self) -> str:
        state = "lost" if self.lost else self._state.phase.value
        return f"<Lease {self.name!r} fence={self.fence} {state} {self.remaining():.3f} s left>"

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the lease, a tuple also where there is only one."""
        return self._state.grant.target.names

    @property
    def lost(self) -> bool:
        """True once the lease is known to have ended against the holder's will."""
        state = self._state
        return state.lost or (state.held and self.remaining() <= 0)

    def remaining(self) -> float:
        """Return the seconds until the holder must have stopped; 0 or less when over."""
        return self._state.remaining() if self._pid == os.getpid() else 0.0

    def ensure(self) -> None:
        """Return if the lease has time left; call it before each step that must not be done twice.

        It compares a clock, and asks no node. Time passes between its return and your write, so
        the write should carry ``fence``.

        Raises:
            LeaseLost: the lease ran out, or is lost, released or given away.
        """
        if self.remaining() <= 0:
            raise LeaseLost(self._ending(), name=self.name)

    def extend(self, ttl: float | None = None) -> None:
        """Prolong the lease to ``ttl`` seconds from now; never shortens it.

        Args:
            ttl: seconds; None: the ttl with which the lease was acquired.

        Raises:
            LeaseLost: the lease is over, or a majority of nodes does not have it any more.
            NodesUnavailable: no majority replied; the lease lasts until its old deadline.
            ValueError: ``ttl`` is not positive or above MAX_TTL.
        """
        self._backend.run(self._extending(ttl))

    async def aextend(self, ttl: float | None = None) -> None:
        """Prolong the lease as ``extend`` does, in a task."""
        await self._backend.arun(self._extending(ttl))

    def release(self) -> None:
        """Give the name back; do nothing if the lease is released or given away already.

        Never raises because of the nodes: a key that cannot be deleted ends with its ttl.
        """
        if not self._inherited():
            self._backend.run(self._releasing())

    async def arelease(self) -> None:
        """Give the name back as ``release`` does, in a task.

        Cancelling it ends the waiting, not the release.
        """
        if self._inherited():
            return
        if running_loop() is None:
            self._backend.run(self._releasing())  # a coroutine is closed after its loop
        else:
            await self._backend.arun(self._releasing())

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
        if not self._state.end(Phase.GIVEN):
            raise LeaseLost(self._ending(), name=self.name)
        self._unwatch()
        self._tell_end(EventKind.GIVEN)
        return Handle(self._backend.alias, self.grant.nonce, self.names).encode()

    def disown(self) -> None:
        """End the lease and tell no event; the caller gives the names back."""
        self._state.end(Phase.RELEASED)
        self._unwatch()

    def keep_private(self) -> None:
        """Let the release free all names but the private ones; another lease has these."""
        self._state.keeps_private = True

    # -- for the watchdog -----------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """Whether the holder has neither let go nor lost it."""
        return self._state.held and self._pid == os.getpid()

    @property
    def torn(self) -> bool:
        """Whether what was to release it is gone, such as a block: it is renewed no more."""
        block = self.block
        return block is not None and block() is None and self._state.phase is Phase.HELD

    @property
    def untold(self) -> bool:
        """Whether it is lost and that was not told: an interruption came between."""
        return self._state.lost and not self._state.told and self._pid == os.getpid()

    @property
    def ended(self) -> bool:
        """Whether it was released, given away, or belongs to the parent of this process."""
        return self._state.phase is not Phase.HELD or self._pid != os.getpid()

    @property
    def backend(self) -> Backend:
        """The backend of its alias."""
        return self._backend

    @property
    def grant(self) -> Grant:
        """What the nodes granted; its deadline moves."""
        return self._state.grant

    @property
    def holding(self) -> Holding:
        """What an extension prolongs, and heals."""
        return self._state

    @property
    def renew_at(self) -> float:
        """When, on the clock of the deadline, to renew it next; infinite: never."""
        return math.inf if self.torn else self._state.renew_at

    def renewed(self, outcome: Outcome, asked: float) -> bool:
        """Take in the outcome of a renewal; return True if the holder must be told of a loss."""
        change = self._state.renewed(outcome, asked)
        if change is EventKind.EXTENDED:
            tell(self, change)
        elif isinstance(outcome, NodesUnavailable) and change is EventKind.UNKNOWN and self.held:
            tell(self, change, votes=outcome.votes, error=outcome)
        return change is EventKind.LOST

    def over(self) -> bool:
        """Notice that its time has run out; return True if the holder must be told of a loss."""
        return self.held and self._state.run_out()

    # -- endings --------------------------------------------------------------------------------

    def _ending(self) -> Reason:
        return because(ReasonCode.PARENTS) if self._pid != os.getpid() else self._state.ending()

    def _inherited(self) -> bool:
        """Return True, and warn, if the lease belongs to the parent of this process."""
        return self._pid != os.getpid() and warn_of_parent(self.name)

    # -- the steps of threads and tasks ----------------------------------------------------------

    def _extending(self, ttl: float | None) -> Steps[None]:
        self.ensure()
        seconds = self.grant.ttl if ttl is None else self._backend.check_ttl(ttl)
        (outcome,) = yield from hold.extend_many(
            self._backend.policy, (self._state,), (seconds,), self._extended
        )
        if isinstance(outcome, Grant):
            self.ensure()
        elif isinstance(outcome, LeaseLost) and self.remaining() > 0:
            reason = because(ReasonCode.PROLONGED_ELSEWHERE)
            raise NodesUnavailable(reason, name=self.name, votes=outcome.votes)
        else:
            raise outcome

    def _extended(self, _: int, outcome: Outcome) -> None:
        """Take in the outcome of ``extend``."""
        change = self._state.extended(outcome)
        if change is EventKind.LOST:
            self.tell_lost()
        elif change is not None:
            tell(self, change)

    def _releasing(self) -> Steps[None]:
        over, denied = self.lost, False
        votes: Sequence[Vote] | None = None
        try:
            if self._state.end(Phase.RELEASED):
                self._unwatch()
                votes = yield from self._giving_back()
                denied = self._state.denied(votes)
        except GeneratorExit:
            raise
        except BaseException:  # rule: interrupted after the lease ended, so the keys must go, too
            if self._state.phase is Phase.RELEASED:
                votes = yield from self._giving_back()
                if not over:
                    self._tell_end(EventKind.RELEASED, votes)
            raise
        if over or denied:
            self._lose()
        elif votes is not None:
            self._tell_end(EventKind.RELEASED, votes)

    def _unwatch(self) -> None:
        for schedule in self.schedules:
            schedule.forget(self)

    def _giving_back(self) -> Steps[Sequence[Vote]]:
        return hold.release(self._backend.policy, self._state.freed, min_hold=self._min_hold)

    # -- loss -----------------------------------------------------------------------------------

    def _lose(self) -> None:
        self._state.lose()
        if self.untold:
            self.tell_lost()

    def tell_lost(self) -> None:
        """Tell of the loss, by an event and, if there is still a holder, by ``on_lost``; once."""
        torn = self.torn
        reason = because(ReasonCode.NEVER_RELEASED) if torn else self._state.loss()
        if not self._state.tell_once():
            return
        try:
            tell(self, EventKind.LOST, error=LeaseLost(reason, name=self.name))
        finally:  # a listener may want to exit
            if not torn:
                call_on_lost(self, self._on_lost)

    def _tell_end(self, kind: EventKind, votes: Sequence[Vote] | None = None) -> None:
        """Tell how the lease ended; once, though it may be lost while it is released."""
        if self._state.tell_once():
            tell(self, kind, votes=votes)
