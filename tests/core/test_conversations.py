"""Conversations with the algorithm: a partner answers its questions with scripted votes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core import acquire, hold
from django_redlock.core.commands import Extension, Kept
from django_redlock.core.errors import LeaseLost, LockTaken, NodesUnavailable, RedlockError
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import (
    UNDO,
    Answer,
    BlockOnNode,
    Command,
    Effect,
    Grant,
    JoinQueue,
    Request,
    Sleep,
    Steps,
    Vote,
    Wakeup,
)
from django_redlock.core.reasons import LOOK_FURTHER, ReasonCode, because
from tests.simulation.mutants import Patch, with_edits
from tests.support.alone import Alone, extend

NO = "no"  # somebody has it, everywhere the same
KEPT = "kept"  # it is reserved for whoever is woken next
LOST = "lost"  # sent, and never answered
UNSENT = "unsent"  # refused to connect, or has no vote


@dataclass
class Held:
    """A node's refusal, with what it tells."""

    left: float | None = None
    holder: str = ""
    owner: str = "0123456789abcdef"


@dataclass
class Seen:
    """What a look brings: seconds until the key is gone; 0: it is; None: it never is."""

    left: float | None


@dataclass
class Found:
    """What claiming brings: the word that lay in the queue, or none."""

    wakeup: str = ""


@dataclass
class Guarded:
    """A node that has no vote for so many seconds."""

    seconds: float


@dataclass
class Recorded:
    """A node's refusal, because the work is done."""


SPLIT = [5, Held(owner="a"), Held(owner="b")]  # one node each
GONE = Held(owner="")  # there is no key


def vote(i: int, wakeup: object, command: Command = Command.GRANT) -> Vote:
    """What a scripted word means: a number is a YES with that number, of waiters for a release.

    To an extension, a text of 1 and 0 says which tenancies are kept, 2 of which the names are free
    there; else it is all or none.
    """
    label = f"node{i}"
    if command is Command.EXTEND and (isinstance(wakeup, int) or wakeup == NO):
        wakeup = "0" if wakeup == NO else "1"
    if isinstance(wakeup, str) and wakeup.strip("012") == "":
        kept = [int(each == "1") for each in wakeup]
        free = [place for place, each in enumerate(wakeup) if each == "2"]
        return Vote(label, Answer.YES, result=Kept(kept, free))
    if isinstance(wakeup, Seen | Found | int):
        told = wakeup.left if isinstance(wakeup, Seen) else None
        found: Any = wakeup.wakeup if isinstance(wakeup, Found) else None
        number = wakeup if isinstance(wakeup, int) else 0
        fence, woken = (0, number) if command is Command.RELEASE else (number, 0)
        return Vote(label, Answer.YES, fence, left=told, woken=woken, result=found)
    if isinstance(wakeup, Held):
        return Vote(label, Answer.NO, left=wakeup.left, holder=wakeup.holder, owner=wakeup.owner)
    if isinstance(wakeup, Recorded):
        reason = because(ReasonCode.RECORDED)
        return Vote(label, Answer.NO, left=60.0, owner=Held.owner, reason=reason)
    if wakeup in (NO, KEPT):
        named = wakeup == NO and command is Command.GRANT  # other refusals do not tell whose it is
        left = 0.05 if wakeup == KEPT else None
        return Vote(label, Answer.NO, left=left, owner=Held.owner if named else "")
    reason, sent = because(ReasonCode.CONNECT_FAILED, text=str(wakeup)), wakeup != UNSENT
    if isinstance(wakeup, Guarded):
        reason, sent = because(ReasonCode.RESTART_GUARD, seconds=wakeup.seconds), False
    return Vote(label, Answer.UNKNOWN, reason=reason, sent=sent)


def nobody(_: int, __: hold.Outcome) -> None:
    """Hears an outcome and does nothing."""


@dataclass
class Table:
    """A clock that stands still unless told, values that count up, and what was asked.

    Attributes:
        hasty: whether votes stop coming in as soon as the asker has heard enough.
        first: whether nobody of this process stands before us in the line.
        word: what has come for us by the time we leave.
        effects: everything that was wanted, in order.
    """

    size: int = 3
    hasty: bool = False
    now: float = 100.0
    first: bool = True
    wakeup: str = ""
    effects: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = itertools.count(1)
        self.policy = Policy(
            size=self.size,
            clock=lambda: self.now,
            wall=lambda: 5,
            nonce=lambda: f"{next(values):032x}",
            uniform=lambda low, high: high,
        )

    def acquire(self, *names: str, ttl: float = 10.0, wait: float = 0.0, **options: Any) -> Any:
        """Steps to take the names."""
        wanted = acquire.Names(self.policy, self.policy.target(names or ("a",)))
        return acquire.acquire(self.policy, wanted, label="me", ttl=ttl, wait=wait, **options)

    def grant(self, **changes: Any) -> Grant:
        """A tenancy that began now, for ten seconds."""
        target = self.policy.target(["a"])
        everyone = self.policy.everyone
        made = Grant(target, "f" * 32, 7, self.now + 9.898, self.now, 10.0, everyone)
        return made._replace(**changes)

    def held(self, *grants: Grant) -> list[hold.Holding]:
        """These tenancies, which no other thread can end."""
        return [Alone(self.policy, grant) for grant in grants]

    def talk(self, steps: Generator[Any, Any, Any], *answers: object, late: float = 0.0) -> Any:
        """Answer every question, and all standing, with the next words.

        A lone word is every node's. Each answer takes ``late`` seconds, and standing in vain as
        long as it was meant to. Undoing that has no words any more is answered.
        """
        script = iter(answers)
        value: Any = None
        try:
            while True:
                effect = steps.send(value)
                self.effects.append(effect)
                if isinstance(effect, Request):
                    self.now += late
                    undoing = effect.command in UNDO
                    value = self._votes(effect, next(script, 0) if undoing else next(script))
                elif isinstance(effect, BlockOnNode):
                    value = next(script)
                    assert isinstance(value, Wakeup)
                    self.now += 0 if value.wakeup or value.broken else effect.seconds
                else:
                    value = self._waiting(effect)
        except StopIteration as stop:
            return stop.value

    def _waiting(self, effect: Effect) -> bool | str | None:
        if isinstance(effect, Sleep):
            self.now += effect.seconds
        if isinstance(effect, JoinQueue):
            self.now += 0 if self.first else min(effect.seconds, 1e9)
            return self.first
        return self.wakeup

    def _votes(self, ask: Request, words: object) -> list[Vote]:
        """The ballot, filled from the first node on."""
        each = words if isinstance(words, list) else [words] * self.size
        ballot: list[Vote | None] = [None] * self.size
        for i in set(range(self.size)) - (ask.to or self.policy.everyone):
            ballot[i] = Vote(f"node{i}", Answer.UNKNOWN, sent=False)
        for i in sorted(ask.to or self.policy.everyone):
            if not (self.hasty and ask.decided(ballot)):
                ballot[i] = vote(i, each[i], ask.command)
        return [heard or vote(i, LOST) for i, heard in enumerate(ballot)]

    @property
    def asked(self) -> list[Any]:
        """The questions, in order."""
        return [effect for effect in self.effects if isinstance(effect, Request)]

    @property
    def commands(self) -> list[str]:
        """What was asked, in order."""
        return [ask.command.value for ask in self.asked]

    @property
    def waited(self) -> list[float]:
        """The pauses, in order."""
        return [effect.seconds for effect in self.effects if isinstance(effect, Sleep)]

    @property
    def blocks(self) -> list[BlockOnNode]:
        """The places at which the attempt blocked, in order."""
        return [effect for effect in self.effects if isinstance(effect, BlockOnNode)]


