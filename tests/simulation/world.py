"""Virtual time, and a driver for the production generators that pauses, cancels and kills."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from django_redlock.core.commands import Extend
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import (
    Answer,
    BlockOnNode,
    Command,
    JoinQueue,
    LeaveQueue,
    LockKeys,
    Request,
    Sleep,
    Vote,
)
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.nodes.exchange import LINGER, OVER, Exchange

from . import places
from .checker import Broken, Checker, Violation
from .client import Acts, Cancelled, Client
from .foreign import Foreign
from .network import Network, SimNode
from .patience import Patience
from .places import Place, Process
from .profiles import NODE_TIMEOUT, Profile
from .revoking import Revoker
from .row import Row

EVENTS_KEPT = 40
CLOSING = 1.5  # seconds until everybody must have left
SILENT: Final = because(ReasonCode.NO_ANSWER, seconds=NODE_TIMEOUT)

TRYING: Final = frozenset({Command.GRANT, Command.RAISE})

T = TypeVar("T")


class SimulatedRound(Exchange):
    """Production's round, over simulated wires: all nodes are prompt."""

    def _is_prompt_one_missing(self) -> bool:
        return bool(self.unheard)


@dataclass(slots=True)
class Driven:
    """A client with the steps it is in the middle of."""

    world: World
    client: Client
    steps: Acts
    turn: int = 0  # grows with every step; what belongs to an earlier one comes too late
    collector: SimulatedRound | None = None  # while the nodes are asked
    cancelling: bool = False
    place: Place | None = None  # in a queue

    def step(self, turn: int, value: Any = None, error: BaseException | None = None) -> None:
        """Let the client go on, unless it has already."""
        if turn != self.turn:
            return
        self.turn += 1
        self.collector = None
        if self.client.doomed:
            self.world.note("gone for ever", self.client.label)
            return
        effect = self.steps.send(value) if error is None else self.steps.throw(error)
        self.client.stepped()
        if isinstance(effect, JoinQueue | BlockOnNode | LeaveQueue):
            places.begin(self, effect)
            self.maybe_die()
        elif isinstance(effect, Sleep):
            self.cancelling = False
            delay = self.client.seconds(effect.seconds) + self._pause()
            self.world.after(delay, partial(self.step, self.turn))
        else:
            self._begin(effect)

    def resume(self, turn: int, value: object) -> None:
        """Let the client go on with this, unless it has already; it may be suspended first."""
        if turn != self.turn:
            return
        pause = self._pause()
        if pause:
            self.world.after(pause, partial(self.step, turn, value))
        else:
            self.step(turn, value)

    def maybe_die(self) -> None:
        """Perhaps it will not live to see its turn."""
        if self.place is not None and self.world.chance(self.world.profile.dies_waiting):
            soon = self.world.random.expovariate(1 / 0.1)
            self.world.note("dies", self.client.label)
            self.world.after(soon, self.client.process.die)

    def forget_place(self) -> None:
        """Stand in no queue."""
        if self.place is not None:
            self.place.close()
            self.place = None

    def _begin(self, ask: Request) -> None:
        world = self.world
        world.asked[ask.command] += 1
        self.client.trying = ask.nonce if ask.command in TRYING else ""
        if isinstance(ask, Extend):
            for lease in ask.leases:
                world.checker.asks(lease.nonce, world.now)
        if ask.command is Command.GRANT:
            names = tuple(key.rpartition(":")[2] for key in ask.keys[3:])
            world.checker.attempt(ask.nonce, names)
            self.client.nonces.add(ask.nonce)
            world.network.begun(ask.nonce)
            if world.chance(world.profile.cancel):
                soon = world.random.choice((0.02, 0.2))  # while it is granted, or held
                world.after(world.random.expovariate(1 / soon), self.cancel)
        pause = self._pause()
        if pause:
            world.after(pause, partial(self._send, self.turn, ask))
        else:
            self._send(self.turn, ask)

    def _send(self, turn: int, ask: Request) -> None:
        if turn != self.turn:
            return
        world = self.world
        if ask.still is not None and not ask.still():
            votes = [Vote(node.label, Answer.UNKNOWN, sent=False) for node in world.network.nodes]
            self.resume(turn, votes)
            return
        nodes: Any = world.network.nodes  # only their labels are of interest
        self.collector = SimulatedRound(nodes, ask, NODE_TIMEOUT, clock=lambda: world.now)
        no_connection: Any = None
        self.collector.unheard.update(dict.fromkeys(self.collector.asked, no_connection))
        world.network.send(self.client.label, ask, Hearing(self, turn))
        self.decide(turn)
        delay = self.client.seconds(NODE_TIMEOUT)
        world.after(delay, partial(self._finish, turn))

    def decide(self, turn: int) -> None:
        """Go on if the asker has heard enough, perhaps a moment later: production decides."""
        if turn != self.turn or self.collector is None:
            return
        before, verdict = self.collector.lingering, self.collector.verdict()
        if verdict is OVER:
            self._finish(turn)
        elif verdict is LINGER and not before:
            delay = self.collector.lingers_until - self.world.now
            self.world.after(delay, partial(self._finish, turn))

    def _finish(self, turn: int) -> None:
        """Hand over the votes; one of a node that was not heard is unknown."""
        if turn != self.turn or self.collector is None:
            return
        nodes, found = self.world.network.nodes, self.collector.votes
        self.collector = None
        votes = [
            vote or Vote(node.label, Answer.UNKNOWN, reason=SILENT)
            for vote, node in zip(found, nodes, strict=True)
        ]
        self.resume(turn, votes)

    def _pause(self) -> float:
        """How long the client stands still at this step."""
        profile = self.world.profile
        if not self.world.chance(profile.pause):
            return 0.0
        pause = self.world.random.uniform(0, profile.longest)
        self.client.suspend(pause)
        self.world.note("suspended", self.client.label)
        return pause

    def close(self) -> None:
        """Nobody drives it any more; a generator that is closed may ask nothing.

        Raises:
            Violation: it does.
        """
        try:
            self.steps.close()
        except RuntimeError as error:
            how = f"{self.client.label} went on while it was closed: {error}"
            raise Violation(Broken.CLOSED, how) from None

    def cancel(self) -> None:
        """Interrupt whatever the client does; once, until it sleeps again."""
        if not self.cancelling and not self.client.doomed:
            self.cancelling = True
            self.world.note("cancel", self.client.label)
            self.step(self.turn, error=Cancelled())


