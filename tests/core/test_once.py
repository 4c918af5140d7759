"""Conversations of a caller whose work was done before, and of a run that records its own."""

from __future__ import annotations

from typing import Any

import pytest

from django_redlock.core import acquire, completion
from django_redlock.core.commands import Complete
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.protocol import Answer, Vote, Wakeup
from django_redlock.core.reasons import ReasonCode, because
from tests.simulation.mutants import Edit, Patch, with_edits

from . import test_conversations as scripted
from .test_conversations import LOST, NO, UNSENT, Recorded, Table, to

AT = 1_795_846_859_363  # milliseconds since 1970


class Once(Recorded):
    """A node's refusal, because the work is done until so many seconds have passed."""

    def __init__(self, left: float | None = 60.0, at: int = AT) -> None:
        self.left, self.at = left, at


@pytest.fixture(autouse=True)
def told_when(monkeypatch):
    """What such a refusal tells besides."""
    usual = scripted.vote

    def vote(i: int, word: object, *more: Any) -> Vote:
        found = usual(i, word, *more)
        if isinstance(word, Once):
            return found._replace(left=word.left, result=word.at, holder="who did it")
        return found

    monkeypatch.setattr(scripted, "vote", vote)


def ask(table: Table, *answers: object, late: float = 0.0, **options: Any) -> Any:
    """What comes of a caller that wants to do the work once."""
    steps = table.acquire(thorough=True, puts_back=True, **options)
    return table.talk(steps, *answers, late=late)


def put_back(table: Table, *answers: object, **options: Any) -> Complete | None:
    """The request by which a caller that is refused puts the record back; None: there is none."""
    with pytest.raises(LockTaken) as refused:
        ask(table, *answers, **options)
    assert refused.value.code == ReasonCode.RECORDED
    found = [each for each in table.asked if isinstance(each, Complete)]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_record_is_put_back_where_the_name_was_granted():
    """As it was met, in the place of the caller's own key; what it did not hear of is undone."""
    table = Table(5)
    back = put_back(table, [5, Once(), LOST, NO, UNSENT])
    assert back is not None
    first = table.asked[0]
    assert (back.nonce, to(back), back.at, back.label) == (first.nonce, {0}, AT, "who did it")
    assert (back.life, back.granted) == (60_000, 10_000)
    assert table.commands == ["grant", "complete", "release", "release"]
    undo, wake = table.asked[2:]
    assert (undo.nonce, to(undo), undo.flags) == (first.nonce, {2}, "0")
    assert (wake.nonce == first.nonce, wake.touched, wake.flags) == (False, frozenset(), "1")


def test_where_all_nodes_have_the_record_nothing_is_sent():
    """As nearly always: a caller that is refused costs one round."""
    table = Table(5)
    assert put_back(table, Once()) is None
    assert table.commands == ["grant"]


def test_of_several_records_the_one_that_lasts_longest_is_put_back():
    """It is that of the last run; the time of that one is told, too."""
    table = Table(5)
    back = put_back(table, [5, 5, Once(10.0, AT), Once(50.0, AT + 9), Once(20.0, AT)])
    assert back is not None
    assert (back.life, back.at, to(back)) == (50_000, AT + 9, {0, 1})
    with pytest.raises(LockTaken) as refused:
        ask(Table(5), [5, 5, Once(10.0, AT), Once(50.0, AT + 9), Once(20.0, AT)])
    assert completion.done_at(refused.value.votes) == AT + 9
    assert refused.value.retry_after == 50.0


def keeps_its_time(late: float) -> bool:
    """Whether the time that the asking took is taken off what is put back."""
    back = put_back(Table(3), [5, 5, Once(60.0)], late=late)
    return back is not None and back.life == 60_000 - int(late * 1000)


def test_the_time_that_the_asking_took_is_taken_off():
    """Else callers would hand a record on for ever, a little later each time."""
    assert keeps_its_time(0.5)
    last = put_back(Table(3), [5, 5, Once(0.0015)])
    assert last is not None
    assert last.life == 1  # a millisecond is left
    assert put_back(Table(3), [5, 5, Once(0.4)], late=0.5) is None  # its time is over
    assert put_back(Table(3), [5, 5, Once(None)]) is None  # another client's: it never ends


def test_a_record_that_is_put_back_as_it_was_met_is_noticed():
    """Broken: the asking took no time."""
    with with_edits(Edit(completion, "put_back", "_left(last) - elapsed", "_left(last)")):
        assert not keeps_its_time(0.5)


def hears_all() -> bool:
    """Whether a caller that has met a record waits for the other nodes' votes as well."""
    table = Table(3, hasty=True)
    return put_back(table, [Once(), 5, 5]) is not None