def to(ask: Request) -> set[int]:
    """The nodes that are asked; all are none in particular."""
    return set(ask.to or ())


def words(yes: int, rest: str, size: int) -> list[object]:
    """So many nodes grant the number 5."""
    return [5] * yes + [rest] * (size - yes)


# -- majorities -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("rest", [NO, LOST, UNSENT])
def test_a_majority_is_more_than_half(size: int, rest: str) -> None:
    """N // 2 + 1 nodes are enough, for even N too; one fewer is not, however often."""
    enough = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4}[size]
    grant = Table(size).talk(Table(size).acquire(), words(enough, rest, size))
    assert grant.fence == 5
    with pytest.raises(RedlockError):
        Table(size).talk(Table(size).acquire(), *[words(enough - 1, rest, size)] * 8)


def granted_taken_unavailable(ballot: list[Vote], majority: int) -> str:
    """The outcome of a grant, by the book."""
    yes = sum(each.answer is Answer.YES for each in ballot)
    answered = sum(each.answer is not Answer.UNKNOWN for each in ballot)
    return "granted" if yes >= majority else "taken" if answered >= majority else "unavailable"


def kept_lost_unknown(ballot: list[Vote], majority: int) -> str:
    """The outcome of an extension, by the book."""
    yes = sum(each.answer is Answer.YES for each in ballot)
    no = sum(each.answer is Answer.NO for each in ballot)
    return "kept" if yes >= majority else "lost" if no >= majority else "unknown"


@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize("outcome", [granted_taken_unavailable, kept_lost_unknown])
def test_listening_stops_exactly_when_no_answer_can_change_the_outcome(
    size: int, outcome: Callable[[list[Vote], int], str]
) -> None:
    """Not later, which would cost time; not earlier, which would mix up outcomes."""
    table = Table(size)
    steps = table.acquire()
    if outcome is kept_lost_unknown:
        steps = extend(table.policy, table.grant(), ttl=5)
    ask = steps.send(None)
    words = [5, NO, LOST]
    for ballot in itertools.combinations_with_replacement([None, *words], size):
        heard = [each for each in ballot if each is not None]
        ends = {
            outcome([vote(0, each) for each in (*heard, *rest)], table.policy.majority)
            for rest in itertools.product(words, repeat=size - len(heard))
        }
        told = [None if each is None else vote(0, each, ask.command) for each in ballot]
        assert ask.decided(told) is (len(ends) == 1)


def test_numbers_that_agree_cost_one_question() -> None:
    """The normal case is one round trip: one question, no raise."""
    table = Table(5)
    grant = table.talk(table.acquire(), 7)
    assert (grant.fence, table.commands) == (7, ["grant"])


def test_a_minority_with_other_numbers_costs_nothing() -> None:
    """A majority that gave one number acknowledged it, whatever others gave."""
    table = Table(5)
    grant = table.talk(table.acquire(), [9, 7, 7, 7, 3])
    assert (grant.fence, table.commands) == (7, ["grant"])


def test_all_nodes_are_asked_and_told_the_wish() -> None:
    """A grant goes to every node, with one wish, the label, and the names once each."""
    table = Table(5)
    table.talk(table.acquire("a", "b", "a"), 7)
    (ask,) = table.asked
    assert ask.to is None
    assert (ask.wish, ask.slack, ask.ttl) == (5, 5_000_000, 10_000)
    assert (ask.label, ask.old, ask.target.names) == ("me", "", ("a", "b"))


# -- raising ----------------------------------------------------------------------------------


def test_only_lower_nodes_are_raised_each_by_its_own_number() -> None:
    """The largest number is the token; nodes below are raised to it, naming their grant."""
    table = Table(3)
    grant = table.talk(table.acquire(), [4, 6, LOST], 0)
    ask = table.asked[1]
    assert ask.command is Command.RAISE
    assert (grant.fence, ask.token) == (6, 6)
    assert (to(ask), ask.each) == ({0}, {0: 4})
    assert ask.nonce == table.asked[0].nonce == grant.nonce


@pytest.mark.parametrize(
    ("raised", "granted"),
    [
        ([0, 0, LOST, LOST, LOST], True),
        ([0, NO, LOST, LOST, LOST], False),
        ([LOST, 0, LOST, LOST, LOST], False),
        ([NO, NO, LOST, LOST, LOST], False),
    ],
)
def test_a_token_needs_a_majority_of_acknowledgements(raised: list[object], granted: bool) -> None:
    """Equal grants and acknowledged raises together must be a majority."""
    table = Table(5)
    steps = table.acquire()
    if granted:
        assert table.talk(steps, [4, 5, 6, NO, NO], raised).fence == 6
    else:
        with pytest.raises(RedlockError):
            table.talk(steps, *[[4, 5, 6, NO, NO], raised, 0] * 4)


