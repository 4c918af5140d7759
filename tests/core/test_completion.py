"""Conversations about marks of queued tasks, and about records that work is done."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

import pytest

from django_redlock.core import acquire, completion
from django_redlock.core.commands import ANY_TASK, Complete
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Command, Votes, Wakeup
from django_redlock.core.reasons import ReasonCode
from tests.simulation.mutants import Patch, with_edits

from .table import LOST, NO, UNSENT, WORD, Held, Recorded, Table, to, vote

OTHER = Held(holder="other", owner="a" * 16)
AGAIN = Held(holder="other", owner="c" * 16)  # the same id, marked by another attempt
THIRD = Held(holder="third", owner="b" * 16)
RUNS = Held(holder="other", owner="")

# -- marks ------------------------------------------------------------------------------------


def publish(table: Table, *answers: object, **options: Any) -> completion.Outcome:
    """Mark a task; what came of it."""
    key = completion.mark_key(table.policy, "sync", ["account:1"])
    options = {"task": "sync", "task_id": "me", "ttl": 60.0, **options}
    found: completion.Outcome = table.talk(
        completion.set_mark(table.policy, key, **options), *answers
    )
    return found


def test_a_mark_is_one_request_to_all_nodes() -> None:
    """It says key, locks, time, task and id; a majority of YES is enough."""
    table = Table(size=5, hasty=True)
    outcome = publish(table, [1, 1, 1, LOST, LOST], locks=["redlock:lock:account:1"])
    (ask,) = table.asked
    assert (ask.command, ask.to) == (Command.MARK, None)
    marks = "redlock:marks", "redlock:mark:sync:account:1"
    assert ask.keys == (*marks, "redlock:lock:account:1")
    assert (ask.ttl, ask.task, ask.task_id) == (60_000, "sync", "me")
    assert (outcome.nonce, outcome.certain, outcome.duplicate_of) == (ask.nonce, True, "")
    # A refused mark waits a moment for the last nodes: what they set costs another request.
    yes, no = vote(0, 1), vote(1, OTHER)
    assert [ask.worth(votes) for votes in ([no, no, None], [yes, yes, None], [no, no, no])] == [
        *(True, False, False),
    ]


@pytest.mark.parametrize(
    ("answers", "undone"),
    [
        ([OTHER, OTHER, OTHER, UNSENT, UNSENT], set()),
        ([OTHER, 1, OTHER, LOST, OTHER], {1, 3}),
        ([OTHER, RUNS, RUNS, UNSENT, UNSENT], set()),  # a run counts with any mark
        ([RUNS, RUNS, RUNS, UNSENT, UNSENT], set()),
    ],
)
def test_a_duplicate_is_known_in_one_round_trip(answers: list[object], undone: set[int]) -> None:
    """A majority that names one other id decides; what was set, or may be, is taken back."""
    table = Table(size=5)
    outcome = publish(table, answers)
    assert (outcome.duplicate_of, outcome.certain) == ("other", False)
    mark, *undo = table.asked
    assert [(each.command, each.nonce, each.keys, to(each), each.whose) for each in undo] == (
        [(Command.UNMARK, mark.nonce, mark.keys, undone, "")] if undone else []
    )


@pytest.mark.parametrize(
    ("answers", "asks"),
    [
        ([OTHER, LOST, LOST], 1),  # silence: others may have been told this id by a majority
        ([1, LOST, LOST], 1),
        (LOST, 1),
        (UNSENT, 1),
        ([OTHER, UNSENT, UNSENT], 1),
        ([OTHER, AGAIN, UNSENT], completion.SPLITS + 1),  # marks are not added up
    ],
)
def test_without_a_majority_the_message_is_sent(answers: object, asks: int) -> None:
    """Nobody is left out by a minority; it is told that the mark is not certain.

    What a majority may have set stays; the nonce is told, to remove it later.
    """
    table = Table()
    outcome = publish(table, *[answers] * asks)
    assert (outcome.certain, outcome.duplicate_of) == (False, "")
    assert table.commands == ["mark"] * asks
    may_have_it = answers == LOST or (isinstance(answers, list) and LOST in answers)
    assert outcome.nonce == (table.asked[0].nonce if may_have_it else "")


def test_a_split_is_tried_again_with_another_nonce() -> None:
    """Each takes back its part, and pauses, before it asks again; it ends after a few attempts."""
    table = Table()
    outcome = publish(table, [1, OTHER, THIRD], 0, 1)
    first, undo, second = table.asked
    assert (to(undo), undo.nonce, outcome.nonce) == ({0}, first.nonce, second.nonce)
    assert (first.nonce != second.nonce, outcome.certain, len(table.waited)) == (True, True, 1)
    table = Table()
    outcome = publish(table, *[[1, OTHER, THIRD], 0] * 9)
    assert (outcome.nonce, outcome.certain, outcome.duplicate_of) == ("", False, "")
    assert table.commands == ["mark", "unmark"] * (completion.SPLITS + 1)
    assert table.waited == pytest.approx([0.01 * (n + 1) for n in range(completion.SPLITS)])


def test_an_interrupted_mark_is_taken_back_everywhere() -> None:
    """After an exception nobody knows where the mark was set; the nonce was told before."""
    table, told = Table(), list[str]()
    key = completion.mark_key(table.policy, "sync", ["a"])
    steps = completion.set_mark(
        table.policy, key, task="sync", task_id="me", ttl=1, begun=told.append
    )
    mark = table.until(steps)
    assert told == [mark.nonce]
    undo: Any = steps.throw(KeyboardInterrupt())
    assert (undo.command, undo.nonce, to(undo)) == (Command.UNMARK, mark.nonce, {0, 1, 2})
    with pytest.raises(KeyboardInterrupt):
        steps.send(table.votes(undo, 1))


def test_removing_is_heard_and_repeated_when_interrupted() -> None:
    """By its nonce, or whatever mark is there."""
    table = Table()
    table.talk(completion.remove(table.policy, "redlock:mark:x", "f" * 32))
    table.talk(completion.remove(table.policy, "redlock:mark:x"))
    own, any_ = table.asked
    assert (own.nonce, own.whose) == ("f" * 32, "")
    assert (any_.nonce != own.nonce, any_.whose) == (True, ANY_TASK)
    interrupted(completion.remove(table.policy, "redlock:mark:x", "f" * 32))


def interrupted(steps: Any) -> None:
    """See that a request is asked for once more: unknown what arrived, and twice is no harm."""
    ask = next(steps)
    assert steps.throw(KeyboardInterrupt()) == ask
    with pytest.raises(KeyboardInterrupt):
        steps.send([])


def test_a_mark_has_a_key_for_each_task_and_set_of_names() -> None:
    """The task is part of it, the order of names is not, and no two run into each other."""
    policy = Policy(size=3)

    def key(task: str, *names: str) -> str:
        return completion.mark_key(policy, task, names)

    assert key("t", "b", "a", "a") == key("t", "a", "b")
    different = [
        *(key("a", "b:c"), key("a:b", "c"), key("a%3Ab", "c")),
        *(key("t", "a"), key("t", "a", "b"), key("t", "a", "b", "c"), key("t", "a+b")),
        *(key("t", "x" * 512), key("t", "x" * 511 + "y"), key("u" * 600, "x"), key("u\n", "x")),
    ]
    assert len(set(different)) == len(different)
    assert max(len(each) for each in different) < 530


# -- who meets a record -----------------------------------------------------------------------

AT = 1_795_846_859_363  # milliseconds since 1970
DONE = Recorded()  # of a task's message: it does not tell when


def once(left: float | None = 60.0, at: int = AT) -> Recorded:
    """A record that tells when the work was done, and lasts for so many seconds."""
    return Recorded(left, at, "who did it")


def meet(table: Table, *answers: object, back: bool = True, late: float = 0, **options: Any) -> Any:
    """What comes of a caller for whose work there may be a record, which it may put back."""
    steps = table.acquire(thorough=True, puts_back=back, **options)
    return table.talk(steps, *answers, late=late)


def put_back(table: Table, *answers: object, **options: Any) -> Complete | None:
    """The request by which a caller that is refused puts the record back; None: there is none."""
    with pytest.raises(LockTaken) as refused:
        meet(table, *answers, **options)
    assert refused.value.code == ReasonCode.RECORDED
    found = [each for each in table.asked if isinstance(each, Complete)]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_one_record_in_any_reply_ends_a_copy(size: int, back: bool) -> None:
    """Whatever the other nodes say: granted, held by somebody, or nothing."""
    for rest in combinations_with_replacement([5, NO, LOST, UNSENT], size - 1):
        for answers in ([DONE, *rest], [*rest, DONE]):
            assert put_back(Table(size), answers, back=back) is None


def test_a_record_by_a_plain_majority_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: records count where a majority has them. Work is done a second time."""

    def by_a_majority(votes: Votes) -> bool:
        found = [each for each in votes if each and each.code == ReasonCode.RECORDED]
        return len(found) > len(votes) // 2

    monkeypatch.setattr(acquire, "has_record", by_a_majority)
    assert meet(Table(3), [5, 5, DONE]).fence == 5


