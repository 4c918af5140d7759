"""Conversations of a run that leaves a record, and of a copy that meets one."""

from __future__ import annotations

import itertools

import pytest

from django_redlock.core import acquire, completion, quorum
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.protocol import Answer, Grant, Request, Votes
from django_redlock.core.quorum import count
from django_redlock.core.reasons import ReasonCode
from tests.simulation.mutants import Patch, with_edits

from .test_conversations import LOST, NO, UNSENT, Recorded, Table, to, vote

DONE = Recorded()


def copy(table: Table, *answers: object, wait: float = 0.0) -> Grant:
    """What comes of a copy that asks for its run name."""
    target = table.policy.target(["run"])
    steps = acquire.acquire(
        table.policy,
        acquire.Names(table.policy, target),
        label="me",
        ttl=10.0,
        wait=wait,
        thorough=True,
    )
    grant: Grant = table.talk(steps, *answers)
    return grant


def outcome(size: int, answers: tuple[object, ...]) -> str:
    """The outcome of an attempt, as one word."""
    try:
        copy(Table(size), list(answers), *[UNSENT] * 4)
    except LockTaken as refused:
        return "done" if refused.code == ReasonCode.RECORDED else "taken"
    except NodesUnavailable:
        return "unknown"
    return "runs"


@pytest.mark.parametrize("size", [1, 3, 5])
def test_one_record_in_any_reply_ends_a_copy(size):
    """Whatever the other nodes say: granted, held by somebody, or nothing."""
    for rest in itertools.combinations_with_replacement([5, NO, LOST, UNSENT], size - 1):
        assert outcome(size, (DONE, *rest)) == "done"
        assert outcome(size, (*rest, DONE)) == "done"


def test_a_record_that_needs_a_majority_is_caught(monkeypatch):
    """Broken: records count when a majority has them. A copy runs though one node knows better."""

    def by_a_majority(votes: Votes) -> bool:
        recorded = [vote for vote in votes if vote and vote.code == ReasonCode.RECORDED]
        return len(recorded) > len(votes) // 2

    for module in (quorum, acquire):
        monkeypatch.setattr(module, "has_record", by_a_majority)
    assert outcome(3, (5, 5, DONE)) == "runs"
    assert outcome(3, (5, DONE, DONE)) == "done"


def test_a_copy_that_ends_leaves_nothing_taken():
    """What other nodes granted to it is freed again, and their waiters are woken."""
    table = Table(3)
    with pytest.raises(LockTaken):
        copy(table, [5, DONE, LOST], wait=60)
    undo = table.asked[-1]
    assert table.commands == ["grant", "release"]
    assert undo.touched == frozenset({0, 2})
    assert undo.flags == "1"
    assert table.waited == []


def decided(ask: Request, *answers: object) -> bool:
    """Whether the outcome is clear with these answers; None is not heard yet."""
    return ask.decided([None if each is None else vote(i, each) for i, each in enumerate(answers)])


def test_a_copy_hears_all_nodes_and_others_a_majority():
    """One node may have the record that the majority lacks; one record is enough at once."""
    table = Table(3)
    target = table.policy.target(["run"])
    asks = [
        acquire.acquire(
            table.policy,
            acquire.Names(table.policy, target),
            label="",
            ttl=10.0,
            wait=0,
            thorough=thorough,
        ).send(None)
        for thorough in (True, False)
    ]
    thorough, usual = (ask for ask in asks if isinstance(ask, Request))
    assert [decided(ask, 5, 5, None) for ask in (thorough, usual)] == [False, True]
    assert [decided(ask, 5, 5, LOST) for ask in (thorough, usual)] == [True, True]
    assert decided(thorough, DONE, None, None)


def ask_to_record() -> Request:
    """The request of a run that is done."""
    table = Table(5)
    steps = completion.complete(table.policy, copy(table, 5), life=60.0)
    ask = steps.send(None)
    assert isinstance(ask, Request)
    return ask


def waits_for_a_majority_of_records() -> bool:
    """Whether a record is settled exactly when a majority has it, or cannot have it any more."""
    ask = ask_to_record()
    settled = [(5, 5, 5, None, None), (NO, NO, NO, None, None), (NO, NO, 5, 5, LOST)]
    is_open = [(NO, 5, 5, None, None), (NO, NO, 5, 5, None), (LOST, LOST, None, None, None)]
    return all(decided(ask, *each) for each in settled) and not any(
        decided(ask, *each) for each in is_open
    )


def test_a_record_is_settled_by_its_majority_not_by_replies():
    """A node that was emptied replies at once that it has nothing to turn into a record."""
    assert waits_for_a_majority_of_records()


def test_a_record_that_is_settled_by_replies_is_noticed():
    """Broken: a majority of replies is enough. The run would tell that it may run again."""
    hasty = Patch(
        completion, "recorded_or_not", lambda _: lambda votes, majority: count(votes).open <= 2
    )
    with with_edits(hasty):
        assert not waits_for_a_majority_of_records()


def test_the_record_is_written_to_all_nodes_that_may_have_the_name():
    """One request, to all of them, with a life of its own; a node that is down is told later."""
    table = Table(5)
    grant = copy(table, [5, 5, 5, LOST, UNSENT])
    votes = table.talk(completion.complete(table.policy, grant, life=3660), 1)
    (ask,) = table.asked[1:]
    assert (ask.command, to(ask), ask.nonce) == ("complete", {0, 1, 2, 3}, grant.nonce)
    assert (ask.life, ask.target) == (3_660_000, grant.target)
    assert ask.lasts == table.policy.max_ttl
    assert [each.answer for each in votes].count(Answer.YES) == 4


def test_an_interrupted_record_is_asked_for_once_more():
    """It is unknown what arrived, and asking twice does no harm."""
    table = Table(3)
    grant = copy(table, 5)
    steps = completion.complete(table.policy, grant, life=60)
    first = steps.send(None)
    assert steps.throw(KeyboardInterrupt()) == first
    with pytest.raises(KeyboardInterrupt):
        steps.send([])