def test_a_failed_raise_is_undone_and_refused() -> None:
    """A node that lost the tenancy before the raise is no acknowledgement; it was a split."""
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), *[[4, 6, LOST], NO, 0] * 4)
    assert table.commands == ["grant", "raise", "release"] * 4
    assert all(to(ask) == {0, 1, 2} for ask in table.asked[2::3])


def test_a_raise_that_nobody_heard_is_unavailable() -> None:
    """When the nodes vanish between grant and raise, nobody said that the name is taken."""
    table = Table(3)
    with pytest.raises(NodesUnavailable):
        table.talk(table.acquire(), [4, 6, LOST], LOST)
    assert table.asked[-1].command is Command.RELEASE


# -- values and undoing -----------------------------------------------------------------------


def test_every_attempt_has_a_value_of_its_own() -> None:
    """A late delete of the first attempt cannot hit the second."""
    table = Table(3)
    mine, a, b = SPLIT
    grant = table.talk(
        table.acquire(wait=5), [mine, a, b], 0, [a, mine, b], 0, [b, a, mine], 0, [5, 5, b]
    )
    nonces = [ask.nonce for ask in table.asked if ask.command is Command.GRANT]
    assert len(set(nonces)) == len(nonces) == 4
    assert grant.nonce == nonces[-1]
    released = [ask.nonce for ask in table.asked if ask.command is Command.RELEASE]
    assert released == nonces[:-1]


@pytest.mark.parametrize(
    ("answers", "nodes", "wakes"),
    [
        ([5, NO, NO], {0}, False),
        ([NO, NO, LOST], {2}, False),
        ([5, LOST, UNSENT], {0, 1}, True),
        ([UNSENT, UNSENT, LOST], {2}, True),
        ([NO, UNSENT, LOST], {0, 2}, True),
        ([NO, 5, LOST], {0, 1, 2}, True),
        (SPLIT, {0, 1, 2}, True),
        ([5, KEPT, KEPT], {0, 1, 2}, True),
        ([LOST, KEPT, KEPT], {0}, False),
        ([LOST, KEPT, NO], {0}, False),
        ([LOST, Held(owner="a"), Held(owner="b")], {0, 1, 2}, True),
        ([LOST, LOST, KEPT], {0, 1, 2}, True),
        ([LOST, LOST, LOST], {0, 1, 2}, True),
    ],
)
def test_a_failed_attempt_is_undone_where_it_may_have_been_granted(
    answers: list[object], nodes: set[int], wakes: bool
) -> None:
    """Where it was granted or silent; and wherever it was sent, to wake whoever waits.

    Unless a majority has one living owner, who will wake them, or nothing was heard granted and
    a majority is that owner's to be. Nodes that were not reached are never asked.
    """
    table = Table(3)
    with pytest.raises(RedlockError):
        table.talk(table.acquire(), *[answers, 0] * 4, Found())
    grant, release = table.asked[:2]
    assert (grant.command, release.command) == (Command.GRANT, Command.RELEASE)
    assert (to(release), release.reserve, release.flags) == (nodes, 0, "1" if wakes else "0")
    assert release.nonce == grant.nonce


@pytest.mark.parametrize("answers", [[NO] * 3, [UNSENT] * 3, [NO, UNSENT, NO]])
def test_what_was_granted_nowhere_is_not_undone(answers: list[object]) -> None:
    """A conflict is known in one round trip."""
    table = Table(3)
    with pytest.raises(RedlockError):
        table.talk(table.acquire(), answers)
    assert table.commands == ["grant"]


@pytest.mark.parametrize("size", range(1, 8))
def test_undoing_a_refusal_waits_for_nobody(size: int) -> None:
    """Nodes unheard at an early refusal are told, and the refusal goes on at once."""
    table = Table(size, hasty=True)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), NO)
    for ask in table.asked[1:]:
        assert to(ask) == set(range(size // 2 + 1, size))
        unasked = Vote("", Answer.UNKNOWN, sent=False)
        assert ask.decided([None if i in to(ask) else unasked for i in range(size)])


@pytest.mark.parametrize(
    ("wait", "heard", "worth"),
    [
        (5, [NO, NO, NO], True),  # else the two others would have to be undone
        (5, [NO, NO, NO, NO], True),
        (5, [5, NO, NO, NO], True),
        (5, [NO] * 5, False),
        (5, [5, 5, 5], False),
        (5, [5, 5, NO, 5], False),
        (0, [NO, NO, NO], False),
    ],
)
def test_who_will_wait_has_the_time_to_hear_every_refusal(
    wait: float, heard: list[object], worth: bool
) -> None:
    """A node that is heard to refuse needs no undoing; who has the names waits for nobody."""
    ask = Table(5).acquire(wait=wait).send(None)
    ballot = [vote(i, wakeup) for i, wakeup in enumerate(heard)] + [None] * (5 - len(heard))
    assert isinstance(ask, Request)
    assert ask.worth is not None
    assert ask.decided(ballot)
    assert ask.worth(ballot) is worth


# -- the lease --------------------------------------------------------------------------------


def test_a_lease_counts_from_before_the_first_message_less_drift() -> None:
    """Not from the votes; 1 % and 2 ms are left for clocks that run apart."""
    table = Table(3)
    grant = table.talk(table.acquire(ttl=10), 5, late=3)
    assert grant.since == 100
    assert grant.deadline == pytest.approx(110 - 0.1 - 0.002)


@pytest.mark.parametrize(("late", "granted"), [(9.897, True), (9.899, False)])
def test_votes_that_come_too_late_are_undone(late: float, granted: bool) -> None:
    """A majority whose grants may expire before the holder could act is no grant."""
    table = Table(3)
    if granted:
        assert table.talk(table.acquire(ttl=10), 5, late=late).fence == 5
    else:
        with pytest.raises(NodesUnavailable, match="too late"):
            table.talk(table.acquire(ttl=10), 5, late=late)
        assert table.commands == ["grant", "release"]


def test_a_raise_that_comes_too_late_is_undone() -> None:
    """The time is looked at after the last vote, not after the first round."""
    table = Table(3)
    with pytest.raises(NodesUnavailable, match="too late"):
        table.talk(table.acquire(ttl=10), [4, 6, NO], 0, late=5)
    assert table.commands == ["grant", "raise", "release"]


# -- taken is not unavailable -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "down"), [(size, down) for size in range(1, 8) for down in range((size + 1) // 2)]
)
def test_held_is_taken_while_a_majority_can_be_asked(size: int, down: int) -> None:
    """Down or silent minorities change nothing, and neither does the order of answers."""
    for gone in (UNSENT, LOST):
        table = Table(size, hasty=True)
        with pytest.raises(LockTaken):
            table.talk(table.acquire(), [gone] * down + [Held(1.0, "you")] * (size - down))


@pytest.mark.parametrize("size", range(1, 8))
def test_silence_is_unavailable_even_if_some_hold(size: int) -> None:
    """Refusals of fewer than a majority say nothing about the name."""
    few = size // 2
    table = Table(size)
    with pytest.raises(NodesUnavailable) as caught:
        table.talk(table.acquire(), [NO] * few + [LOST] * (size - few))
    assert len(caught.value.votes) == size
    silent = [f"node{i}" for i in range(few, size)]
    told = f"{len(silent)} of {size} nodes: lost ({', '.join(silent)})"
    told = told if len(silent) > 1 else f"; {silent[0]}: lost"
    assert str(caught.value).endswith(f"{told}; {LOOK_FURTHER}")


def test_granted_by_a_minority_is_taken() -> None:
    """Who has a majority refuses us, whatever the others granted; nothing is broken."""
    table = Table(5)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), [5, 5, NO, NO, NO])
    assert table.commands == ["grant", "release"]