def test_a_caller_hears_all_nodes_behind_the_first_record():
    """Else it would put it back on no node, and the next restart would forget it."""
    assert hears_all()


def test_a_caller_that_stops_at_the_first_record_is_noticed():
    """Broken: one record is enough to decide."""
    hasty = Edit(
        acquire,
        "attempt",
        "all_heard if puts_back else with_majority(usual, policy.majority)",
        "with_majority(usual, policy.majority)",
    )
    with with_edits(hasty):
        assert not hears_all()


def puts_back_on_heard_nodes() -> bool:
    """Whether only nodes whose grant was heard get the record."""
    back = put_back(Table(3), [5, LOST, Once()])
    return back is not None and to(back) == {0}


def test_a_node_that_was_not_heard_gets_no_record():
    """Its grant may come later than the record was met, so nobody knows how much time is over."""
    assert puts_back_on_heard_nodes()


def test_a_record_for_a_node_that_was_not_heard_is_noticed():
    """Broken: all nodes that may have the caller's key get it."""
    with with_edits(Edit(completion, "put_back", "vote.answer is YES", "vote.answer is not NO")):
        assert not puts_back_on_heard_nodes()


def test_a_caller_without_that_wish_puts_nothing_back():
    """A plain lock of that name, or a copy of a task's message, undoes what it was granted."""
    for options in ({}, {"thorough": True}):
        table = Table(3)
        with pytest.raises(LockTaken):
            table.talk(table.acquire(**options), [5, 5, Once()])
        assert "complete" not in table.commands


def test_a_record_without_a_time_is_not_put_back():
    """That of a task's message."""
    assert put_back(Table(3), [5, 5, Recorded()]) is None


def test_a_caller_that_no_majority_hears_is_told_so():
    """The work may have been done or not: nothing is known, and nothing is done."""
    with pytest.raises(NodesUnavailable):
        ask(Table(3), [5, LOST, UNSENT])
    assert put_back(Table(3), [Once(), LOST, UNSENT]) is None  # but one record is enough


def wakes_the_next() -> bool:
    """Whether a waiter that was woken, and hears of a record from all nodes, wakes another one."""
    table = Table(3)
    assert put_back(table, NO, Wakeup("e" * 32), Once(), wait=60.0) is None
    *_, wake = table.asked
    return wake.command == "release" and (wake.touched, wake.flags) == (frozenset(), "1")


def test_each_waiter_that_hears_of_a_record_wakes_the_next():
    """The holder wakes one: all are to hear that there is nothing to do."""
    assert wakes_the_next()


def test_a_waiter_that_keeps_the_news_is_caught():
    """Broken: it wakes one only for what it was granted. The rest wait until they give up."""
    with with_edits(Edit(acquire, "_spread", "touched or woken is not None", "touched")):
        assert not wakes_the_next()


def test_an_interruption_undoes_what_was_granted():
    """The record is put back by the next caller."""
    table = Table(3)
    steps = table.acquire(thorough=True, puts_back=True)
    first = steps.send(None)
    back = steps.send([scripted.vote(i, each) for i, each in enumerate([5, 5, Once()])])
    assert isinstance(back, Complete)
    undo = steps.throw(KeyboardInterrupt())
    assert (undo.command, undo.nonce, undo.touched) == ("release", first.nonce, frozenset({0, 1}))
    with pytest.raises(KeyboardInterrupt):
        steps.send([])


def records(table: Table) -> list[Vote]:
    """The votes on the record of a run."""
    grant = table.grant()
    votes: list[Vote] = table.talk(completion.complete(table.policy, grant, life=86_400, at=AT))
    return votes


def test_a_run_records_on_all_nodes_for_longer_than_any_ttl():
    """With the time at which it was done, which all nodes have alike."""
    table = Table(5)
    votes = records(table)
    (request,) = table.asked
    assert (request.life, request.at, to(request)) == (86_400_000, AT, set(range(5)))
    assert (request.label, request.granted) == ("", 0)
    assert all(each.answer is Answer.YES for each in votes)


def test_a_record_by_a_plain_majority_is_noticed():
    """Broken: records count where a majority has them. Work is done a second time."""

    def by_a_majority(votes: Any) -> bool:
        found = [each for each in votes if each and each.code == ReasonCode.RECORDED]
        return len(found) > len(votes) // 2

    assert put_back(Table(3), [5, 5, Once()]) is not None
    with with_edits(Patch(acquire, "has_record", lambda _: by_a_majority)):
        assert ask(Table(3), [5, 5, Once()]).fence == 5
    assert because(ReasonCode.RECORDED).code == "recorded"
