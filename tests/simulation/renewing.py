"""Worlds in which leases are renewed, by production's own schedule and batches.

Clients come in pairs that share a process: its clock, its watchdog, and the messages that renew
for both. The watchdog and the one who asks the nodes for it are steps of their own, as they are
threads of their own in production, whose code for that (``Watchdog``) does not
run here and is tested on real nodes; and connections between a client and nodes are cut for a
while.

What must be true beside all that ``checker`` knows: a holder is told of a loss at its deadline and
not later; and never while it has time left and a majority still has its keys. A holder believes
what its lease says, and nothing is renewed beyond its ``max_hold``.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from django_redlock.backend import Backend
from django_redlock.core.hold import Outcome
from django_redlock.core.protocol import Request, Sleep
from django_redlock.core.reasons import ReasonCode, code_of
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import Reference, RenewalBatch, RenewalSchedule, Wounded, batches

from .checker import Belief, Broken, Violation
from .client import Acts, Client
from .network import Connection, Hearer, Network
from .places import Process
from .profiles import CALM, NODE_TIMEOUT, Profile, profile
from .revoking import LABEL
from .world import Driven, World

CUTS: Final = 0.5  # mean seconds between two cuts of a client's connections
LONGEST_CUT: Final = 0.5
PUNCTUAL: Final = 0.001  # seconds by which a loss may be told late

LASTING: Final[dict[str, Any]] = {
    "nodes": (3, 4, 5),
    "clients": (2, 6),
    "give": 0.0,
    "names": 4,
    "many": 0.2,
}
PROFILES: Final = (
    replace(
        CALM,
        name="kept",
        about="A network without faults. Nobody may be told of a loss.",
        hold=8.0,
        ttls=(0.1, 0.2),
        wait=(0.5,),
        seconds=2.0,
        **LASTING,
    ),
    replace(
        profile("tenacious"),
        name="cut",
        about="Connections are cut, messages are lost; holders are never paused.",
        hold=6.0,
        pause=0.0,
        cancel=0.0,
        ttls=(0.2, 0.3),
        seconds=2.5,
        **LASTING,
    ),
    replace(
        profile("tenacious"),
        name="cut-and-paused",
        about="The same, and every thread of a client stands still now and then.",
        hold=6.0,
        seconds=2.5,
        **LASTING,
    ),
    replace(
        CALM,
        name="rolling",
        about="All nodes restart empty, one after the other, each when the guard of the one "
        "before is over. Nobody may be told of a loss.",
        hold=20.0,
        ttls=(0.2, 0.4),
        wait=(0.5,),
        seconds=6.5,
        rolling=1.3,
        hows=("empty",),
        reachable=False,
        **LASTING,
    ),
    replace(
        profile("tenacious"),
        name="restarted",
        about="Nodes restart or are emptied at any time, connections are cut, holders are paused.",
        hold=6.0,
        restarts=2.0,
        flush=0.3,
        seconds=3.0,
        **LASTING,
    ),
    replace(
        CALM,
        name="forgotten",
        about="Nodes lose keys that are being renewed, one node at a time; messages are lost.",
        loss=0.15,
        hold=8.0,
        vanish=1.0,
        exclusive=False,
        reachable=False,
        ttls=(0.1, 0.2),
        wait=(0.5,),
        seconds=2.0,
        **LASTING,
    ),
    replace(
        profile("tenacious"),
        name="revoked-and-renewed",
        about="Somebody takes locks away from holders that are renewed; connections are cut.",
        hold=16.0,
        cancel=0.0,
        pause=0.02,
        loss=0.25,
        ttls=(0.4, 0.8),
        seconds=2.5,
        revokes=0.1,
        **LASTING,
    ),
)


class Told(RenewalBatch):
    """A batch that says when a lease knows its outcome, for others may be healed after that."""

    def __init__(
        self, backend: Backend, batch: Sequence[Reference], told: Callable[[Lease], object]
    ) -> None:
        super().__init__(backend, batch)
        self._tell = told

    def _hear(self, i: int, outcome: Outcome) -> None:
        super()._hear(i, outcome)
        self._tell(self.leases[i])


class Watchdog:
    """One process's, with its thread and the one that asks."""

    def __init__(self, client: Keeper) -> None:
        self.client = client
        self.world = client.world
        self.schedule = RenewalSchedule()
        self.beliefs: dict[str, Belief] = {}
        self.told: Counter[str] = Counter()
        self._jobs: deque[tuple[Backend, Sequence[Reference]]] = deque()
        self._wounded = Wounded()
        self._thread = self._start(self._watching())
        self._asker: Driven | None = None

    def _start(self, steps: Acts) -> Driven:
        driven = Driven(self.world, self.client, steps)
        cast("KeepingWorld", self.world).threads.append(driven)
        self.world.after(0.0, partial(driven.step, 0))
        return driven

    def watch(self, lease: Lease, belief: Belief) -> None:
        """Look after a lease."""
        self.beliefs[belief.grant.nonce] = belief
        self.schedule.add(lease)
        self._wake()
        self._expect(lease)

    def _wake(self) -> None:
        self.world.after(0.0, partial(self._thread.step, self._thread.turn))

    def _watching(self) -> Acts:
        clock = self.client.clock
        while True:
            yield Sleep(max(0.0, self.schedule.next() - clock()))
            over, due = self.schedule.take(clock())
            for lease in over:
                if lease.run_out():
                    lease.tell_lost()
            self._jobs += batches(due)
            if self._jobs and self._asker is None:
                self._asker = self._start(self._asking())

    def _asking(self) -> Acts:
        while self._jobs or self._wounded:
            if not self._jobs:
                yield from self._healing()
                continue
            renewal = Told(*self._jobs.popleft(), self._expect)
            self.world.note("shared" if len(renewal.leases) > 1 else "renewal")
            with self.world.network.healing(lease.grant.nonce for lease in renewal.leases):
                yield from renewal.steps()
            self._wounded.update(renewal.wounded)
            for lease in renewal.leases:
                self.schedule.renew_later(lease)
                self._expect(lease)
            self._wake()
            for lease in renewal.lost:
                lease.tell_lost()
        self._asker = None
        yield Sleep(math.inf)

    def _healing(self) -> Acts:
        healing = self._wounded.next_one()
        if healing is not None:
            with self.world.network.healing([healing.lease.grant.nonce]):
                yield from healing.steps()

    # -- what must be true ----------------------------------------------------------------------

    def _expect(self, lease: Lease) -> None:
        """Follow what the lease believes, and see to it that the end of that is told."""
        belief, until = self.beliefs[lease.grant.nonce], self.client.exact(lease.grant.deadline)
        if lease.held and until != belief.until:
            belief.grant = lease.grant
            self.world.note("extended", lease.grant.nonce)
            self.world.checker.extended(belief, self.world.now, until)
            self._see_to_the_end(lease, until)
        self.world.at(until + PUNCTUAL, partial(self._look, lease))

    def _see_to_the_end(self, lease: Lease, until: float) -> None:
        last = self.client.exact(lease.renew_until + lease.grant.ttl) + NODE_TIMEOUT
        if self.world.profile.name == "kept" and until > last:
            how = f"{self.client.label} is renewed beyond its max_hold"
            raise Violation(Broken.OVERSTAYED, how)

    def _look(self, lease: Lease) -> None:
        late = self.client.clock() - lease.grant.deadline
        punctual = not (self.world.profile.pause or self.client.doomed)
        if punctual and lease.held and late >= PUNCTUAL / 2:
            raise Violation(Broken.LATE, f"{self.client.label} is not told that its lease is over")

    def on_lost(self, lease: Lease) -> None:
        """A holder is told."""
        grant = lease.grant
        self.world.note("told", grant.nonce)
        self.told[grant.nonce] += 1
        promise, wrong = Broken.UNTRUE, self._wrong(lease)
        if code_of(lease.loss()) == ReasonCode.REVOKED:
            self.world.note("told of the revoker", self.client.label)
            taken = self.world.checker.is_taken(grant.nonce)
            promise, wrong = Broken.STRANGER, "" if taken else "and nobody took its lock"
        if wrong:  # later: whatever this raises is caught, as a user's error
            how = f"{self.client.label} is told of a loss, {wrong}"
            self.world.after(0.0, partial(_throw, promise, how))

    def _wrong(self, lease: Lease) -> str:
        grant, nodes = lease.grant, self.world.network.nodes
        if self.told[grant.nonce] > 1:
            return "and knows it"
        calm = self.world.profile.name in ("kept", "rolling")
        if calm and self.client.clock() < lease.renew_until:
            return "and nothing was wrong"
        having = sum(
            all((node.memory.get(key) or "").startswith(grant.nonce) for key in grant.target.keys)
            for node in nodes
        )
        if self.client.clock() < grant.deadline and having > len(nodes) // 2:
            return f"with time left and {having} nodes"
        return ""