def test_a_split_is_tried_again_by_those_who_do_not_wait() -> None:
    """When nobody has a majority, "taken" would be wrong: three more attempts, short pauses.

    A caller that waits tries as often as it likes. It stands in no queue: there is no holder.
    """
    table = Table(3)
    assert table.talk(table.acquire(), SPLIT, 0, SPLIT, 0, SPLIT, 0, 5).fence == 5
    assert table.waited == pytest.approx([0.01, 0.02, 0.03])
    table = Table(3)
    assert table.talk(table.acquire(wait=0.9), *[SPLIT, 0] * 5, 5).fence == 5
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), *[SPLIT, 0] * 4)
    assert table.commands == ["grant", "release"] * 4


def test_a_raise_refused_early_is_taken() -> None:
    """With all nodes up, a lost race is never reported as an outage."""
    table = Table(5, hasty=True)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), *[[5, 6, 7, 7, 7], [NO, 0, 0, 0, 0], 0] * 4)
    assert table.commands == ["grant", "raise", "release"] * 4


def test_a_refusal_says_who_and_how_long() -> None:
    """The label that most nodes name, and the time when enough nodes have let go."""
    table = Table(5)
    held = [Held(3.0, "you"), Held(1.0, "her"), Held(2.0, "you")]
    with pytest.raises(LockTaken) as caught:
        table.talk(table.acquire(), [*held, 5, 5])
    error = caught.value
    assert (error.name, error.holder, error.retry_after) == ("a", "you", 1.0)
    assert "held by you on 3 of 5 nodes" in str(error)


@pytest.mark.parametrize(
    ("answers", "after"),
    [
        ([Held(3.0), Held(1.0), Held(2.0)], 2.0),
        ([5, Held(3.0), Held(1.0)], 1.0),
        ([Held(None), Held(None), 5], None),
    ],
)
def test_retry_after_is_when_a_majority_could_grant(
    answers: list[object], after: float | None
) -> None:
    """Nodes that already granted count as free."""
    table = Table(3)
    with pytest.raises(LockTaken) as caught:
        table.talk(table.acquire(), answers)
    assert caught.value.retry_after == after


# -- waiting ----------------------------------------------------------------------------------


def test_no_wait_asks_once() -> None:
    """``wait=0`` is one attempt and no pause."""
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(wait=0), NO)
    assert (table.commands, table.waited) == (["grant"], [])


def test_a_wait_ends_in_time() -> None:
    """Looks and naps together are exactly the wait, and then comes one last attempt."""
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(wait=2.0), NO, Wakeup(), *[Seen(9.0), Wakeup()] * 2, NO)
    assert table.commands == ["grant", "look", "look", "grant"]
    assert sum(block.seconds for block in table.blocks) == pytest.approx(2.0)
    assert table.now == pytest.approx(102.0)
    assert table.waited == []


def test_a_refusal_that_used_up_the_wait_is_asked_again() -> None:
    """A node that hangs may have kept the votes waiting: they tell of then, not of now."""
    table = Table(3)
    assert table.talk(table.acquire(wait=1.0), NO, 5, late=2.0).fence == 5
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(wait=1.0), NO, NO, late=2.0)
    assert table.commands == ["grant", "grant"]


def test_a_nap_does_not_outlast_the_holder() -> None:
    """Who holds for a millisecond more is looked after, and tried again, right then."""
    table = Table(3)
    table.talk(table.acquire(wait=5.0), Held(0.001), Wakeup(), Seen(0.0), 5)
    assert [block.seconds for block in table.blocks] == pytest.approx([0.002])
    assert max(table.waited) <= 0.01


def test_an_endless_wait_goes_on() -> None:
    """``wait=inf`` outlasts any number of refusals, and outages too."""
    table = Table(3)
    grant = table.talk(
        table.acquire(wait=float("inf")), *[NO, Wakeup(), Seen(0.0), UNSENT] * 300, 5
    )
    assert grant.fence == 5
    assert table.now > 100 + 300 * 0.9


@pytest.mark.parametrize(
    ("votes", "wait", "ends_at_once"),
    [
        ([Guarded(9.0)] * 3, 5.0, True),
        ([Guarded(9.0), Guarded(9.0), 5], 5.0, True),
        ([Guarded(9.0), Guarded(9.0), UNSENT], 5.0, True),
        ([Guarded(9.0), Guarded(4.0), 5], 5.0, False),
        ([Guarded(9.0), UNSENT, LOST], 5.0, False),
        ([UNSENT] * 3, 5.0, False),
        ([Guarded(9.0)] * 3, 9.5, False),
        ([Guarded(9.0)] * 3, float("inf"), False),
    ],
)
def test_a_wait_that_the_guard_outlasts_ends_at_once(votes, wait, ends_at_once) -> None:
    """Where no majority can vote before the end, no thread is kept; else it tries again."""
    table = Table(3)
    if ends_at_once:
        with pytest.raises(NodesUnavailable):
            table.talk(table.acquire(wait=wait), votes)
        assert table.now == 100.0
    else:
        assert table.talk(table.acquire(wait=wait), votes, 7, 7).fence == 7
        assert table.now > 100.0


