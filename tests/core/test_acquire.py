"""Conversations of those who take a lock, or adopt one: majorities, tokens, undoing, waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redlock.core import acquire, hold
from django_redlock.core.errors import LeaseLost, LockTaken, NodesUnavailable, RedlockError
from django_redlock.core.protocol import Answer, Command, Sleep, Vote, Wakeup
from django_redlock.core.reasons import LOOK_FURTHER
from tests.simulation.mutants import Patch, with_edits

from .table import (
    GONE,
    KEPT,
    LOST,
    NO,
    SPLIT,
    UNSENT,
    Found,
    Guarded,
    Held,
    Seen,
    Table,
    to,
    vote,
)

A, B, C = (Held(owner=each) for each in "abc")

# -- majorities and tokens --------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 8))
def test_a_majority_is_more_than_half(size: int) -> None:
    """N // 2 + 1 nodes are enough, for even N too; one fewer is not, however often."""
    enough = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4}[size]
    for rest in (NO, LOST, UNSENT):
        granted, fewer = ([5] * n + [rest] * (size - n) for n in (enough, enough - 1))
        table = Table(size)
        assert table.talk(table.acquire(), granted).fence == 5
        with pytest.raises(RedlockError):
            table.talk(table.acquire(), *[fewer] * 8)


@pytest.mark.parametrize("given", [7, [9, 7, 7, 7, 3]])
def test_a_number_that_a_majority_gave_costs_one_request(given: object) -> None:
    """The token is acknowledged, whatever others gave. All nodes are told wish, label and names."""
    table = Table(5)
    assert table.talk(table.acquire("a", "b", "a"), given).fence == 7
    (ask,) = table.grants
    assert table.commands == ["grant"]
    assert (ask.to, ask.wish, ask.slack, ask.ttl) == (None, 5, 5_000_000, 10_000)
    assert (ask.label, ask.old, ask.target.names) == ("me", "", ("a", "b"))


def test_only_lower_nodes_are_raised_each_by_its_own_number() -> None:
    """The largest number is the token; nodes below are raised to it, naming their grant."""
    table = Table(3)
    grant = table.talk(table.acquire(), [4, 6, LOST], 0)
    ask = table.asked[1]
    assert table.commands == ["grant", "raise"]
    assert (grant.fence, ask.token, to(ask), ask.each) == (6, 6, {0}, {0: 4})
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
    if granted:
        assert table.talk(table.acquire(), [4, 5, 6, NO, NO], raised).fence == 6
    else:
        with pytest.raises(RedlockError):
            table.talk(table.acquire(), *[[4, 5, 6, NO, NO], raised, 0] * 4)


@pytest.mark.parametrize(
    ("given", "raised", "error", "tries"),
    [
        ([4, 6, LOST], NO, LockTaken, 4),  # the node lost the lease: a split
        ([5, 6, 7, 7, 7], [NO, 0, 0, 0, 0], LockTaken, 4),
        ([4, 6, LOST], LOST, NodesUnavailable, 1),  # nobody said that the name is taken
    ],
)
def test_a_failed_raise_is_undone_and_refused(
    given: list[object], raised: object, error: type[RedlockError], tries: int
) -> None:
    """With all nodes up, a lost race is never reported as an outage, nor an outage as a race."""
    table = Table(len(given), hasty=True)
    with pytest.raises(error):
        table.talk(table.acquire(), *[given, raised, 0] * tries)
    assert table.commands == ["grant", "raise", "release"] * tries
    assert all(to(ask) == set(range(table.size)) for ask in table.asked[2::3])


