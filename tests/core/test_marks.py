"""Many publishers that mark one task at the same time, whose requests arrive in any order."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from django_redlock.core import completion
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Command, Request, Sleep, Vote, Votes
from django_redlock.nodes import replies
from django_redlock.nodes.memory import MemoryNode
from tests.simulation.mutants import Patch, with_edits


class LostMessageError(AssertionError):
    """A publisher was left out for a message that is not sent."""


class World:
    """Publishers of one task at the same time; their requests arrive and get lost in any order.

    Each publisher has a connection to each node, on which its requests arrive in order. It hears
    no node any more, at any moment, as after a timeout. A sent message may run: it takes the lock
    of its key, on some nodes or all, and then removes its mark.

    Args:
        chances: that a reply is lost, and that a node is known to be down.
    """

    KEY, LOCK = "redlock:mark:sync:a", "redlock:lock:a"

    def __init__(
        self,
        seed: int,
        size: int = 3,
        publishers: int = 3,
        chances: Sequence[float] = (0.1, 0.15),
    ) -> None:
        self.rng = random.Random(seed)
        self.lost, self.down = chances
        self.nodes = [MemoryNode(lambda: 0.0) for _ in range(size)]
        nonces = itertools.count(1)
        self.policy = Policy(size=size, nonce=lambda: f"{next(nonces):032x}")
        self.channels: dict[tuple[str, int], deque[Callable[[], object]]] = {}
        self.publishers = {name: Publisher(self, name) for name in "abcde"[:publishers]}

    def play(self) -> None:
        """Let everything happen, in an order of chance; see that nobody's message is lost."""
        ready: list[Callable[[], object]] = [each.begin for each in self.publishers.values()]
        while True:
            moves = [*ready, *[each.popleft for each in self.channels.values() if each]]
            moves += [p.give_up for p in self.publishers.values() if p.waiting]
            if not moves:
                break
            move = self.rng.choice(moves)
            if move in ready:
                ready.remove(move)
                move()
            elif callable(arrived := move()):
                arrived()
        for each in self.publishers.values():
            assert each.outcome is not None
            other = each.outcome.duplicate_of
            if other and self.publishers[other].left_out:
                raise LostMessageError(f"{each.name} was left out for {other}, which was, too")