def test_who_waits_for_a_holder_waits_for_no_nodes() -> None:
    """With "holder" a holder is waited for; silence ends the wait, at its start or later."""
    table = Table(3)
    held: Any = (Held(9.0), Wakeup(), Seen(0.0))
    assert table.talk(table.acquire(wait=5.0, waits_for="holder"), *held, 5).fence == 5
    for before, grants in (((), 1), (held, 2)):
        table = Table(3)
        with pytest.raises(NodesUnavailable):
            table.talk(table.acquire(wait=5.0, waits_for="holder"), *before, UNSENT)
        assert table.commands.count("grant") == grants


def test_who_waits_for_nodes_waits_for_no_holder() -> None:
    """With "nodes" silence is waited for. A refusal ends the wait; no node notes a waiter."""
    table = Table(3)
    assert table.talk(table.acquire(wait=5.0, waits_for="nodes"), UNSENT, 5).fence == 5
    for before in ((), (UNSENT,)):
        table = Table(3)
        with pytest.raises(LockTaken):
            table.talk(table.acquire(wait=5.0, waits_for="nodes"), *before, Held(9.0))
        assert len(table.waited) == len(before)
        assert {ask.waits for ask in table.asked if ask.command is Command.GRANT} == {0}


def test_a_wait_for_what_cannot_come_is_noticed() -> None:
    """Without the rule the same attempt goes on asking to the end of its wait."""
    never = Patch(acquire, "is_hopeless", lambda _: lambda *_: False)
    with with_edits(never):
        table = Table(3)
        with pytest.raises(NodesUnavailable):
            table.talk(table.acquire(wait=5.0), *[[Guarded(9.0)] * 3] * 100)
    assert table.now == pytest.approx(105.0)


def test_the_last_refusal_is_told() -> None:
    """What stood in the way at the end is what the caller hears."""
    table = Table(3)
    with pytest.raises(NodesUnavailable):
        table.talk(table.acquire(wait=1.0), Held(9.0, "you"), Wakeup(), Seen(8.1), Wakeup(), UNSENT)
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(wait=0.01), UNSENT, NO)
    table = Table(3)
    with pytest.raises(LockTaken, match="held by her") as caught:
        table.talk(
            table.acquire(wait=1.0),
            Held(9.0, "you"),
            *[Wakeup(), Seen(8.1), Wakeup()],
            Held(7.0, "her"),
        )
    assert caught.value.retry_after == 7.0


# -- extending --------------------------------------------------------------------------------


def test_extend_counts_from_before_its_message() -> None:
    """The new deadline is the ttl from the question, less drift."""
    table = Table(3)
    steps = extend(table.policy, table.grant(), ttl=20)
    grant = table.talk(steps, [0, 0, LOST], late=3)
    assert grant.deadline == pytest.approx(100 + 20 - 0.2 - 0.002)
    assert (grant.nonce, grant.fence) == ("f" * 32, 7)


def test_extend_never_shortens() -> None:
    """A shorter ttl leaves the deadline where it is."""
    table = Table(3)
    held = table.grant()
    grant = table.talk(extend(table.policy, held, ttl=1), 0)
    assert grant.deadline == held.deadline


def test_extend_after_the_deadline_asks_nobody() -> None:
    """What is over is not revived."""
    table = Table(3)
    with pytest.raises(LeaseLost):
        table.talk(extend(table.policy, table.grant(deadline=100.0), ttl=20))
    assert table.asked == []


def test_an_extension_heard_after_the_deadline_is_none() -> None:
    """A holder that had to stop does not start again, whatever the nodes said."""
    table = Table(3)
    with pytest.raises(LeaseLost):
        table.talk(extend(table.policy, table.grant(), ttl=20), 0, late=9.9)


@pytest.mark.parametrize("size", range(1, 8))
def test_a_majority_that_lost_it_ends_the_lease(size: int) -> None:
    """LeaseLost is what a majority says, in whatever order it answers."""
    table = Table(size, hasty=True)
    with pytest.raises(LeaseLost):
        table.talk(extend(table.policy, table.grant(), ttl=20), NO)


@pytest.mark.parametrize(
    ("answers", "heard"),
    [([LOST] * 3, 0), ([0, LOST, LOST], 1), ([NO, LOST, LOST], 1), ([0, NO, UNSENT], 2)],
)
def test_an_extension_that_nobody_knows_of_is_unavailable(
    answers: list[object], heard: int
) -> None:
    """Neither a majority of yes nor of no: the old deadline stands. The error counts the votes."""
    table = Table(3)
    with pytest.raises(NodesUnavailable) as caught:
        table.talk(extend(table.policy, table.grant(), ttl=20), answers)
    assert table.commands == ["extend"]
    assert caught.value.data == {"votes": heard, "size": 3}


def test_one_question_prolongs_many_each_with_an_outcome_of_its_own() -> None:
    """Kept, lost and unknown are told for each tenancy; what is over is not asked about."""
    table = Table(3)
    targets = [table.policy.target(names) for names in (["a"], ["b", "c"], ["d"], ["e"])]
    grants = [table.grant(target=target, nonce=str(i) * 32) for i, target in enumerate(targets)]
    grants[1] = grants[1]._replace(deadline=100.0)
    steps = hold.extend_many(table.policy, table.held(*grants), [20, 20, 30, 20], nobody)
    kept, over, lost, unknown = table.talk(steps, ["100", "101", LOST])
    (ask,) = table.asked
    assert ask.leases == [
        Extension(grants[i].nonce, targets[i], ttl)
        for i, ttl in ((0, 20_000), (2, 30_000), (3, 20_000))
    ]
    assert kept.deadline == pytest.approx(100 + 20 - 0.2 - 0.002)
    assert [type(each) for each in (over, lost, unknown)] == [
        LeaseLost,
        LeaseLost,
        NodesUnavailable,
    ]
    assert [each.name for each in (over, lost, unknown)] == [("b", "c"), "d", "e"]
    assert [each.answer.value for each in lost.votes] == ["no", "no", "unknown"]
    assert [each.answer.value for each in unknown.votes] == ["no", "yes", "unknown"]


