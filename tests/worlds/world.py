"""Virtual time, and a driver for the production generators that pauses, cancels and kills."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django_redlock.protocol import (
    Answer,
    Ask,
    Command,
    Leave,
    Line,
    Stand,
    Stood,
    Target,
    Vote,
    Wait,
)

from . import NODE_TIMEOUT, PROFILES, Profile
from .checker import Checker, Violation
from .client import Acts, Cancelled, Client
from .network import Network

EVENTS_KEPT = 40


@dataclass(slots=True)
class Driven:
    """A client with the steps it is in the middle of."""

    world: World
    client: Client
    steps: Acts
    turn: int = 0  # grows with every step; what belongs to an earlier one comes too late
    ask: Ask | None = None
    ballot: list[Vote | None] = field(default_factory=list)
    cancelling: bool = False

    def step(self, turn: int, value: Any = None, error: BaseException | None = None) -> None:
        """Let the client go on, unless it has already."""
        if turn != self.turn:
            return
        self.turn += 1
        self.ask = None
        if self.client.doomed:
            self.world.note("gone for ever", self.client.label)
            return
        effect = self.steps.send(value) if error is None else self.steps.throw(error)
        if isinstance(effect, Line | Leave):
            self.step(self.turn, isinstance(effect, Line) or "")
        elif isinstance(effect, Stand):
            delay = self.client.seconds(effect.seconds) + self.world.pause()
            self.world.after(delay, partial(self.step, self.turn, Stood()))
        elif isinstance(effect, Wait):
            self.cancelling = False
            delay = self.client.seconds(effect.seconds) + self.world.pause()
            self.world.after(delay, partial(self.step, self.turn))
        else:
            self._begin(effect)

    def _begin(self, ask: Ask) -> None:
        world = self.world
        world.asked[ask.command] += 1
        if ask.command is Command.GRANT:
            names = tuple(key.rpartition(":")[2] for key in ask.keys[3:])
            world.checker.attempt(ask.nonce, names)
            self.client.nonces.add(ask.nonce)
            world.network.begun(ask.nonce)
            if world.chance(world.profile.cancel):
                world.after(world.random.expovariate(50), self._cancel)
        pause = world.pause()
        if pause:
            world.after(pause, partial(self._send, self.turn, ask))
        else:
            self._send(self.turn, ask)

    def _send(self, turn: int, ask: Ask) -> None:
        if turn != self.turn:
            return
        self.ask, self.ballot = ask, [None] * len(self.world.network.nodes)
        self.world.network.send(self.client.label, ask, Hearing(self, turn))
        self.decide(turn)
        delay = self.client.seconds(NODE_TIMEOUT)
        self.world.after(delay, partial(self._finish, turn))

    def decide(self, turn: int) -> None:
        """Go on if the asker has heard enough."""
        if (
            turn == self.turn
            and self.ask
            and (None not in self.ballot or self.ask.decided(self.ballot))
        ):
            self._finish(turn)

    def _finish(self, turn: int) -> None:
        """Hand over the votes; who was not heard is lost."""
        if turn != self.turn or self.ask is None:
            return
        self.ask = None
        nodes = self.world.network.nodes
        votes = [
            vote or Vote(node.label, Answer.LOST, why="no answer")
            for vote, node in zip(self.ballot, nodes, strict=True)
        ]
        pause = self.world.pause()
        if pause:
            self.world.after(pause, partial(self.step, turn, votes))
        else:
            self.step(turn, votes)

    def _cancel(self) -> None:
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
        driven = self.driven
        if self.turn == driven.turn and driven.ask is not None and driven.ballot[i] is None:
            driven.ballot[i] = vote
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
        self.offers: list[tuple[Target, str]] = []
        self.checker = Checker(exclusive=profile.trusted, reachable=profile.name == "calm")
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._nonces = itertools.count(1)
        size = self.random.choice(profile.nodes)
        self.network = Network(self, size)
        count = self.random.randint(*profile.clients)
        clients = [Client(self, number, size) for number in range(count)]
        self._driven = [Driven(self, client, client.life()) for client in clients]

    def run(self) -> None:
        """Let time pass to the end.

        Raises:
            Violation: with the seed, and what happened last.
        """
        for driven in self._driven:
            self.after(0.0, partial(driven.step, 0))
        for node in self.network.nodes:
            self._misfortune(node)
        try:
            while self._queue and self._queue[0][0] <= self.profile.seconds:
                self.now, _, action = heapq.heappop(self._queue)
                action()
        except Violation as violation:
            raise Violation(f"{violation}\n{self.story()}") from None
        finally:
            for driven in self._driven:
                driven.steps.close()  # a generator that is closed asks nothing more

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

    def pause(self) -> float:
        """How long a client stands still at this step."""
        return (
            self.random.uniform(0, self.profile.longest) if self.chance(self.profile.pause) else 0.0
        )

    def nonce(self) -> str:
        """A value that nobody had before."""
        return f"{next(self._nonces):032x}"

    # -- misfortunes of nodes -------------------------------------------------------------------

    def _misfortune(self, node: Any) -> None:
        profile = self.profile
        if not profile.trusted:
            self.after(self.random.expovariate(2), partial(self._jump, node))
        if profile.restarts:
            self.after(self.random.expovariate(1 / profile.restarts), partial(self._restart, node))

    def _jump(self, node: Any) -> None:
        node.error += self.random.uniform(-0.5, 1.0)
        self.note("clock jumps", node.label)
        self.after(self.random.expovariate(2), partial(self._jump, node))

    def _restart(self, node: Any) -> None:
        """Down for a moment, then up in one way or another; or emptied without a restart."""
        self.network.excused.update(*(driven.client.nonces for driven in self._driven))
        if self.chance(self.profile.flush):
            self.note("flushed", node.label)
            node.flush()
        elif self.chance(0.2):
            self.note("saved", node.label)
            node.save()
        else:
            how = "with data"
            if self.profile.trusted:
                how = self.random.choice(("with data", "stale", "empty"))
            node.crash()
            self.note("restarts", node.label, how)
            self.after(self.random.expovariate(20), partial(node.start, how))
        self.after(self.random.expovariate(1 / self.profile.restarts), partial(self._restart, node))

    # -- telling --------------------------------------------------------------------------------

    def note(self, what: str, *details: object) -> None:
        """Remember what happened."""
        self.met[what] += 1
        self.log.append((self.now, (what, *details)))

    def story(self) -> str:
        """How to see it again, and the last events."""
        head = f"profile {self.profile.name}, seed {self.seed}: python -m tests.worlds"
        return "\n".join(
            [
                f"{head} --profile {self.profile.name} --worlds 1 --seed {self.seed}",
                *(f"{now:10.6f}  {' '.join(map(str, what))}" for now, what in self.log),
            ]
        )


def play(seed: int, profile: Profile | None = None) -> World:
    """One world, to its end; the seed chooses the profile if none is given."""
    world = World(seed, profile or PROFILES[seed % len(PROFILES)])
    world.run()
    return world