def test_a_copy_that_ends_leaves_nothing_taken() -> None:
    """What other nodes granted to it is freed again, and their waiters are woken."""
    table = Table(3)
    assert put_back(table, [5, DONE, LOST], back=False, wait=60) is None
    assert table.commands == ["grant", "release"]
    undo = table.asked[-1]
    assert (undo.touched, undo.flags, table.waited) == ({0, 2}, "1", [])


def test_a_copy_hears_all_nodes_and_others_a_majority() -> None:
    """One node may have the record that the majority lacks; one record is enough at once.

    Who puts it back hears all nodes behind it: else the next restart would forget it.
    """

    def decided(*answers: object, **options: Any) -> bool:
        ask = Table(3).acquire(**options).send(None)
        return bool(ask.decided([each and vote(i, each) for i, each in enumerate(answers)]))

    wishes: list[dict[str, bool]] = [{"thorough": True, "puts_back": True}, {"thorough": True}, {}]
    assert [decided(5, 5, None, **each) for each in wishes] == [False, False, True]
    assert [decided(5, 5, LOST, **each) for each in wishes] == [True, True, True]
    assert [decided(DONE, None, None, **each) for each in wishes] == [False, True, False]


def test_a_caller_that_no_majority_hears_is_told_so() -> None:
    """The work may have been done or not: nothing is known, and nothing is done."""
    with pytest.raises(NodesUnavailable):
        meet(Table(3), [5, LOST, UNSENT])


