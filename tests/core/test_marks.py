"""Marks of queued tasks: conversations, and many publishers whose requests arrive in any order."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from django_redlock.core import completion
from django_redlock.core.commands import ANY_TASK
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Command, Request, Sleep, Vote, Votes
from django_redlock.nodes import replies
from django_redlock.nodes.memory import MemoryNode
from tests.simulation.mutants import Patch, with_edits

from .test_conversations import LOST, UNSENT, Held, Table, to

OTHER = Held(holder="other", owner="a" * 16)
THIRD = Held(holder="third", owner="b" * 16)
RUNS = Held(holder="other", owner="")


def publish(table: Table, *answers: object, **options: Any) -> completion.Outcome:
    """Mark a task; what came of it."""
    key = completion.mark_key(table.policy, "sync", ["account:1"])
    steps = completion.set_mark(
        table.policy, key, **{"task": "sync", "task_id": "me", "ttl": 60.0, **options}
    )
    found: completion.Outcome = table.talk(steps, *answers)
    return found


# -- conversations --------------------------------------------------------------------------------


def test_a_mark_is_one_request_to_all_nodes():
    """It says key, locks, time, task and id; a majority of YES is enough."""
    table = Table(size=5, hasty=True)
    outcome = publish(table, [1, 1, 1, LOST, LOST], locks=["redlock:lock:account:1"])
    (ask,) = table.asked
    assert (ask.command, ask.to) == (Command.MARK, None)
    marks = "redlock:marks", "redlock:mark:sync:account:1"
    assert ask.keys == (*marks, "redlock:lock:account:1")
    assert (ask.ttl, ask.task, ask.task_id) == (60_000, "sync", "me")
    assert (outcome.nonce, outcome.certain, outcome.duplicate_of) == (ask.nonce, True, "")


def test_a_duplicate_is_known_in_one_round_trip():
    """A majority that names one other id decides; nothing was set, nothing is taken back."""
    table = Table(size=5)
    assert publish(table, [OTHER, OTHER, OTHER, UNSENT, UNSENT]).duplicate_of == "other"
    assert table.commands == ["mark"]


def test_a_duplicate_waits_a_moment_for_the_last_nodes():
    """What they have set, or may have, costs another request; a mark that is set waits for none."""
    table = Table(size=3)
    publish(table, [OTHER, OTHER, OTHER])
    (ask,) = table.asked
    assert ask.worth is not None
    yes, no = Vote("a", Answer.YES), Vote("b", Answer.NO, holder="other", owner="0" * 16)
    assert [ask.worth(votes) for votes in ([no, no, None], [yes, yes, None], [no, no, no])] == [
        True,
        False,
        False,
    ]


def test_a_duplicate_takes_back_what_it_set():
    """The nodes that set the mark, or may have, are told to remove it, by its nonce."""
    table = Table(size=5)
    assert publish(table, [OTHER, 1, OTHER, LOST, OTHER]).duplicate_of == "other"
    mark, undo = table.asked
    assert (undo.command, undo.nonce, undo.keys) == (Command.UNMARK, mark.nonce, mark.keys)
    assert (to(undo), undo.whose) == ({1, 3}, "")


@pytest.mark.parametrize(
    "answers",
    [[OTHER, LOST, LOST], [OTHER, UNSENT, UNSENT], LOST, UNSENT, [1, LOST, LOST]],
    ids=["one names another", "one can be asked", "silence", "no node", "one set it"],
)
def test_without_a_majority_the_message_is_sent(answers):
    """Nobody is left out by a minority; it is told that the mark is not certain."""
    table = Table()
    outcome = publish(table, answers)
    assert (outcome.certain, outcome.duplicate_of) == (False, "")


def test_what_a_majority_may_have_set_stays():
    """Others may have been told this id by that majority; the nonce is told, to remove it later."""
    table = Table()
    outcome = publish(table, [1, LOST, LOST])
    assert table.commands == ["mark"]
    assert outcome.nonce == table.asked[0].nonce


def test_a_split_is_tried_again_with_another_nonce():
    """Each publisher takes back its part, and pauses, before it asks again."""
    table = Table(size=3)
    outcome = publish(table, [1, OTHER, THIRD], 0, 1)
    first, undo, second = table.asked
    assert (to(undo), undo.nonce, outcome.nonce) == ({0}, first.nonce, second.nonce)
    assert first.nonce != second.nonce
    assert outcome.certain
    assert len(table.waited) == 1


def test_a_split_that_stays_is_sent_unmarked():
    """It ends after a few attempts, and leaves no mark."""
    table = Table(size=3)
    outcome = publish(table, *[[1, OTHER, THIRD], 0] * 9)
    assert (outcome.nonce, outcome.certain, outcome.duplicate_of) == ("", False, "")
    assert table.commands == ["mark", "unmark"] * (completion.SPLITS + 1)
    assert sum(table.waited) < 0.1


def test_marks_of_two_attempts_are_not_added_up():
    """Two nodes that name one id, by marks of two attempts, are no majority; a run counts."""
    again = Held(holder="other", owner="c" * 16)
    assert publish(Table(), *[[OTHER, again, UNSENT]] * 9).duplicate_of == ""
    assert publish(Table(), [OTHER, RUNS, UNSENT]).duplicate_of == "other"
    assert publish(Table(), [RUNS, RUNS, UNSENT]).duplicate_of == "other"


def test_an_interrupted_mark_is_taken_back_everywhere():
    """After an exception nobody knows where the mark was set."""
    table = Table()
    key = completion.mark_key(table.policy, "sync", ["a"])
    steps = completion.set_mark(table.policy, key, task="sync", task_id="me", ttl=1)
    mark = next(steps)
    undo = steps.throw(KeyboardInterrupt())
    assert isinstance(mark, Request)
    assert isinstance(undo, Request)
    assert (undo.command, undo.nonce, to(undo)) == (Command.UNMARK, mark.nonce, {0, 1, 2})
    with pytest.raises(KeyboardInterrupt):
        steps.send([Vote("", Answer.YES)] * 3)


def test_removing_is_heard_and_repeated_when_interrupted():
    """By its nonce, or whatever mark is there."""
    table = Table()
    table.talk(completion.remove(table.policy, "redlock:mark:x", "f" * 32))
    table.talk(completion.remove(table.policy, "redlock:mark:x"))
    own, any_ = table.asked
    assert (own.nonce, own.whose) == ("f" * 32, "")
    assert (any_.nonce != own.nonce, any_.whose) == (True, ANY_TASK)
    steps = completion.remove(table.policy, "redlock:mark:x", "f" * 32)
    ask = next(steps)
    assert steps.throw(KeyboardInterrupt()) == ask
    with pytest.raises(KeyboardInterrupt):
        steps.send([])


def test_a_mark_has_a_key_for_each_task_and_set_of_names():
    """The task is part of it, the order of names is not, and no two run into each other."""
    policy = Policy(size=3)

    def key(task: str, *names: str) -> str:
        return completion.mark_key(policy, task, names)

    assert key("t", "b", "a", "a") == key("t", "a", "b")
    different = [
        key("a", "b:c"),
        key("a:b", "c"),
        key("a%3Ab", "c"),
        key("t", "a"),
        key("t", "a", "b"),
        key("t", "a", "b", "c"),
        key("t", "a+b"),
        key("t", "x" * 512),
        key("t", "x" * 511 + "y"),
        key("u" * 600, "x"),
        key("u\n", "x"),
    ]
    assert len(set(different)) == len(different)
    assert max(len(each) for each in different) < 530


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_listening_stops_exactly_when_no_answer_can_change_the_outcome(size):
    """For every ballot: decided means that all ways to fill it in are one outcome."""
    majority = size // 2 + 1
    words = [
        Vote("", Answer.YES),
        Vote("", Answer.NO, holder="a", owner="1"),
        Vote("", Answer.NO, holder="b", owner="2"),
        Vote("", Answer.UNKNOWN),
    ]

    def outcome(ballot: list[Vote]) -> str:
        other, naming = completion.named(ballot)
        yes = sum(vote.answer is Answer.YES for vote in ballot)
        return "set" if yes >= majority else other if naming >= majority else "neither"

    for known in range(size + 1):
        for heard in itertools.combinations_with_replacement(words, known):
            rest = itertools.combinations_with_replacement(words, size - known)
            ends = {outcome([*heard, *each]) for each in rest}
            ballot = [*heard, *[None] * (size - known)]
            assert completion.marked_or_not(ballot, majority) == (len(ends) == 1), heard


# -- many publishers ------------------------------------------------------------------------------


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
