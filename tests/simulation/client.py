"""What a user of locks does, as a generator on top of the algorithm's."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from django_redlock.core import acquire, hold
from django_redlock.core.errors import LeaseLost, LockTaken, NodesUnavailable, RedlockError
from django_redlock.core.limited import Slots
from django_redlock.core.policy import LEAST_DRIFT, Policy
from django_redlock.core.protocol import Answer, Effect, Grant, LockKeys, Sleep, Vote
from django_redlock.core.reasons import ReasonCode
from tests.support.alone import Alone

from .patience import Wish
from .profiles import MAX_TTL, SLACK

if TYPE_CHECKING:
    from .checker import Belief
    from .places import Process
    from .world import World

Acts: TypeAlias = Generator[Effect, Any, Any]


class Cancelled(BaseException):
    """Somebody interrupts the client."""


class Client:
    """One process with one thread, and clocks of its own."""

    def __init__(self, world: World, number: int, size: int, process: Process) -> None:
        profile, random = world.profile, world.random
        self.world = world
        self.label = f"c{number}"
        self.process = process
        self._rate = 1 + world.wrong() * profile.rate
        if not profile.trusted:
            self._rate *= 0.01  # the machine gets no time, so its owner believes for too long
        self._offset = random.uniform(0, 1000)
        self.error = random.uniform(-1, 1) * profile.wall  # of its wall clock
        if profile.ahead and number == 0:
            self.error = profile.ahead
        self.suspended = 0.0  # seconds, all in all; its clock counts them
        self.policy = Policy(
            size=size,
            max_ttl=MAX_TTL,
            slack=SLACK,
            clock=self.clock,
            wall=self.wall,
            nonce=world.nonce,
            uniform=random.uniform,
        )
        self.names = [f"name{i}" for i in range(profile.names)]
        self.nonces: set[str] = set()  # of this turn
        self.given: set[str] = set()
        self.belief: Belief | None = None
        self.trying = ""  # the nonce of the attempt that it is in the middle of
        self.wish: Wish | None = None

    @property
    def doomed(self) -> bool:
        """Whether it disappears at its next step."""
        return self.process.doomed

    def clock(self) -> float:
        """Its own monotonic clock."""
        return self._offset + self.world.now * self._rate

    def share_clock(self, other: Client) -> None:
        """It is another thread of that one's process."""
        self._rate, self._offset = other._rate, other._offset

    def wall(self) -> int:
        """Its wall clock, in microseconds."""
        if not self.world.profile.wishes:
            return 0
        return int((1000.0 + self.world.now + self.error) * 1_000_000)

    def suspend(self, seconds: float) -> None:
        """The machine stops, and its steady clock goes on."""
        self.suspended += seconds
        self.process.awake = max(self.process.awake, self.world.now + seconds)
        self._look_again()

    def set_wall(self, error: float) -> None:
        """Somebody sets the wall clock."""
        self.error = error
        self._look_again()

    def _look_again(self) -> None:
        """What it believes follows its clock, should that not be a steady one."""
        if self.belief is not None and self.belief.until > self.world.now:
            self.belief.until = self.exact(self.belief.grant.deadline)

    def stepped(self) -> None:
        """It has come as far as its next effect."""

    def exact(self, moment: float) -> float:
        """A moment of its clock, on the world's."""
        return (moment - self._offset) / self._rate

    def seconds(self, seconds: float) -> float:
        """A span on its clock, as the world sees it."""
        return seconds / self._rate if self.world.profile.trusted else seconds

    # -- a life ---------------------------------------------------------------------------------

    def life(self) -> Acts:
        """Take turns until the world ends."""
        random, profile = self.world.random, self.world.profile
        while True:
            try:
                think = random.uniform(0, profile.think)
                yield Sleep(math.inf if self.world.closing else think)
                yield from self._turn()
            except RedlockError as error:
                self.world.note(type(error).__name__, self.label)
                if isinstance(error, NodesUnavailable):
                    self.world.checker.unavailable(self.label)
            except Cancelled:
                self.world.note("cancelled", self.label)
            for nonce in sorted(self.nonces - self.given):
                self.world.network.over(nonce)
            self.nonces.clear()

    def _ttl(self) -> float:
        return self.world.random.choice(self.world.profile.ttls)

    def _turn(self) -> Acts:
        random, profile = self.world.random, self.world.profile
        ttl = self._ttl()
        if self.world.offers and random.random() < 0.7:
            target, nonce = self.world.offers.pop(0)
            try:
                grant = yield from acquire.adopt(
                    self.policy, target, old=nonce, label=self.label, ttl=ttl
                )
            except (LockTaken, NodesUnavailable):  # the handle is as good as before
                self.world.offers.append((target, nonce))
                raise
            self.world.note("adopted", self.label, grant.nonce)
        else:
            grant = yield from self._acquire(self._target(), ttl, random.choice(profile.wait))
        now, until = self.world.now, self.exact(grant.deadline)
        belief = self.belief = self.world.checker.granted(self.label, grant, now, until)
        self.world.note("granted", self.label, grant.nonce, grant.fence)
        if random.random() < profile.die:
            self.process.die()
        try:
            yield from self._use(belief)
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._release(belief)
            raise
        yield from self._release(belief)

    def _acquire(self, target: LockKeys, ttl: float, wait: float) -> Generator[Effect, Any, Grant]:
        since = self.world.now
        limit = self.world.profile.limit
        slots = Slots(self.policy, target.names[0], limit)
        keys = [each.keys for each in slots] or [target.keys]
        self.wish = Wish(target.name, keys, since, since + self.seconds(wait)) if wait else None
        try:
            wanted: acquire.Wanted = slots if limit else acquire.Names(self.policy, target)
            grant = yield from acquire.acquire(
                self.policy, wanted, label=self.label, ttl=ttl, wait=wait
            )
        finally:
            self.wish = None
            self.trying = ""
        self.world.patience.granted(self, grant, since)
        return grant

    def _target(self) -> LockKeys:
        """One name or two, of which each pair shares a counter; who wants two says one twice."""
        random, profile = self.world.random, self.world.profile
        count = 2 if random.random() < profile.many and len(self.names) > 1 else 1
        names = random.sample(self.names, count)
        target = self.policy.target([*names, *names[: count - 1]])
        fields = tuple(str(int(name.removeprefix("name")) // 2) for name in target.names)
        return target._replace(fields=fields)

    def _use(self, belief: Belief) -> Acts:
        """Hold it, and at the end change the row, if the world has one."""
        row = self.world.rows.get(belief.grant.target.names[0])
        read = row.enter(belief.grant.fence) if row else None
        yield from self._hold(belief)
        if row is None or read is None or self.clock() >= belief.grant.deadline:
            return
        yield Sleep(0)  # between the look at the lease and the write a machine may be suspended
        written = row.write(self.label, belief.grant.fence, read)
        self.world.note("written" if written else "write refused", self.label)

    def _hold(self, belief: Belief) -> Acts:
        random, profile = self.world.random, self.world.profile
        while True:
            yield Sleep(random.uniform(0, profile.hold) * belief.grant.ttl)
            if random.random() < profile.give and self.clock() < belief.grant.deadline:
                self._give(belief.grant, belief)
                return
            if random.random() >= profile.extend:
                return
            lease = Alone(self.policy, belief.grant)
            try:
                (outcome,) = yield from hold.extend_many(
                    self.policy,
                    [lease],
                    [random.choice(profile.ttls)],
                    partial(self._extended, belief, lease),
                )
            finally:  # also where it is interrupted: nodes that were to be healed are released
                belief.grant = belief.grant._replace(touched=lease.grant.touched)
            if isinstance(outcome, LeaseLost):
                return
            if isinstance(outcome, NodesUnavailable):
                self.world.checker.unavailable(self.label)

    def _extended(self, belief: Belief, lease: Alone, place: int, outcome: hold.Outcome) -> None:
        """Believe for longer from the moment when that is known; a heal may come after it."""
        lease.extended(place, outcome)
        if isinstance(outcome, LeaseLost) and outcome.code == ReasonCode.REVOKED:
            self.world.note("told of the revoker", self.label)
            self.world.checker.told_revoked(self.label, belief.grant.nonce)
        if isinstance(outcome, Grant):
            belief.grant = outcome
            self.world.note("extended", self.label, outcome.nonce)
            self.world.checker.extended(belief, self.world.now, self.exact(outcome.deadline))

    def _give(self, grant: Grant, belief: Belief) -> None:
        """Stop believing, and offer the tenancy, once in a while twice."""
        self.world.checker.ended(belief)
        self.given.add(grant.nonce)
        self.world.note("given away", self.label, grant.nonce)
        copies = self.world.random.choice((1, 2, 2))
        self.world.offers += [(grant.target, grant.nonce)] * copies

    def _release(self, belief: Belief) -> Acts:
        """Stop believing, and only then tell the nodes."""
        if belief.grant.nonce in self.given:
            return
        random, profile = self.world.random, self.world.profile
        self.world.checker.ended(belief)
        rest = random.uniform(0, MAX_TTL) if random.random() < profile.rest else 0.0
        votes = yield from hold.release(self.policy, belief.grant, min_hold=rest)
        self._rests(belief.grant, rest, votes)

    def _rests(self, grant: Grant, rest: float, votes: Sequence[Vote]) -> None:
        """What a majority keeps for the rest of ``min_hold`` nobody gets earlier.

        Nobody gets it earlier than by what clocks may run apart, and where no node forgets it.
        """
        profile = self.world.profile
        told = sum(vote.answer is Answer.YES for vote in votes)
        if told >= self.policy.majority and not (profile.restarts or profile.vanish):
            until = self.exact(grant.since + rest) - (rest * self.policy.drift + LEAST_DRIFT)
            if until > self.world.now and not profile.jumps:
                self.world.checker.rests(grant.target.entries, until)