# -- putting it back --------------------------------------------------------------------------


def test_a_record_is_put_back_where_the_name_was_granted() -> None:
    """As it was met, in the place of the caller's own key; what it did not hear of is undone.

    There its grant may come later than the record was met, so nobody knows how much time is over.
    """
    table = Table(5)
    back = put_back(table, [5, once(), LOST, NO, UNSENT])
    assert back is not None
    first = table.asked[0]
    assert (back.nonce, to(back), back.at, back.label) == (first.nonce, {0}, AT, "who did it")
    assert (back.life, back.granted) == (60_000, 10_000)
    assert table.commands == ["grant", "complete", "release", "release"]
    undo, wake = table.asked[2:]
    assert (undo.nonce, to(undo), undo.flags) == (first.nonce, {2}, "0")
    assert (wake.nonce == first.nonce, wake.touched, wake.flags) == (False, frozenset(), "1")


@pytest.mark.parametrize(
    ("answers", "options"),
    [
        ([5, 5, once()], {"back": False}),  # a copy of a task's message
        ([5, 5, DONE], {}),  # it tells no time
        ([5, 5, once(0.4)], {"late": 0.5}),  # its time is over
        ([5, 5, once(None)], {}),  # another client's: it never ends
        ([once(), once(), once()], {}),  # all have it, as nearly always: that costs one round
        ([once(), LOST, UNSENT], {}),  # nobody granted it; one record is enough
    ],
)
def test_what_is_not_put_back(answers: list[object], options: dict[str, Any]) -> None:
    """The caller is refused all the same, and undoes what it was granted."""
    table = Table(3)
    assert put_back(table, answers, **options) is None
    assert ("release" in table.commands) is (5 in answers or LOST in answers)