# -- undoing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "nodes", "wakes", "error"),
    [
        ([5, NO, NO], {0}, False, LockTaken),
        ([NO, NO, LOST], {2}, False, LockTaken),
        ([5, LOST, UNSENT], {0, 1}, True, NodesUnavailable),
        ([UNSENT, UNSENT, LOST], {2}, True, NodesUnavailable),
        ([NO, UNSENT, LOST], {0, 2}, True, NodesUnavailable),
        ([NO, 5, LOST], {0, 1, 2}, True, LockTaken),
        (SPLIT, {0, 1, 2}, True, LockTaken),
        ([5, KEPT, KEPT], {0, 1, 2}, True, LockTaken),
        ([LOST, KEPT, KEPT], {0}, False, LockTaken),
        ([LOST, KEPT, NO], {0}, False, LockTaken),
        ([LOST, A, B], {0, 1, 2}, True, LockTaken),
        ([LOST, LOST, KEPT], {0, 1, 2}, True, NodesUnavailable),
        (LOST, {0, 1, 2}, True, NodesUnavailable),
        (NO, set(), False, LockTaken),
        (UNSENT, set(), False, NodesUnavailable),
        ([NO, UNSENT, NO], set(), False, LockTaken),
    ],
)
def test_a_failed_attempt_is_undone_where_it_may_have_been_granted(
    answers: object, nodes: set[int], wakes: bool, error: type[RedlockError]
) -> None:
    """Where it was granted or silent; and wherever it was sent, to wake the waiters.

    Unless a majority has one living owner, who will wake them, or nothing was heard granted and
    a majority is that owner's to be. Nodes that were not reached are never asked.
    """
    table = Table(3)
    with pytest.raises(error):
        table.talk(table.acquire(), *[answers, *([0] if nodes else [])] * 4, Found())
    grant, *undo = table.asked[:2]
    if not nodes:
        assert table.commands == ["grant"]
        return
    assert (undo[0].command, undo[0].nonce) == (Command.RELEASE, grant.nonce)
    assert (to(undo[0]), undo[0].reserve, undo[0].flags) == (nodes, 0, "1" if wakes else "0")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
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
        (5, [5, NO, NO, NO], True),
        (5, [NO] * 5, False),
        (5, [5, 5, NO, 5], False),
        (0, [NO, NO, NO], False),
        (0, [UNSENT, UNSENT, UNSENT, NO], True),  # the error names the nodes that could vote
    ],
)
def test_who_will_wait_has_the_time_to_hear_every_refusal(
    wait: float, heard: list[object], worth: bool
) -> None:
    """A node that refused needs no undoing; a caller that has the names waits for no node."""
    ask = Table(5).acquire(wait=wait).send(None)
    votes = [vote(i, word) for i, word in enumerate(heard)] + [None] * (5 - len(heard))
    assert ask.decided(votes)
    assert ask.worth(votes) is worth


# -- the lease --------------------------------------------------------------------------------


def test_a_lease_counts_from_before_the_first_message_less_drift() -> None:
    """Not from the votes; 1 % and 2 ms are left for clocks that run apart."""
    table = Table(3)
    grant = table.talk(table.acquire(ttl=10), 5, late=3)
    assert grant.since == 100
    assert grant.deadline == pytest.approx(110 - 0.1 - 0.002)


@pytest.mark.parametrize(
    ("answers", "late", "granted"),
    [([5], 9.897, True), ([5], 9.899, False), ([[4, 6, NO], 0], 5, False)],
)
def test_votes_that_come_too_late_are_undone(
    answers: list[object], late: float, granted: bool
) -> None:
    """A majority whose grants may expire before the holder could act is no grant."""
    table = Table(3)
    if granted:
        assert table.talk(table.acquire(ttl=10), *answers, late=late).fence == 5
    else:
        with pytest.raises(NodesUnavailable, match="too late"):
            table.talk(table.acquire(ttl=10), *answers, late=late)
        assert table.commands[-1] == "release"


# -- taken is not unavailable -----------------------------------------------------------------


def test_held_is_taken_while_a_majority_can_be_asked() -> None:
    """Down or silent minorities change nothing, and neither does the order of answers."""
    for size in range(1, 8):
        for down in range((size + 1) // 2):
            for gone in (UNSENT, LOST):
                table = Table(size, hasty=True)
                with pytest.raises(LockTaken):
                    table.talk(table.acquire(), [gone] * down + [Held(1.0)] * (size - down))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_silence_is_unavailable_even_if_some_hold(size: int) -> None:
    """Refusals of fewer than a majority say nothing about the name."""
    few, table = size // 2, Table(size)
    with pytest.raises(NodesUnavailable) as caught:
        table.talk(table.acquire(), [NO] * few + [LOST] * (size - few))
    assert len(caught.value.votes) == size
    silent = [f"node{i}" for i in range(few, size)]
    told = f"{len(silent)} of {size} nodes: lost ({', '.join(silent)})"
    told = told if len(silent) > 1 else f"; {silent[0]}: lost"
    assert str(caught.value).endswith(f"{told}; {LOOK_FURTHER}")


def test_a_split_is_tried_again_by_those_who_do_not_wait() -> None:
    """When nobody has a majority, "taken" would be wrong: three more attempts, short pauses.

    Each has a value of its own, so a late delete of one cannot hit the next. A caller that waits
    tries as often as it likes. It stands in no queue: there is no holder.
    """
    table = Table(3)
    grant = table.talk(table.acquire(), SPLIT, 0, SPLIT, 0, SPLIT, 0, 5)
    assert table.waited == pytest.approx([0.01, 0.02, 0.03])
    nonces = [ask.nonce for ask in table.grants]
    assert len(set(nonces)) == 4
    assert [ask.nonce for ask in table.asked if ask.command is Command.RELEASE] == nonces[:-1]
    assert (grant.fence, grant.nonce) == (5, nonces[-1])
    table = Table(3)
    assert table.talk(table.acquire(wait=0.9), *[SPLIT, 0] * 5, 5).fence == 5
    assert table.blocks == []
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), *[SPLIT, 0] * 4)
    assert table.commands == ["grant", "release"] * 4