# -- healing ----------------------------------------------------------------------------------

FREE = "2"  # to an extension: there is no key
ONES = "1"


@pytest.mark.parametrize(
    ("said", "healed", "kept"),
    [
        ([ONES, ONES, FREE, FREE, LOST], [UNSENT, UNSENT, 0, 0, UNSENT], True),
        ([ONES, ONES, FREE, FREE, LOST], [UNSENT, UNSENT, 0, LOST, UNSENT], True),
        ([ONES, ONES, FREE, FREE, LOST], [UNSENT, UNSENT, NO, LOST, UNSENT], False),
        ([ONES, ONES, FREE, "0", LOST], [UNSENT, UNSENT, 0, UNSENT, UNSENT], True),
        ([ONES, FREE, FREE, LOST, LOST], [UNSENT, 0, 0, UNSENT, UNSENT], True),
        ([ONES, FREE, FREE, LOST, LOST], [UNSENT, 0, NO, UNSENT, UNSENT], False),
    ],
)
def test_a_lease_grows_back_where_its_names_are_free(
    said: list[object], healed: list[object], kept: bool
) -> None:
    """What the nodes with free names acknowledge counts at once; the others are not asked."""
    table = Table(5)
    grant = table.grant(touched=frozenset({0, 1}), label="me")
    steps = extend(table.policy, grant, ttl=20)
    if kept:
        extended = table.talk(steps, said, healed)
        assert extended.deadline == pytest.approx(100 + 20 - 0.2 - 0.002)
        assert extended.touched >= {0, 1} | to(table.asked[1])
    else:
        with pytest.raises(NodesUnavailable):
            table.talk(steps, said, healed)
    assert table.commands == ["extend", "heal"]
    ask = table.asked[1]
    assert to(ask) == {place for place, each in enumerate(said) if each == FREE}
    assert ask.nonce == grant.nonce
    assert (ask.fence, ask.ttl, ask.label, ask.target) == (7, 20_000, "me", grant.target)


def test_a_lease_that_is_kept_grows_back_too() -> None:
    """The extension has its majority; the nodes without the keys get them all the same."""
    table = Table(5)
    grant = table.grant(touched=frozenset({0, 1, 2}))
    extended = table.talk(extend(table.policy, grant, ttl=20), [ONES, ONES, ONES, FREE, FREE], LOST)
    assert table.commands == ["extend", "heal"]
    assert extended.touched == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    "said", [[FREE] * 5, [ONES, ONES, FREE, FREE, FREE], [ONES, "0", "0", FREE, LOST]]
)
def test_a_majority_without_it_is_never_healed(said: list[object]) -> None:
    """A key that was deleted by hand on a majority stays deleted, and the lease is lost."""
    table = Table(5)
    with pytest.raises(LeaseLost):
        table.talk(extend(table.policy, table.grant(), ttl=20), said)
    assert table.commands == ["extend"]


@pytest.mark.parametrize(
    "said",
    [
        [ONES] * 5,
        [ONES, ONES, ONES, "0", LOST],
        [ONES, LOST, LOST, LOST, "0"],
        [FREE, FREE, LOST, LOST, LOST],  # perhaps somebody has deleted all keys
    ],
)
def test_where_nothing_is_free_nothing_is_healed(said: list[object]) -> None:
    """A renewal is one message; a key of another, a reservation or a rest is not free."""
    table = Table(5)
    if said.count(ONES) >= 3:
        table.talk(extend(table.policy, table.grant(), ttl=20), said)
    else:
        with pytest.raises(NodesUnavailable):
            table.talk(extend(table.policy, table.grant(), ttl=20), said)
    assert table.commands == ["extend"]


def test_a_heal_heard_after_the_deadline_is_rolled_back() -> None:
    """A lease that is over is not revived, and leaves no key where it was healed."""
    table = Table(5)
    with pytest.raises(LeaseLost):
        table.talk(
            extend(table.policy, table.grant(), ttl=20),
            [ONES, ONES, FREE, FREE, LOST],
            0,
            late=5,
        )
    assert table.commands == ["extend", "heal", "release"]
    assert to(table.asked[2]) == {2, 3}


@dataclass
class Ending(Alone):
    """A lease that ends while it is healed.

    Attributes:
        before: whether it ends before the heal is sent.
    """

    policy: Policy
    grant: Grant
    before: bool = False
    touched: list[frozenset[int]] = field(default_factory=list)

    def touch(self, places: frozenset[int]) -> Grant | None:
        self.touched.append(places)
        return None if self.before else self.grant

    def remaining(self) -> float:
        return 0.0


@pytest.mark.parametrize("before", [True, False])
def test_a_lease_that_ends_while_it_is_healed_leaves_nothing(before: bool) -> None:
    """Its nodes are noted before the heal is sent, which is rolled back if the lease is over."""
    table = Table(5)
    lease = Ending(table.policy, table.grant(), before=before)
    steps = hold.extend_many(table.policy, [lease], [20], nobody)
    (outcome,) = table.talk(steps, [ONES, ONES, FREE, FREE, LOST], 0)
    assert isinstance(outcome, NodesUnavailable)
    assert lease.touched == [frozenset({2, 3})]
    assert table.commands == (["extend"] if before else ["extend", "heal", "release"])
    if not before:
        undo = table.asked[2]
        assert (undo.nonce, to(undo)) == (lease.grant.nonce, {2, 3})
        assert undo.flags == "0"  # a wake-up would open what was given away


@pytest.mark.parametrize("over", [True, False])
def test_an_interrupted_heal_is_rolled_back_if_the_lease_is_over(over: bool) -> None:
    """Else the lease is held still, and its release goes to the nodes that may have been healed."""
    table = Table(3)
    lease = (Ending if over else Alone)(table.policy, table.grant())
    steps: Any = hold.extend_many(table.policy, [lease], [20], nobody)
    ask = next(steps)
    heal = steps.send([vote(i, each, ask.command) for i, each in enumerate([ONES, FREE, LOST])])
    assert heal.command is Command.HEAL
    if over:
        undo = steps.throw(KeyboardInterrupt())
        assert (undo.command, to(undo), undo.flags) == (Command.RELEASE, {1}, "0")
        with pytest.raises(KeyboardInterrupt):
            steps.send([vote(i, 0) for i in range(3)])
    else:
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())