def test_of_several_records_the_one_that_lasts_longest_is_put_back() -> None:
    """It is that of the last run; the time of that one is told, too."""
    table = Table(5)
    with pytest.raises(LockTaken) as refused:
        meet(table, [5, 5, once(10.0), once(50.0, AT + 9), once(20.0)])
    back = table.asked[1]
    assert (back.life, back.at, to(back)) == (50_000, AT + 9, {0, 1})
    assert completion.done_at(refused.value.votes) == AT + 9
    assert refused.value.retry_after == 50.0


@pytest.mark.parametrize(("left", "late", "life"), [(60.0, 0.5, 59_500), (0.0015, 0.0, 1)])
def test_the_time_that_the_asking_took_is_taken_off(left: float, late: float, life: int) -> None:
    """Else callers would hand a record on for ever, a little later each time."""
    back = put_back(Table(3), [5, 5, once(left)], late=late)
    assert back is not None
    assert back.life == life


def wakes_the_next() -> bool:
    """Whether a waiter that was woken, and hears of a record from all nodes, wakes another one."""
    table = Table(3)
    assert put_back(table, NO, Wakeup(WORD), once(), wait=60.0) is None
    *_, wake = table.asked
    return wake.command == "release" and (wake.touched, wake.flags) == (frozenset(), "1")


def test_each_waiter_that_hears_of_a_record_wakes_the_next() -> None:
    """The holder wakes one: all are to hear that there is nothing to do."""
    assert wakes_the_next()


def test_a_waiter_that_keeps_the_news_is_caught() -> None:
    """Broken: it wakes one only for what it was granted. The rest wait until they give up."""

    def keeping(real: Any) -> Any:
        return lambda *args, woken, **facts: real(*args, woken=None, **facts)

    with with_edits(Patch(acquire, "_spread", keeping)):
        assert not wakes_the_next()


def test_an_interrupted_caller_undoes_what_was_granted() -> None:
    """The record is put back by the next caller."""
    table = Table(3)
    steps = table.acquire(thorough=True, puts_back=True)
    back = table.until(steps, [5, 5, once()])
    assert isinstance(back, Complete)
    undo = steps.throw(KeyboardInterrupt())
    assert (undo.command, undo.nonce, undo.touched) == ("release", back.nonce, {0, 1})
    with pytest.raises(KeyboardInterrupt):
        steps.send([])


# -- leaving it -------------------------------------------------------------------------------


def test_the_record_is_written_to_all_nodes_that_may_have_the_name() -> None:
    """One request, with a life of its own; a node that is down is told later.

    It is settled by a majority of records, not of replies: an emptied node has nothing to record.
    """
    table = Table(5)
    grant = table.talk(table.acquire(), [5, 5, 5, LOST, UNSENT])
    votes = table.talk(completion.complete(table.policy, grant, life=86_400, at=AT), 1)
    (ask,) = table.asked[1:]
    assert (ask.command, to(ask), ask.nonce) == ("complete", {0, 1, 2, 3}, grant.nonce)
    assert (ask.life, ask.at, ask.target) == (86_400_000, AT, grant.target)
    assert (ask.label, ask.granted, ask.lasts) == ("", 0, table.policy.max_ttl)
    assert [each.answer for each in votes].count(Answer.YES) == 4
    assert not ask.decided([vote(0, NO), vote(1, 1), vote(2, 1), None, None])
    interrupted(completion.complete(table.policy, grant, life=60))