@pytest.mark.parametrize(
    ("answers", "holder", "after"),
    [
        ([Held(3.0, "you"), Held(1.0, "her"), Held(2.0, "you"), 5, 5], "you", 1.0),
        ([Held(3.0), Held(1.0), Held(2.0)], None, 2.0),
        ([5, Held(3.0), Held(1.0)], None, 1.0),
        ([Held(None), Held(None), 5], None, None),
    ],
)
def test_a_refusal_says_who_and_how_long(
    answers: list[object], holder: str | None, after: float | None
) -> None:
    """The label that most nodes name, and when a majority could grant; who granted is free."""
    table = Table(len(answers))
    with pytest.raises(LockTaken) as caught:
        table.talk(table.acquire(), answers)
    error = caught.value
    assert (error.name, error.holder, error.retry_after) == ("a", holder, after)
    assert (f"held by you on 3 of {table.size} nodes" in str(error)) is (holder == "you")


# -- waiting ----------------------------------------------------------------------------------


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


def test_an_endless_wait_goes_on() -> None:
    """``wait=inf`` outlasts any number of refusals, and outages too, between which it pauses."""
    table = Table(3)
    told = [UNSENT, UNSENT, *[NO, Wakeup(), Seen(0.0), UNSENT] * 60, 5]
    assert table.talk(table.acquire(wait=float("inf")), *told).fence == 5
    assert table.waited[:2] == pytest.approx([0.01, 0.015])
    assert max(table.waited) == pytest.approx(0.2)
    assert table.now > 100 + 60 * 0.9