class Publisher:
    """One of them."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.outcome: completion.Outcome | None = None
        self.waiting = False
        self._ask: Request | None = None
        self._votes: list[Vote | None] = []
        self._steps = completion.set_mark(
            world.policy, world.KEY, [world.LOCK], task="sync", task_id=name, ttl=60.0
        )

    @property
    def left_out(self) -> bool:
        """Whether its message is not sent."""
        return self.outcome is not None and self.outcome.duplicate_of != ""

    def begin(self) -> None:
        """Start to publish."""
        self._go_on(None)

    def give_up(self) -> None:
        """Hear no more of this request."""
        self.waiting = False
        self._go_on([vote or Vote("", Answer.UNKNOWN) for vote in self._votes])

    def _go_on(self, value: object) -> None:
        try:
            effect = self._steps.send(value)
            while isinstance(effect, Sleep):
                effect = self._steps.send(None)
        except StopIteration as stop:
            self.outcome = stop.value
            if not self.left_out and self.world.rng.random() < 0.5:
                self._run()
            return
        assert isinstance(effect, Request)
        self._ask, self._votes = effect, [None] * len(self.world.nodes)
        for i in range(len(self.world.nodes)):
            down = effect.command is Command.MARK and self.world.rng.random() < self.world.down
            if down or (effect.to is not None and i not in effect.to):
                self._votes[i] = Vote("", Answer.UNKNOWN, sent=False)
        self.waiting = True
        if None not in self._votes:
            return
        for i in range(len(self.world.nodes)):
            if self._votes[i] is None:
                self._send(i, partial(self._arrive, i, effect))

    def _send(self, i: int, what: Callable[[], object]) -> None:
        self.world.channels.setdefault((self.name, i), deque()).append(what)

    def _arrive(self, i: int, ask: Request) -> None:
        answer = self.world.nodes[i].eval(ask)
        vote = replies.vote(ask, "", ask.nonce.encode(), answer)
        if ask is self._ask and self.waiting and self.world.rng.random() > self.world.lost:
            self._votes[i] = vote
            if ask.decided(self._votes) or None not in self._votes:
                self.give_up()

    def _run(self) -> None:
        assert self.outcome is not None
        ask = completion.unmark(self.world.policy, self.world.KEY, self.outcome.nonce or "0" * 32)
        value = f"{'f' * 32}:1:host:1(sync):{self.name}"
        for i, node in enumerate(self.world.nodes):
            if self.world.rng.random() < 0.8:
                self._send(i, partial(node._set, self.world.LOCK, value, 10**6))
                self._send(i, partial(node.eval, ask))


# How many publishers; how often a reply is lost, and a node is down.
KINDS = [(3, 0.1, 0.15), (4, 0.4, 0.0), (4, 0.1, 0.15), (2, 0.4, 0.0), (3, 0.3, 0.1)]


def worlds(count: int) -> Iterator[World]:
    """Play so many worlds."""
    for seed in range(count):
        publishers, *chances = KINDS[seed % len(KINDS)]
        world = World(seed, 5 if seed % 8 == 7 else 3, publishers, chances)
        world.play()
        yield world


@pytest.mark.slow
def test_a_publisher_that_is_left_out_is_left_out_for_a_message_that_is_sent():
    """Whatever arrives when, and whatever is lost: no message is dropped for one that is not sent.

    And they are worth something: publishers are left out, and split, in many of them.
    """
    left_out = marked = 0
    for world in worlds(1500):
        found = list(world.publishers.values())
        left_out += sum(each.left_out for each in found)
        marked += sum(bool(each.outcome and each.outcome.certain) for each in found)
        assert not all(each.left_out for each in found)
    assert left_out > 300
    assert marked > 300


def adding_up_refusals(votes: Votes) -> tuple[str, int]:
    """Count all refusals for the first id."""
    refusals = [vote for vote in votes if vote is not None and vote.answer is Answer.NO]
    return refusals[0].holder if refusals else "", len(refusals)


def believing_any_refusal(real: Any) -> Any:
    """Let one node that names another speak for all."""

    def named(votes: Votes) -> tuple[str, int]:
        other, naming = real(votes)
        return other, 99 * bool(naming)

    return named


def adding_up_marks(votes: Votes) -> tuple[str, int]:
    """Count all marks and runs of an id, of whichever attempt."""
    refusals = [vote for vote in votes if vote is not None and vote.answer is Answer.NO]
    counts = Counter(vote.holder for vote in refusals)
    return max(counts.items(), key=lambda each: each[1], default=("", 0))


def trying_again(real: Any) -> Any:
    """Take back a mark that a majority may have set, and set another."""

    def publish(policy: Policy, key: str, locks: Sequence[str] = (), **facts: Any) -> Any:
        outcome = yield from real(policy, key, locks, **facts)
        if outcome.nonce and not outcome.certain:
            yield completion.unmark(policy, key, outcome.nonce)
            outcome = yield from real(policy, key, locks, **facts)
        return outcome

    return publish


BROKEN = {
    "a minority that names another leaves a publisher out": Patch(
        completion, "named", believing_any_refusal
    ),
    "refusals of several others are added up": Patch(
        completion, "named", lambda _: adding_up_refusals
    ),
    "marks of several attempts are added up": Patch(completion, "named", lambda _: adding_up_marks),
    "who may have a majority tries again": Patch(completion, "set_mark", trying_again),
    "an unanswered node counts as one that did not set it": Patch(
        completion,
        "reached",
        lambda _: lambda votes: frozenset(i for i, v in enumerate(votes) if v.answer is Answer.YES),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("edit", BROKEN.values(), ids=BROKEN)
def test_the_worlds_catch_a_broken_rule(edit):
    """Each rule of publishing is needed: without it a message is lost in some world."""
    with with_edits(edit), pytest.raises(LostMessageError):
        deque(worlds(20_000), maxlen=0)