def _throw(promise: Broken, how: str) -> None:
    raise Violation(promise, how)


class Keeper(Client):
    """Half of a process; holds leases that are renewed."""

    def __init__(self, world: World, number: int, size: int, partner: Keeper | None) -> None:
        super().__init__(world, number, size, partner.process if partner else Process(world))
        if partner is not None:
            self._rate, self._offset = partner._rate, partner._offset
            self.policy = partner.policy
        backend = Backend("simulated", cast("Any", self), self.policy, ttl=self.policy.max_ttl)
        self.backend: Backend = partner.backend if partner else backend
        self.watchdog: Watchdog = partner.watchdog if partner else Watchdog(self)
        self.lease: Lease | None = None

    def _hold(self, belief: Belief) -> Acts:
        random, hold = self.world.random, self.world.profile.hold * belief.grant.ttl
        most = random.choice((None, None, hold / 2))
        lease = self.lease = Lease(
            self.backend, belief.grant, renew=True, max_hold=most, on_lost=self.watchdog.on_lost
        )
        self.watchdog.watch(lease, belief)
        end = self.clock() + random.uniform(0, hold)
        while self.clock() < end and not lease.lost:
            yield Sleep(random.uniform(0, 0.3) * belief.grant.ttl)

    def _release(self, belief: Belief) -> Acts:
        assert self.lease is not None  # it was made before the first effect of holding
        belief.grant = self.lease.grant
        yield from self.lease._releasing()

    def stepped(self) -> None:
        """It believes what its lease says, and no longer."""
        belief, lease = self.belief, self.lease
        if belief is None or lease is None or lease.grant.nonce != belief.grant.nonce:
            return
        if lease.remaining() <= 0:
            self.world.checker.ended(belief)