@pytest.mark.parametrize(
    ("votes", "wait", "ends_at_once"),
    [
        ([Guarded(9.0)] * 3, 5.0, True),
        ([Guarded(9.0), Guarded(9.0), 5], 5.0, True),
        ([Guarded(9.0), Guarded(9.0), UNSENT], 5.0, True),
        ([Guarded(9.0), Guarded(4.0), 5], 5.0, False),
        ([Guarded(9.0), UNSENT, LOST], 5.0, False),
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


def test_a_wait_for_what_cannot_come_is_noticed() -> None:
    """Without the rule the same attempt goes on asking to the end of its wait."""
    never = Patch(acquire, "is_hopeless", lambda _: lambda *_: False)
    with with_edits(never):
        table = Table(3)
        with pytest.raises(NodesUnavailable):
            table.talk(table.acquire(wait=5.0), *[[Guarded(9.0)] * 3] * 100)
    assert table.now == pytest.approx(105.0)


def test_who_waits_for_a_holder_waits_for_no_nodes() -> None:
    """With "holder" a holder is waited for; silence ends the wait, at its start or later."""
    table = Table(3)
    held: Any = (Held(9.0), Wakeup(), Seen(0.0))
    assert table.talk(table.acquire(wait=5.0, waits_for="holder"), *held, 5).fence == 5
    for before, grants in (((), 1), (held, 2)):
        table = Table(3)
        with pytest.raises(NodesUnavailable):
            table.talk(table.acquire(wait=5.0, waits_for="holder"), *before, UNSENT)
        assert len(table.grants) == grants


def test_who_waits_for_nodes_waits_for_no_holder() -> None:
    """With "nodes" silence is waited for. A refusal ends the wait; no node notes a waiter."""
    table = Table(3)
    assert table.talk(table.acquire(wait=5.0, waits_for="nodes"), UNSENT, 5).fence == 5
    for before in ((), (UNSENT,)):
        table = Table(3)
        with pytest.raises(LockTaken):
            table.talk(table.acquire(wait=5.0, waits_for="nodes"), *before, Held(9.0))
        assert len(table.waited) == len(before)
        assert {ask.waits for ask in table.grants} == {0}


def test_the_last_refusal_is_told() -> None:
    """What stood in the way at the end is what the caller hears."""
    table, waited = Table(3), (Held(9.0, "you"), Wakeup(), Seen(8.1), Wakeup())
    with pytest.raises(NodesUnavailable):
        table.talk(table.acquire(wait=1.0), *waited, UNSENT)
    table = Table(3)
    with pytest.raises(LockTaken, match="held by her") as caught:
        table.talk(table.acquire(wait=1.0), *waited, Held(7.0, "her"))
    assert caught.value.retry_after == 7.0


# -- adopting ---------------------------------------------------------------------------------


def adopt(table: Table) -> Any:
    """Steps to take over the lease of the nonce ``e…``."""
    target = table.policy.target(["a"])
    return acquire.adopt(table.policy, target, old="e" * 32, label="me", ttl=10)


def test_an_adopter_swaps_the_nonce_and_its_release_deletes_what_the_giver_left() -> None:
    """It gets a nonce and a token. Nodes that did not swap may have the giver's key, or get it."""
    table = Table(5)
    grant = table.talk(adopt(table), [8, 8, 8, GONE, LOST])
    assert table.grants[0].old == "e" * 32
    assert (grant.nonce != "e" * 32, grant.fence, grant.deadline > 109) == (True, 8, True)
    table.talk(hold.release(table.policy, grant))
    assert table.commands == ["grant", "release", "release"]
    assert (table.asked[2].nonce, to(table.asked[2])) == ("e" * 32, {3, 4})


@pytest.mark.parametrize(
    ("votes", "over"),
    [
        ([8, 8, GONE, GONE, LOST], False),  # three may still have it
        ([8, 8, GONE, GONE, GONE], True),
        ([8, B, B, B, LOST], True),
        ([8, B, B, C, C], False),
        ([GONE, GONE, GONE, LOST, LOST], True),
        ([8, LOST, LOST, UNSENT, UNSENT], False),
    ],
)
def test_a_tenancy_is_over_when_nobody_can_adopt_it(votes: list[Any], over: bool) -> None:
    """Too few nodes have it, or one other owner has a majority; else it is given back.

    A split is tried again with another nonce, after a pause; silence is not.
    """
    table = Table(5, hasty=True)
    error = LeaseLost if over else NodesUnavailable if LOST in votes[1:3] else LockTaken
    with pytest.raises(error, match=None if over else "can still be adopted"):
        table.talk(adopt(table), *[votes, 0] * 4)
    tries = 4 if error is LockTaken else 1
    undo = table.asked[1]
    assert table.commands == ["grant", "release" if over else "return"] * tries
    assert undo.nonce == table.grants[0].nonce
    assert over or undo.old == "e" * 32
    assert len({ask.nonce for ask in table.grants}) == tries
    assert table.waited == pytest.approx([0.01, 0.02, 0.03][: tries - 1])


@pytest.mark.parametrize("size", range(1, 8))
def test_adopting_too_late_is_lost(size: int) -> None:
    """A majority without the old nonce: over, or another adopter was first."""
    table = Table(size, hasty=True)
    with pytest.raises(LeaseLost):
        table.talk(adopt(table), NO)


# -- interruption -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "answers", "nodes", "undo"),
    [
        (lambda table: table.acquire(wait=5), [], {0, 1, 2}, Command.RELEASE),
        (lambda table: table.acquire(wait=5), [[4, 6, NO]], {0, 1}, Command.RELEASE),  # a raise
        (lambda table: table.acquire(wait=5), [[5, NO, NO]], {0}, Command.RELEASE),  # an undo
        (lambda table: hold.release(table.policy, table.grant()), [], {0, 1, 2}, Command.RELEASE),
        (adopt, [], {0, 1, 2}, Command.RETURN),
    ],
    ids=["grant", "raise", "undo", "release", "adoption"],
)
def test_an_interruption_is_undone_and_goes_on(
    begin: Callable[[Table], Any], answers: list[object], nodes: set[int], undo: Command
) -> None:
    """All nodes that may hold are asked to undo, then the exception goes on.

    GeneratorExit passes at once: ``close()`` would fail if anything were yielded.
    """
    for error in (KeyboardInterrupt, RuntimeError, SystemExit):
        table, raised = Table(3), error("now")
        steps = begin(table)
        table.until(steps, *answers)
        ask = steps.throw(raised)
        assert (ask.command, to(ask)) == (undo, nodes)
        with pytest.raises(error) as caught:
            steps.send(table.votes(ask, 0))
        assert caught.value is raised
    table = Table(3)
    steps = begin(table)
    table.until(steps, *answers)
    steps.close()
    assert steps.gi_frame is None


def test_an_interrupted_pause_asks_nothing_more() -> None:
    """What was granted is undone before it."""
    table = Table(3)
    steps = table.acquire(wait=5)
    assert isinstance(table.until(steps, LOST, 0), Sleep)
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