def test_no_lease_waits_until_others_are_healed() -> None:
    """What is kept or lost is told at once; what depends on a heal is told after it."""
    table = Table(3)
    told: list[tuple[int, str]] = []
    grants = [table.grant(nonce=f"{i:032x}") for i in range(4)]
    steps: Any = hold.extend_many(
        table.policy,
        table.held(*grants),
        [20] * 4,
        lambda i, outcome: told.append((i, type(outcome).__name__)),
    )
    ask = next(steps)
    words = ["1121", "0111", LOST]  # 0 is unknown, 1 kept, 2 depends on its heal, 3 kept
    heal = steps.send([vote(i, each, ask.command) for i, each in enumerate(words)])
    assert told == [(0, "NodesUnavailable"), (1, "Grant"), (3, "Grant")]
    assert heal.nonce == grants[2].nonce
    with pytest.raises(StopIteration):
        steps.send([vote(i, each, heal.command) for i, each in enumerate([0, UNSENT, UNSENT])])
    assert told[3:] == [(2, "Grant")]


@pytest.mark.parametrize("size", range(1, 6))
def test_listening_goes_on_until_every_tenancy_is_decided(size: int) -> None:
    """No tenancy's outcome is cut short because another's is clear, nor waited for."""
    table = Table(size)
    steps: Any = hold.extend_many(
        table.policy, table.held(table.grant(), table.grant()), [5, 5], nobody
    )
    decided, words = next(steps).decided, ["11", "10", "01", "00", LOST]
    for ballot in itertools.combinations_with_replacement([None, *words], size):
        heard = [each for each in ballot if each is not None]
        clear = all(
            len({_end(heard, rest, place, table.policy.majority) for rest in rests}) == 1
            for rests in [list(itertools.product(words, repeat=size - len(heard)))]
            for place in (0, 1)
        )
        told = [None if each is None else vote(0, each) for each in ballot]
        assert decided(told) is clear


def _end(heard: Sequence[str], rest: Sequence[str], place: int, majority: int) -> str:
    """The outcome of one tenancy, by the book."""
    said = [each[place] for each in (*heard, *rest) if each != LOST]
    yes, no = said.count("1"), said.count("0")
    return "kept" if yes >= majority else "lost" if no >= majority else "unknown"


# -- adopting ---------------------------------------------------------------------------------


def adopt(table: Table) -> Any:
    """Steps to take over the tenancy of the nonce ``e…``."""
    target = table.policy.target(["a"])
    return acquire.adopt(table.policy, target, old="e" * 32, label="me", ttl=10)


def test_adopting_swaps_the_value() -> None:
    """The adopter gets a fresh nonce and token; the nodes are told the old nonce."""
    table = Table(3)
    grant = table.talk(adopt(table), [8, 8, NO])
    assert table.asked[0].old == "e" * 32
    assert (grant.nonce != "e" * 32, grant.fence, grant.deadline > 109) == (True, 8, True)


@pytest.mark.parametrize("size", range(1, 8))
def test_adopting_too_late_is_lost(size: int) -> None:
    """A majority without the old nonce: over, or another adopter was first."""
    table = Table(size, hasty=True)
    with pytest.raises(LeaseLost):
        table.talk(adopt(table), NO)


def test_adopting_without_nodes_is_unavailable() -> None:
    """Silence says nothing about the tenancy; what may have been swapped is given back."""
    table = Table(3)
    with pytest.raises(NodesUnavailable, match="can still be adopted"):
        table.talk(adopt(table), [8, LOST, UNSENT])
    assert to(table.asked[1]) == {0, 1}
    assert table.asked[1].nonce == table.asked[0].nonce
    assert (table.commands[1], table.asked[1].old) == ("return", "e" * 32)


def test_adopters_that_split_the_nodes_give_back_and_try_again() -> None:
    """No majority for anybody: the next attempt has a fresh nonce, after a pause."""
    table = Table(5)
    other, third = Held(owner="other"), Held(owner="third")
    grant = table.talk(adopt(table), [8, 8, other, other, third], 0, [9, 9, 9, 9, 9])
    assert table.commands == ["grant", "return", "grant"]
    assert grant.nonce != table.asked[0].nonce
    assert any(isinstance(effect, Sleep) for effect in table.effects)


def test_adopters_that_go_on_splitting_are_told_that_nobody_has_it() -> None:
    """The error is not that the lease is lost, and the handle is given back each time."""
    table = Table(5)
    split = [8, 8, Held(owner="other"), Held(owner="other"), Held(owner="third")]
    with pytest.raises(LockTaken, match="can still be adopted"):
        table.talk(adopt(table), *[split, 0] * 4)
    assert table.commands == ["grant", "return"] * 4


@pytest.mark.parametrize(
    ("votes", "over"),
    [
        ([8, 8, GONE, GONE, LOST], False),  # three may still have it
        ([8, 8, GONE, GONE, GONE], True),
        ([8, Held(owner="b"), Held(owner="b"), Held(owner="b"), LOST], True),
        ([8, Held(owner="b"), Held(owner="b"), Held(owner="c"), Held(owner="c")], False),
        ([GONE, GONE, GONE, LOST, LOST], True),
    ],
)
def test_a_tenancy_is_over_when_nobody_can_adopt_it(votes: list[Any], over: bool) -> None:
    """Too few nodes have it, or one other owner has a majority; else it is given back."""
    table = Table(5)
    with pytest.raises(LeaseLost if over else (LockTaken, NodesUnavailable)):
        table.talk(adopt(table), *[votes, 0] * 4)
    assert table.commands[1] == ("release" if over else "return")


def test_the_release_of_an_adopter_deletes_what_the_giver_left() -> None:
    """Nodes that did not swap may have the giver's key, or get it yet."""
    table = Table(5)
    grant = table.talk(adopt(table), [8, 8, 8, GONE, LOST])
    table.talk(hold.release(table.policy, grant))
    assert table.commands == ["grant", "release", "release"]
    assert (table.asked[2].nonce, to(table.asked[2])) == ("e" * 32, {3, 4})


def test_an_interrupted_adoption_gives_back() -> None:
    """Whoever is interrupted while it adopts can adopt again."""
    table = Table(3)
    steps = adopt(table)
    next(steps)
    assert steps.throw(KeyboardInterrupt).command is Command.RETURN
    with pytest.raises(KeyboardInterrupt):
        steps.send([vote(i, 0) for i in range(3)])