class CutNetwork(Network):
    """Some connections of some clients are cut now and then: nothing arrives on them."""

    def __init__(self, world: World, size: int) -> None:
        super().__init__(world, size)
        self.cuts: set[tuple[str, int]] = set()

    def _write(self, channel: Connection, i: int, ask: Request, hearer: Hearer) -> None:
        if (channel.client, i) in self.cuts:
            self.world.note("cut", channel.client, ask.command.value, i)
            channel.owed.append(("", self.world.now))
            self._excuse(ask)
            return
        super()._write(channel, i, ask, hearer)


class KeepingWorld(World):
    """A function of profile and seed."""

    def __init__(self, seed: int, profile: Profile) -> None:
        super().__init__(seed, profile)
        size = len(self.network.nodes)
        self.threads: list[Driven] = []
        self.network: CutNetwork = CutNetwork(self, size)
        keepers: list[Keeper] = []
        for number in range(len(self.clients)):
            keepers.append(Keeper(self, number, size, keepers[-1] if number % 2 else None))
        self.clients = list[Client](keepers)
        self._driven = [Driven(self, client, client.life()) for client in self.clients]
        if profile.loss:
            labels = [*(client.label for client in self.clients), *[LABEL] * bool(profile.revokes)]
            for label in labels:
                self._again(CUTS, self._cut, label)

    def _cut(self, client: str) -> None:
        count = self.random.randint(1, len(self.network.nodes))
        cuts = {(client, i) for i in self.random.sample(range(len(self.network.nodes)), count)}
        self.network.cuts |= cuts
        mended = partial(self.network.cuts.difference_update, cuts)
        self.after(self.random.uniform(0, LONGEST_CUT), mended)
