"""Nodes that restart; connections that delay, lose, repeat, and get out of step."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from django_redlock.core.protocol import TAKING, UNDO, WITH_EPOCH, Answer, Command, Request, Vote
from django_redlock.core.reasons import Reason, ReasonCode, because
from django_redlock.nodes import replies as answers
from django_redlock.nodes.memory import MemoryNode

from .boots import Clock, Handshakes
from .checker import Broken, Violation
from .profiles import NODE_TIMEOUT

if TYPE_CHECKING:
    from .places import Place
    from .world import World


PendingReply: TypeAlias = tuple[str, float]  # a grant's nonce, or ""; when it was asked


class Hearer(Protocol):
    """A process that waits for votes."""

    def hear(self, i: int, vote: Vote) -> None:
        """Take the vote of node ``i``."""


@dataclass(slots=True)
class Connection:
    """A connection: first in, first out, either way. Remembers what the node owes.

    Attributes:
        client: whose it is.
        life, epoch: of the node, when the connection was opened.
        unread: an answer that lies on it and that nobody expects any more.
    """

    client: str
    life: int
    epoch: int | None
    owed: list[PendingReply] = field(default_factory=list)
    inbound: float = 0.0
    outbound: float = 0.0
    unread: list[object] = field(default_factory=list)
    closed: bool = False

    def silent(self, now: float) -> bool:
        """Whether its oldest question is overdue."""
        return bool(self.owed) and now - self.owed[0][1] > NODE_TIMEOUT


class SimNode:
    """A master that may be down, and that mistrusts itself for a while after a start."""

    def __init__(self, world: World, label: str) -> None:
        profile, rate = world.profile, world.wrong() * world.profile.rate
        self.world = world
        self.label = label
        self.error = world.random.uniform(-1, 1) * profile.wall
        self.memory = MemoryNode(
            lambda: (1000.0 + world.now * (1 + rate) + self.error) * 1000,
        )
        self.up = True
        self.hangs = False
        self.stalled = 0.0  # until when it does nothing, and then all at once
        self.places: list[Place] = []  # in its queues
        self.life = self.flushes = 0
        self.votes_from = 0.0
        self.clock = Clock(self)
        self._saved = self._image()

    def _image(self) -> tuple[dict, ...]:
        memory = self.memory
        kept: tuple[dict, ...] = (memory.keys, memory.fences, memory.waits, memory.wakeups)
        return tuple(map(copy.copy, kept))

    def save(self) -> None:
        """Write a snapshot to disk."""
        self._saved = self._image()

    def crash(self) -> None:
        """Go down, and with it every connection."""
        self.up = False
        self.life += 1
        self.stalled = 0.0
        self.memory.blocked.clear()
        for place in tuple(self.places):
            place.fall()

    def start(self, how: str) -> None:
        """Come up ``with data``, with a ``stale`` snapshot, or ``empty``; and begin the guard."""
        self.up = True
        self.votes_from = self.world.now + self.guard()
        if how == "stale":
            memory = self.memory
            memory.keys, memory.fences, memory.waits, memory.wakeups = map(copy.copy, self._saved)
        if how == "empty":
            self.flush()
        if self.world.profile.boots:
            self.clock.boot(self.world.profile.boots)

    def flush(self) -> None:
        """Lose the data without a restart; ``epoch`` comes back when it is admitted.

        Who is blocked on a queue stays so.
        """
        self.memory.keys, self.memory.fences, self.memory.held = {}, {}, {}
        self.memory.waits, self.memory.wakeups = {}, {}
        self.flushes += 1
        if self.world.profile.boots:
            return  # the first handshake that finds it old enough admits it
        then = self.life, self.flushes

        def admit() -> None:
            if (self.life, self.flushes) == then:  # the guard counts from the last one
                self.memory.fences.setdefault("epoch", int(self.world.now * 1000))

        self.world.after(self.guard(), admit)

    def votes(self) -> bool:
        """Whether a new connection would find that it may be asked."""
        return self.world.now >= self.votes_from and "epoch" in self.memory.fences

    def guard(self) -> float:
        """Seconds without a vote."""
        return self.world.profile.guard


class Network:
    """Carries questions to the nodes, and votes back."""

    def __init__(self, world: World, size: int) -> None:
        self.world = world
        self.nodes = [SimNode(world, f"node{i}") for i in range(size)]
        self._channels: dict[tuple[str, int], list[Connection]] = {}
        self._handshakes = Handshakes(world)
        self._flying: Counter[str] = Counter()
        self._sent = itertools.count(1)
        self._latest: Counter[tuple[str, int]] = Counter()
        self._over: set[str] = set()  # nonces that must not be on any node any more
        self.excused: set[str] = set()  # nonces whose undoing did not get through

    def send(self, client: str, ask: Request, hearer: Hearer) -> None:
        """Put the question on every wire; then tell who is not asked."""
        unsent: dict[int, Reason | None] = {}
        early: dict[int, Vote] = {}
        for i, node in enumerate(self.nodes):
            if ask.to is not None and i not in ask.to:
                unsent[i] = None
            elif not node.up:
                unsent[i] = because(ReasonCode.DOWN)
                self._excuse(ask)
            elif ask.command not in UNDO and not self._may_vote(client, node):
                unsent[i] = because(ReasonCode.RESTART_GUARD, seconds=0.0)
            elif ask.command is Command.HEAL and self._owing(client, i, ask.nonce):
                unsent[i] = because(ReasonCode.GRANT_UNANSWERED)
            else:
                channel = self._channel(client, i, ask)
                self._write(channel, i, ask, hearer)
                if channel.unread:
                    early[i] = self._read(channel, i, ask)
        for i, why in unsent.items():
            early[i] = Vote(self.nodes[i].label, Answer.UNKNOWN, reason=why, sent=False)
        for i, vote in early.items():
            hearer.hear(i, vote)

    def _may_vote(self, client: str, node: SimNode) -> bool:
        if not self.world.profile.boots:
            return node.votes()
        asker = next(each for each in self.world.clients if each.label == client)
        return self._handshakes.may_vote(asker, node)

    def _excuse(self, ask: Request) -> None:
        if ask.command in UNDO:
            self.excused.add(ask.nonce)

    def _channel(self, client: str, i: int, ask: Request) -> Connection:
        """Undoing goes behind the grant while that is owed; else one that is not overdue."""
        node, now = self.nodes[i], self.world.now
        channels = self._channels.setdefault((client, i), [])
        channels[:] = [each for each in channels if each.life == node.life and not each.closed]
        if ask.command in UNDO and (behind := self._owing(client, i, ask.nonce)):
            return behind
        for channel in channels:
            if not channel.silent(now) and channel.epoch is not None:
                return channel
        return self._opened(client, i)

    def _opened(self, client: str, i: int) -> Connection:
        node = self.nodes[i]
        opened = Connection(client, node.life, node.memory.fences.get("epoch"))
        self._channels[client, i].append(opened)
        return opened

    def _owing(self, client: str, i: int, nonce: str) -> Connection | None:
        """The connection of the client's process that owes the answer to a grant or a heal."""
        clients = self.world.clients
        process = next(each.process for each in clients if each.label == client)
        fellows = [each.label for each in clients if each.process is process]
        for channel in (each for label in fellows for each in self._channels.get((label, i), ())):
            if channel.life == self.nodes[i].life and not channel.closed:
                for owed, _ in channel.owed:
                    if owed == nonce:
                        return channel
        return None

    def _write(self, channel: Connection, i: int, ask: Request, hearer: Hearer) -> None:
        world, profile = self.world, self.world.profile
        channel.inbound = max(channel.inbound, world.now + world.latency())
        owed = (ask.nonce if ask.command in TAKING else "", world.now)
        channel.owed.append(owed)
        number = next(self._sent)
        if self.nodes[i].hangs or world.chance(profile.loss):
            self._drop(channel, i, ask, hearer)
            return
        arrive = partial(self._reach, number, i, channel, owed, ask, hearer)
        self._flying[ask.nonce] += 1
        world.at(channel.inbound, arrive)
        if world.chance(profile.twice):
            self.excused.add(ask.nonce)
            self._flying[ask.nonce] += 1
            world.note("comes again", ask.nonce, ask.command.value, i)
            world.at(channel.inbound + world.random.uniform(0, 0.06), arrive)

    def _drop(self, channel: Connection, i: int, ask: Request, _: Hearer) -> None:
        """A question is lost on its way, and nobody sends it again."""
        self._lose("request", channel, i, ask)
        self._excuse(ask)

    def _lose(self, what: str, channel: Connection, i: int, ask: Request) -> None:
        self.world.note(f"lost {what}", ask.nonce, ask.command.value, i)
        if ask.command not in UNDO:
            self.world.patience.missed(channel.client)

    def _read(self, channel: Connection, i: int, ask: Request) -> Vote:
        """What the asker makes of an answer that was on the connection before the question."""
        found = self._vote(i, ask, channel.unread)
        if found.answer is Answer.UNKNOWN:
            self.world.note("out of step", ask.nonce, i)
            self.excused.update((ask.nonce, *(nonce for nonce, _ in channel.owed)))
            channel.closed = True
        channel.unread = []
        return found

    def _vote(self, i: int, ask: Request, answer: list[object]) -> Vote:
        label = self.nodes[i].label
        found = answers.vote(ask, label, ask.nonce.encode(), answer)
        return found or Vote(label, Answer.UNKNOWN, reason=answers.ANOTHER)

    def _reach(
        self, number: int, i: int, channel: Connection, *what: *tuple[PendingReply, Request, Hearer]
    ) -> None:
        """A question is there; maybe it overtook another of the same client on its way."""
        stalled = self.nodes[i].stalled
        if stalled > self.world.now:
            self.world.at(stalled, partial(self._reach, number, i, channel, *what))
            return
        latest = self._latest[channel.client, i]
        if number < latest:
            self.world.note("overtaken", channel.client, i)
        self._latest[channel.client, i] = max(number, latest)
        self._arrive(i, channel, *what)

    def _arrive(
        self, i: int, channel: Connection, owed: PendingReply, ask: Request, hearer: Hearer
    ) -> None:
        world, node = self.world, self.nodes[i]
        self._flying[ask.nonce] -= 1
        if node.life != channel.life or not node.up:
            self._excuse(ask)  # the connection died with the process
            return
        last = channel.epoch if ask.command in WITH_EPOCH else (ask.each or {}).get(i)
        answer = node.memory.eval(ask, last)
        if answer[1] == b"EMPTY":
            channel.epoch = None  # look again, on a new connection
        world.note(ask.command.value, ask.nonce, i, answer[1:])
        self.look_for_leftovers(ask.nonce)
        if world.chance(world.profile.loss):
            self._lose("reply", channel, i, ask)
            return
        channel.outbound = max(channel.outbound, world.now + world.latency())
        slips = world.chance(world.profile.slip)

        def reply() -> None:
            if owed in channel.owed:
                channel.owed.remove(owed)
            if slips:
                channel.unread = answer
            elif not channel.closed:
                hearer.hear(i, self._vote(i, ask, answer))

        world.at(channel.outbound, reply)

    @contextmanager
    def healing(self, nonces: Iterable[str]) -> Iterator[None]:
        """While the block runs, a heal of these may still be rolled back."""
        mine = list(nonces)
        self._flying.update(mine)
        yield
        self._flying.subtract(mine)
        for nonce in mine:
            self.look_for_leftovers(nonce)

    # -- nothing stays behind -------------------------------------------------------------------

    def begun(self, nonce: str) -> None:
        """An attempt begins."""
        self._over.discard(nonce)

    def over(self, nonce: str) -> None:
        """The attempt or tenancy ended and was undone: no key of it may outlive the undoing."""
        self._over.add(nonce)
        self.look_for_leftovers(nonce)

    def look_for_leftovers(self, nonce: str) -> None:
        """Nothing of the nonce is left when all that was sent for it has arrived."""
        if nonce not in self._over or nonce in self.excused or self._flying[nonce]:
            return
        for node in self.nodes:
            for key in list(node.memory.keys):
                if (node.memory.get(key) or "").startswith(f"{nonce}:"):
                    how = f"{nonce} is over, and its {key} stayed on {node.label}"
                    raise Violation(Broken.LEFT, how)
