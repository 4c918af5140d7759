"""Conversations of those who hold a lock: extending, healing, releasing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core import hold
from django_redlock.core.commands import Extension
from django_redlock.core.errors import LeaseLost, NodesUnavailable
from django_redlock.core.policy import HEAD_START, Policy
from django_redlock.core.protocol import Command, Grant
from django_redlock.leases.lease import Lease
from django_redlock.nodes.memory import MemoryNodes
from tests.support.alone import Alone, extend

from .table import LOST, NO, UNSENT, Table, nobody, to, vote

FREE = "2"  # to an extension: there is no key
ONES = "1"
LATER = pytest.approx(100 + 20 - 0.2 - 0.002)  # an extension by 20 seconds that was asked at 100


# -- extending --------------------------------------------------------------------------------


def test_extend_counts_from_before_its_message() -> None:
    """The new deadline is the ttl from the question, less drift, and never an earlier one."""
    table = Table(3)
    grant = table.talk(extend(table.policy, table.grant(), ttl=20), [0, 0, LOST], late=3)
    assert (grant.deadline, grant.nonce, grant.fence) == (LATER, "f" * 32, 7)
    assert table.talk(extend(table.policy, grant, ttl=1), 0).deadline == LATER


def test_an_extension_heard_after_the_deadline_is_none() -> None:
    """A holder that had to stop does not start again, whatever the nodes said, or would say."""
    table = Table(3)
    with pytest.raises(LeaseLost):
        table.talk(extend(table.policy, table.grant(), ttl=20), 0, late=9.9)
    table = Table(3)
    with pytest.raises(LeaseLost):
        table.talk(extend(table.policy, table.grant(deadline=100.0), ttl=20))
    assert table.asked == []


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
    assert kept.deadline == LATER
    assert [(type(each), each.name) for each in (over, lost, unknown)] == [
        (LeaseLost, ("b", "c")),
        (LeaseLost, "d"),
        (NodesUnavailable, "e"),
    ]
    assert [each.answer.value for each in lost.votes] == ["no", "no", "unknown"]
    assert [each.answer.value for each in unknown.votes] == ["no", "yes", "unknown"]


def test_an_interrupted_extension_has_nothing_to_undo() -> None:
    """The tenancy stands until its old deadline; its owner will release it."""
    table = Table(3)
    steps: Any = extend(table.policy, table.grant(), ttl=20)
    steps.send(None)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())


# -- healing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "healed", "kept"),
    [
        ([ONES, ONES, FREE, FREE, LOST], [UNSENT, UNSENT, 0, LOST, UNSENT], True),
        ([ONES, ONES, FREE, FREE, LOST], [UNSENT, UNSENT, NO, LOST, UNSENT], False),
        ([ONES, ONES, FREE, "0", LOST], [UNSENT, UNSENT, 0, UNSENT, UNSENT], True),
        ([ONES, FREE, FREE, LOST, LOST], [UNSENT, 0, 0, UNSENT, UNSENT], True),
        ([ONES, FREE, FREE, LOST, LOST], [UNSENT, 0, NO, UNSENT, UNSENT], False),
        ([ONES, ONES, ONES, FREE, FREE], LOST, True),  # it has its majority without them
    ],
)
def test_a_lease_grows_back_where_its_names_are_free(
    said: list[object], healed: object, kept: bool
) -> None:
    """What the nodes with free names acknowledge counts at once; the others are not asked."""
    table = Table(5)
    grant = table.grant(touched=frozenset({0, 1}), label="me")
    steps = extend(table.policy, grant, ttl=20)
    if kept:
        extended = table.talk(steps, said, healed)
        assert extended.deadline == LATER
        assert extended.touched == {0, 1} | to(table.asked[1])
    else:
        with pytest.raises(NodesUnavailable):
            table.talk(steps, said, healed)
    assert table.commands == ["extend", "heal"]
    ask = table.asked[1]
    assert to(ask) == {place for place, each in enumerate(said) if each == FREE}
    assert ask.nonce == grant.nonce
    assert (ask.fence, ask.ttl, ask.label, ask.target) == (7, 20_000, "me", grant.target)


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
    ("said", "kept"),
    [
        ([ONES] * 5, True),
        ([ONES, ONES, ONES, "0", LOST], True),
        ([ONES, LOST, LOST, LOST, "0"], False),
        ([FREE, FREE, LOST, LOST, LOST], False),  # perhaps somebody has deleted all keys
    ],
)
def test_where_nothing_is_free_nothing_is_healed(said: list[object], kept: bool) -> None:
    """A renewal is one message; a key of another, a reservation or a rest is not free."""
    table = Table(5)
    steps = hold.extend_many(table.policy, table.held(table.grant()), [20], nobody)
    (outcome,) = table.talk(steps, said)
    assert isinstance(outcome, Grant if kept else NodesUnavailable)
    assert table.commands == ["extend"]


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
    """Else the lease is held still, and its release goes to the nodes that may have been healed.

    A heal is sent only while time is left. A generator that is closed asks nothing.
    """
    table = Table(3)
    lease = (Ending if over else Alone)(table.policy, table.grant())

    def healing() -> tuple[Any, Any]:
        steps: Any = hold.extend_many(table.policy, [lease], [20], nobody)
        return steps, table.until(steps, [ONES, FREE, LOST])

    steps, heal = healing()
    assert heal.command is Command.HEAL
    assert heal.still() is not over
    if over:
        undo = steps.throw(KeyboardInterrupt())
        assert (undo.command, to(undo), undo.flags) == (Command.RELEASE, {1}, "0")
        with pytest.raises(KeyboardInterrupt):
            steps.send(table.votes(undo, 0))
    else:
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt())
    steps, _ = healing()
    steps.close()
    assert steps.gi_frame is None


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
    # Of these four, 0 is unknown, 1 and 3 are kept, and 2 depends on its heal.
    heal = table.until(steps, ["1121", "0111", LOST])
    assert told == [(0, "NodesUnavailable"), (1, "Grant"), (3, "Grant")]
    assert heal.nonce == grants[2].nonce
    with pytest.raises(StopIteration):
        steps.send(table.votes(heal, [0, UNSENT, UNSENT]))
    assert told[3:] == [(2, "Grant")]


# -- releasing --------------------------------------------------------------------------------


def test_a_release_goes_to_all_nodes() -> None:
    """Not just where keys may be: a waiter may stand at any node."""
    table = Table(5)
    grant = table.talk(table.acquire(), [5, NO, UNSENT, 5, 5])
    assert grant.touched == {0, 3, 4}
    table.talk(hold.release(table.policy, grant))
    release = table.asked[-1]
    assert (release.command, to(release)) == (Command.RELEASE, {0, 1, 2, 3, 4})
    # Reserve it for 50 ms if somebody waits; wake them.
    assert (release.reserve, release.flags, release.touched) == (50, "1", {0, 3, 4})
    # What nodes do that were unheard at the decision is undone at the end.
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


@pytest.mark.parametrize(
    ("had", "said", "lost"),
    [
        ([NO, NO, 5, 5, 5], [(NO, 1)] * 5, False),  # woken where it never had the key
        ([LOST, 5, 5, 5, NO], [(NO, 1)] * 5, False),
        ([5] * 5, [(5, 1), *[(NO, 1)] * 4], False),  # woken by the key that it freed
        ([5] * 5, [*[(NO, 1)] * 4, (LOST, 0)], False),  # perhaps woken where it was not heard
        ([5] * 5, [*[(NO, 0)] * 4, (LOST, 0)], True),  # nobody was there to be woken
        ([5] * 5, [(NO, 1)] * 5, True),  # gone even where those who wait are woken
        ([NO, NO, 5, 5, 5], [(NO, 0)] * 5, True),  # nobody was woken
    ],
)
def test_a_release_that_a_woken_waiter_overtook_is_no_loss(
    had: list[object], said: list[tuple[object, int]], lost: bool
) -> None:
    """The waiter that we woke may have taken our keys before our release came to them."""
    table = Table(5)
    held = table.grant(votes=[vote(i, word) for i, word in enumerate(had)])
    nodes: Any = MemoryNodes([])
    lease = Lease(Backend("x", nodes, table.policy), held)
    votes = [vote(i, word)._replace(woken=n) for i, (word, n) in enumerate(said)]
    nodes.ask = lambda _: votes
    lease.release()
    assert lease.lost is lost


# -- after a hand-over ------------------------------------------------------------------------


def handed_over(woken: object = 1, *, held: float = 1.0) -> Table:
    """A process that released a name, and heard for how many names each node woke a waiter."""
    table = Table(3)
    grant = table.grant()
    table.now += held
    table.talk(hold.release(table.policy, grant), woken)
    return table


@pytest.mark.parametrize(
    ("held", "wait", "waited"),
    [
        (1.0, 5.0, HEAD_START),
        (1.0, HEAD_START / 2, HEAD_START / 2),  # nobody waits for longer than was asked for
        (0.004, 5.0, 0.0004),  # the name may be idle meanwhile: a small part of the time
    ],
)
def test_who_has_woken_a_waiter_leaves_it_a_head_start(
    held: float, wait: float, waited: float
) -> None:
    """Its next attempt for this name comes a moment later, and costs the waiter no message."""
    table = handed_over(held=held)
    table.talk(table.acquire(wait=wait), 5)
    assert table.commands == ["release", "grant"]
    assert table.waited == [pytest.approx(waited)]
    table.now += HEAD_START
    table.talk(table.acquire(wait=5), 5)
    assert len(table.waited) == 1


@pytest.mark.parametrize(
    ("woken", "held", "name", "wait"),
    [
        (0, 1.0, "a", 5.0),
        (NO, 1.0, "a", 5.0),
        (LOST, 1.0, "a", 5.0),
        (1, 0.001, "a", 5.0),
        (1, 1.0, "b", 5.0),
        (1, 1.0, "a", 0.0),
    ],
    ids=["nobody-waits", "not-ours", "not-heard", "short", "another-name", "does-not-wait"],
)
def test_others_have_no_head_start(woken: object, held: float, name: str, wait: float) -> None:
    """A caller does not pause if it has woken no waiter, wants another name, or does not wait."""
    table = handed_over(woken, held=held)
    table.talk(table.acquire(name, wait=wait), 5)
    assert table.waited == []