@dataclass(slots=True)
class Hearing:
    """Takes the votes for one question."""

    driven: Driven
    turn: int

    def hear(self, i: int, vote: Vote) -> None:
        """Count a vote, if it is not too late."""
        driven, collector = self.driven, self.driven.collector
        if self.turn == driven.turn and collector is not None and collector.votes[i] is None:
            collector.votes[i] = vote
            collector.unheard.pop(i, None)
            driven.decide(self.turn)


class World:
    """A function of profile and seed."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.seed = seed
        self.profile = profile
        self.random = random.Random(f"{profile.name} {seed}")
        self.now = 0.0
        self.log: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=EVENTS_KEPT)
        self.met: Counter[str] = Counter()
        self.asked: Counter[Command] = Counter()
        self.offers: list[tuple[LockKeys, str]] = []
        self.checker = Checker(exclusive=profile.exclusive, reachable=profile.reachable)
        self.patience = Patience(self)
        self.closing = False
        names = [f"name{i}" for i in range(profile.names)] if profile.row else []
        self.rows = {name: Row(profile.row) for name in names}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._nonces = itertools.count(1)
        size = self.random.choice(profile.nodes)
        self.network = Network(self, size)
        count = self.random.randint(*profile.clients)
        self.clients: list[Client] = []
        for number in range(count):
            fellow = number % profile.threads
            process = self.clients[-1].process if fellow else Process(self)
            self.clients.append(Client(self, number, size, process))
            if fellow:
                self.clients[-1].share_clock(self.clients[-2])
        self._driven = [Driven(self, client, client.life()) for client in self.clients]
        majority = size // 2 + 1
        absent = {"": 0, "minority": size - majority, "majority": size - majority + 1}
        for node in self.random.sample(self.network.nodes, absent[profile.absent]):
            node.hangs, node.up = self.random.choice(((True, True), (False, False)))

    def run(self) -> None:
        """Let time pass to the end.

        Raises:
            Violation: with the seed, and what happened last.
        """
        for driven in self._driven:
            self.after(0.0, partial(driven.step, 0))
        self._misfortunes()
        try:
            self._until(self.profile.seconds)
            if self.profile.patience:
                self._close()
            for driven in self._driven:
                driven.close()
        except Violation as violation:
            story = f"{violation}\n{self.story()}"
            raise Violation(violation.promise, story) from None
        except Exception as error:
            error.add_note(self.story())
            raise
        finally:
            for driven in self._driven:
                with suppress(Violation):  # one is enough
                    driven.close()

    def _until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            self.checker.look(self.now)
            if self.profile.patience:
                self.patience.look(self.now)

    def _close(self) -> None:
        """Everybody is interrupted and comes no more; then nobody may be left in a queue."""
        self.note("closing")
        self.closing = True
        for driven in self._driven:
            driven.cancel()
        self._until(self.profile.seconds + CLOSING)
        self.patience.closed(self._driven)

    # -- time and chance ------------------------------------------------------------------------

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Do something then."""
        heapq.heappush(self._queue, (moment, next(self._order), action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Do something that much later."""
        self.at(self.now + delay, action)

    def chance(self, probability: float) -> bool:
        """Whether it happens this time."""
        return probability > 0 and self.random.random() < probability

    def latency(self) -> float:
        """How long one message takes."""
        if self.chance(self.profile.slow):
            return self.random.uniform(0, self.profile.slowest)
        return self.random.expovariate(1 / self.profile.latency)

    def wrong(self) -> float:
        """How wrong a clock's rate is: from -1 to 1, and either of these in a third of cases."""
        return max(-1.0, min(1.0, self.random.uniform(-1.5, 1.5)))

    def nonce(self) -> str:
        """A value that nobody had before."""
        return f"{next(self._nonces):032x}"

    # -- misfortunes ----------------------------------------------------------------------------

    def _misfortunes(self) -> None:
        profile = self.profile
        places = {
            Policy(size=len(self.network.nodes)).target([name]).queue_nodes[0]
            for name in self.clients[0].names
        }
        for place in sorted(places):
            self._again(profile.stalls, self._stall, self.network.nodes[place])
        if profile.foreign:
            Foreign(self)
        if profile.revokes:
            revoker = Revoker(self)
            self._driven.append(Driven(self, revoker, revoker.life()))
            self.after(0.0, partial(self._driven[-1].step, 0))
        for node in self.network.nodes:
            self._again(profile.jumps, self._jump, node)
            self._again(profile.restarts, self._restart, node)
            self._again(profile.vanish, self._vanish, node)
        for driven in self._driven:
            self._again(profile.steps, self._set_wall, driven.client)
        for place, node in enumerate(self.network.nodes if profile.rolling else ()):
            self.at((place + 0.5) * profile.rolling, partial(self._restart, node))

    def _again(self, mean: float, happen: Callable[[T], None], whom: T) -> None:
        """Let it happen to them, again and again; a mean of 0 is never."""
        if mean:

            def once() -> None:
                happen(whom)
                self._again(mean, happen, whom)

            self.after(self.random.expovariate(1 / mean), once)

    def _set_wall(self, client: Client) -> None:
        client.set_wall(self.random.uniform(-1, 1) * self.profile.wall)
        self.note("wall clock set", client.label)

    def _jump(self, node: SimNode) -> None:
        node.error += self.random.uniform(*self.profile.jump)
        self.note("clock jumps", node.label)

    def _stall(self, node: SimNode) -> None:
        """Do nothing for a while; what was sent lies there meanwhile."""
        if node.stalled > self.now:
            return
        node.stalled = self.now + self.random.uniform(0, self.profile.stall)
        self.note("hangs", node.label)

    def _vanish(self, node: SimNode) -> None:
        """A key is evicted, or deleted by hand; the counters stay."""
        for key in sorted(node.memory.keys):
            del node.memory.keys[key]
            self.note("vanishes", key, node.label)

    def _restart(self, node: SimNode) -> None:
        """Down for a moment, then up in one way or another; or emptied without a restart."""
        self.network.excused.update(*(driven.client.nonces for driven in self._driven))
        if self.chance(self.profile.flush):
            self.note("flushed", node.label)
            node.flush()
        elif self.chance(0.2):
            self.note("saved", node.label)
            node.save()
        else:
            how = self.random.choice(self.profile.hows)
            node.crash()
            self.note("restarts", node.label, how)
            self.after(self.random.expovariate(20), partial(node.start, how))

    # -- telling --------------------------------------------------------------------------------

    def note(self, what: str, *details: object) -> None:
        """Remember what happened."""
        self.met[what] += 1
        self.log.append((self.now, (what, *details)))

    def story(self) -> str:
        """How to see it again, and the last events."""
        head = f"profile {self.profile.name}, seed {self.seed}: python -m tests.simulation"
        return "\n".join(
            [
                f"{head} --profile {self.profile.name} --worlds 1 --seed {self.seed}",
                *(f"{now:10.6f}  {' '.join(map(str, what))}" for now, what in self.log),
            ]
        )