# -- releasing --------------------------------------------------------------------------------


def test_a_release_goes_to_all_nodes() -> None:
    """Not just where keys may be: whoever waits may stand at any node."""
    table = Table(5)
    grant = table.talk(table.acquire(), [5, NO, UNSENT, 5, 5])
    assert grant.touched == {0, 3, 4}
    table.talk(hold.release(table.policy, grant))
    release = table.asked[-1]
    assert (release.command, to(release)) == (Command.RELEASE, {0, 1, 2, 3, 4})
    # Reserve it for 50 ms if somebody waits; wake them.
    assert (release.reserve, release.flags) == (50, "1")


def test_nodes_unheard_at_the_decision_are_released_too() -> None:
    """A majority decides early; what the others do meanwhile is undone at the end."""
    table = Table(5, hasty=True)
    assert table.talk(table.acquire(), 5).touched == {0, 1, 2, 3, 4}


def test_a_minimal_hold_rests_for_the_remainder() -> None:
    """Until ``min_hold`` after the attempt began the names stay taken; afterwards they go."""
    table = Table(3)
    grant = table.grant()
    table.now = 101.0
    table.talk(hold.release(table.policy, grant, min_hold=4.0))
    assert (table.commands, table.asked[-1].rest) == (["rest"], 3000)
    table.now = 104.0
    table.talk(hold.release(table.policy, grant, min_hold=4.0))
    assert table.commands == ["rest", "release"]


# -- interruption -----------------------------------------------------------------------------


def to_grant(table: Table) -> Any:
    """An attempt that asked for a grant."""
    steps = table.acquire(wait=5)
    assert steps.send(None).command is Command.GRANT
    return steps


def to_raise(table: Table) -> Any:
    """An attempt that asked for a raise."""
    steps = to_grant(table)
    ask = steps.send([vote(0, 4), vote(1, 6), vote(2, NO)])
    assert ask.command is Command.RAISE
    return steps


def to_undo(table: Table) -> Any:
    """A refused attempt that asked to undo."""
    steps = to_grant(table)
    ask = steps.send([vote(0, 5), vote(1, NO), vote(2, NO)])
    assert ask.command is Command.RELEASE
    return steps


def to_release(table: Table) -> Any:
    """A release under way."""
    steps: Any = hold.release(table.policy, table.grant())
    assert steps.send(None).command is Command.RELEASE
    return steps


def to_heal(table: Table) -> Any:
    """An extension that heals a lease, which has ended meanwhile."""
    lease = Ending(table.policy, table.grant())
    steps: Any = hold.extend_many(table.policy, [lease], [20], nobody)
    ask = steps.send(None)
    votes = [vote(i, each, ask.command) for i, each in enumerate([ONES, FREE, LOST])]
    assert steps.send(votes).command is Command.HEAL
    return steps


POINTS = [(to_grant, {0, 1, 2}), (to_raise, {0, 1}), (to_undo, {0}), (to_release, {0, 1, 2})]


@pytest.mark.parametrize(("reach", "nodes"), POINTS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_interruption_is_undone_and_goes_on(
    reach: Callable[[Table], Any], nodes: set[int], error: type[BaseException]
) -> None:
    """At every question: all nodes that may hold are asked to undo, then the exception goes on."""
    steps = reach(Table(3))
    raised = error("now")
    ask = steps.throw(raised)
    assert (ask.command, to(ask)) == (Command.RELEASE, nodes)
    with pytest.raises(error) as caught:
        steps.send([vote(i, 0) for i in range(3)])
    assert caught.value is raised


def test_an_interrupted_extension_has_nothing_to_undo() -> None:
    """The tenancy stands until its old deadline; its owner will release it."""
    table = Table(3)
    steps: Any = extend(table.policy, table.grant(), ttl=20)
    steps.send(None)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())


@pytest.mark.parametrize("reach", [*(reach for reach, _ in POINTS), to_heal])
def test_a_closed_generator_asks_nothing(reach: Callable[[Table], Any]) -> None:
    """GeneratorExit passes at once: ``close()`` would fail if anything were yielded."""
    steps = reach(Table(3))
    steps.close()
    assert steps.gi_frame is None


def run(steps: Steps[Grant], perform: Callable[[Effect], Any]) -> Grant:
    """Let a backend carry out the steps, whose effects ``perform`` performs."""

    class Driver(Backend):
        def _perform(self, effect: Effect) -> Any:
            return perform(effect)

    group: Any = None
    return Driver("default", group, Policy(size=3)).run(steps)


def test_the_driver_hands_exceptions_to_the_steps() -> None:
    """An exception while asking is undone by the algorithm, then goes on."""
    table = Table(3)

    def perform(effect: Effect) -> list[Vote]:
        table.effects.append(effect)
        assert isinstance(effect, Request)
        if effect.command is Command.GRANT:
            raise KeyboardInterrupt
        return [vote(i, 0) for i in range(3)]

    with pytest.raises(KeyboardInterrupt):
        run(table.acquire(), perform)
    assert table.commands == ["grant", "release"]


def test_the_driver_hands_over_what_interrupts_a_sleep() -> None:
    """A waiter that is interrupted asks nothing more and hears its exception."""
    table = Table(3)

    def perform(effect: Effect) -> Any:
        table.effects.append(effect)
        if isinstance(effect, Sleep):
            raise KeyboardInterrupt
        assert isinstance(effect, Request)
        return [vote(i, LOST) for i in range(3)]

    with pytest.raises(KeyboardInterrupt):
        run(table.acquire(wait=5), perform)
    assert table.commands == ["grant", "release"]


def test_the_driver_returns_the_result_and_sleeps_as_told() -> None:
    """The blocking driver carries votes in, pauses in between, and the grant out."""
    answers = iter([UNSENT, UNSENT, 5])
    slept: list[float] = []

    def perform(effect: Effect) -> Any:
        if isinstance(effect, Sleep):
            return slept.append(effect.seconds)
        return [vote(i, wakeup) for wakeup in [next(answers)] for i in range(3)]

    assert run(Table(3).acquire(wait=5), perform).fence == 5
    assert slept == pytest.approx([0.01, 0.015])


# -- errors -----------------------------------------------------------------------------------
