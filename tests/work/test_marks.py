"""Messages that are not sent twice: their marks from ``publish`` to the run, of each kind."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction

from django_redlock import conf, events
from django_redlock.celery import run as of_celery
from django_redlock.celery.publishing import same_message
from django_redlock.core import completion
from django_redlock.core.errors import DuplicateTask
from django_redlock.core.reasons import ReasonCode
from django_redlock.events import TaskEvent, TaskOutcome
from django_redlock.work import publishing
from django_redlock.work.marks import Mark, short_name
from django_redlock.work.publishing import OutgoingMessage
from django_redlock.work.run import Run
from tests.celery.desk import hold, marked, memory

from .kinds import FAILED, LATER, RAN, SKIPPED, Kind, elsewhere

KEY = "account:{value}"
MODES = pytest.mark.parametrize("mode", ["until_started", "until_finished"])


def unique(kind: Kind, mode: str = "until_finished", **options: Any) -> Any:
    """A task of which no second message is sent."""
    conflict = {"on_conflict": "retry"} if mode == "until_started" else {}
    return kind.task(KEY, mode=mode, **{**conflict, **options})


@MODES
def test_a_second_message_is_not_sent_while_one_waits(kind: Kind, mode):
    """It is told the first; when that has run, another one is sent."""
    task = unique(kind, mode)
    first = kind.send(task)
    assert (kind.send(task), kind.waiting()) == (first, 1)
    assert marked() == {f"{kind.name_of(task)}:account:1"}
    assert kind.run() == RAN
    assert marked() == set()
    assert kind.send(task) != first


@MODES
def test_while_a_run_holds_the_lock_the_mode_decides(kind: Kind, mode):
    """With until_finished the lock is the mark; with until_started one more message may wait."""
    seen: list[Any] = []

    def meanwhile() -> None:
        seen.append(marked())
        seen.append(kind.send(task))

    task = unique(kind, mode)
    first = kind.send(task)
    kind.bodies.append(meanwhile)
    kind.run()
    assert seen[0] == set()  # removed before the body began
    assert (seen[1] == first) == (mode == "until_finished")
    assert kind.waiting() == (mode == "until_started")


def test_what_a_duplicate_is_told(kind: Kind):
    """By ``on_duplicate``: an error with the first id, nothing, or what a function returns."""
    seen: list[TaskEvent] = []
    given = {
        "raise": unique(kind, on_duplicate="raise"),
        "drop": unique(kind, on_duplicate="drop"),
        "function": unique(kind, on_duplicate=lambda first: SimpleNamespace(id=f"of {first.id}")),
    }
    ids = {name: kind.send(task) for name, task in given.items()}
    events.watch_tasks(seen.append)
    try:
        with pytest.raises(
            DuplicateTask, match=f"the task {ids['raise']} for the same key"
        ) as said:
            kind.send(given["raise"])
        assert kind.send(given["drop"]) == ""
        assert kind.send(given["function"]) == f"of {ids['function']}"
    finally:
        events.unwatch_tasks(seen.append)
    error = pickle.loads(pickle.dumps(said.value))  # noqa: S301 - our own
    assert (error.task_id, error.name, error.code) == (
        *(ids["raise"], "account:1", ReasonCode.ALREADY_QUEUED),
    )
    assert [each.other_id for each in seen] == list(ids.values())
    assert {each.outcome for each in seen} == {TaskOutcome.DUPLICATE}


def test_another_task_and_another_key_are_no_duplicates(kind: Kind):
    """Two tasks may share a key; what one has queued, or runs, is not in place of the other."""
    task, other = unique(kind), unique(kind)
    assert len({kind.send(task), kind.send(task, "1 "), kind.send(other), kind.send(other, 2)}) == 4
    with hold("account:3"):  # of no task at all
        kind.send(task, 3)
    assert kind.waiting() == 5
    kind.drain()
    kind.send(other)
    kind.bodies.append(lambda: kind.send(task))
    kind.run()
    assert kind.waiting() == 1


@pytest.mark.parametrize("ends", ["skipped", "fails with the refusal", "fails in its body"])
def test_a_message_that_ends_waits_no_more(kind: Kind, ends):
    """Skipped or failed: the next one is sent."""
    task = unique(kind, on_conflict="raise" if "refusal" in ends else "skip")
    first = kind.send(task)
    kind.bodies.append(lambda: 1 / 0)
    with nullcontext() if "body" in ends else hold("account:1"):
        assert kind.run() == (SKIPPED if ends == "skipped" else FAILED)
        assert marked() == set()
    assert kind.send(task) != first


def test_a_message_that_comes_back_keeps_its_place(kind: Kind):
    """Put off because another holds the key, it is still the one that counts."""
    task = unique(kind, on_conflict="retry")
    first = kind.send(task)
    with hold("account:1"):
        for _ in range(3):
            assert kind.run() == LATER
            assert (kind.send(task), kind.waiting()) == (first, 1)
    assert kind.run() == RAN
    assert marked() == set()


@pytest.mark.parametrize("step", ["take", "come_back"])
def test_a_run_that_fails_before_its_body_leaves_no_mark(kind: Kind, monkeypatch, step):
    """Interrupted or failed while it asks for its key or comes back, it waits no more."""

    def fail(*_: object, **__: object) -> None:
        raise SystemExit  # as of a worker that is told twice to stop

    kind.send(unique(kind, on_conflict="retry"))
    with monkeypatch.context() as patch, hold("account:1"), suppress(SystemExit):
        patch.setattr(Run, step, fail)
        for each in Run.__subclasses__():
            patch.setattr(each, step, fail)
        kind.run()
    assert (kind.log, marked()) == ([], set())


def test_a_copy_that_waits_sets_no_mark(kind: Kind):
    """It may find that its first run has finished: what was left out for it would be lost."""
    seen: list[Any] = []

    def meanwhile() -> None:
        seen.append(elsewhere(kind.copy))
        seen.append(marked())
        kind.send(task)  # for what has changed since this run began

    task = unique(kind, "until_started")
    kind.send(task)
    kind.bodies.append(meanwhile)
    kind.run()
    assert (seen, kind.waiting()) == ([LATER, set()], 2)
    kind.drain()
    assert (kind.log, marked()) == ([1, 1], set())


@pytest.mark.parametrize("down", [{0, 1, 2}, {0, 1, 2, 3, 4}])
def test_without_a_majority_a_message_is_sent_and_the_log_says_so(kind: Kind, down, caplog):
    """A minority that names another message leaves nobody out."""
    task = unique(kind)
    first = kind.send(task)
    memory().down = down
    assert kind.send(task) != first
    memory().down = set()
    assert "is sent unmarked" in caplog.text
    assert kind.waiting() == 2


def test_a_mark_that_is_gone_stops_no_message(kind: Kind):
    """It expired, or its nodes were emptied: the message runs, and removes no other's mark."""
    task, seen = unique(kind), list[Any]()
    kind.send(task)
    for node in memory().nodes:
        node.keys.clear()
    kind.send(task)
    kind.bodies.append(lambda: seen.append(marked()))
    assert kind.run() == RAN
    assert seen == [{f"{kind.name_of(task)}:account:1"}]


def test_a_queue_that_is_down_leaves_no_mark(kind: Kind):
    """The sender gets the error. Nothing waits, so nothing is marked, and the next one is sent."""
    task = unique(kind)
    with kind.broken(), pytest.raises(OSError, match="down"):
        kind.send(task)
    assert marked() == set()
    kind.send(task)
    assert kind.waiting() == 1


def test_an_operator_removes_a_mark(kind: Kind):
    """By the arguments of the task: where no worker has the message any more, one is sent again."""
    task = unique(kind)
    first = kind.send(task)
    for missing in ((1), "1"):  # a comma; the text has one letter, which is no argument
        with pytest.raises(TypeError, match=r"args must be a list or tuple, as in .*\(7,"):
            kind.unmark(task, missing)
    assert kind.send(task) == first
    kind.unmark(task, (1,))
    assert marked() == set()
    assert kind.send(task) != first
    with pytest.raises(TypeError, match="have no marks"):
        kind.unmark(kind.task(KEY), (1,))


# -- in a transaction ------------------------------------------------------------------------------


def test_in_a_transaction_it_is_sent_after_the_commit(kind: Kind):
    """Neither mark nor message is there before; a duplicate is known only then."""
    task = unique(kind)
    with transaction.atomic():
        kind.send(task)
        kind.send(task)
        assert (marked(), kind.waiting()) == (set(), 0)
    assert (len(marked()), kind.waiting()) == (1, 1)


def test_a_transaction_that_rolls_back_marks_and_sends_nothing(kind: Kind):
    """So the next message is no duplicate of one that was never sent."""
    task = unique(kind)
    with transaction.atomic():
        kind.send(task)
        transaction.set_rollback(True)
    assert (marked(), kind.waiting()) == (set(), 0)


def test_a_duplicate_after_the_commit_can_only_be_logged(kind: Kind, caplog):
    """The work of others that waits for the same COMMIT goes on."""
    task, done = unique(kind, on_duplicate="raise"), list[int]()
    kind.send(task)
    with pytest.raises(DuplicateTask):
        kind.send(task)
    with transaction.atomic():
        kind.send(task)
        transaction.on_commit(lambda: done.append(1))
    assert (done, kind.waiting()) == ([1], 1)
    assert "was not sent" in caplog.text


# -- rules that are needed -------------------------------------------------------------------------


def only_granted(run: Run, *, drop: Callable[..., None] = Run.drop_mark, **more: bool) -> None:
    """Broken: the mark is removed where the body begins, and not where a run ends without it."""
    if run.is_granted:
        drop(run, **more)


def too_late(run: Run, *, drop: Callable[..., None] = Run.drop_mark, **more: bool) -> None:
    """Broken: the mark is removed when the body has ended, and not before it begins."""
    if run.has_begun:
        drop(run, **more)


def remove_any(mark: Mark, **_: object) -> None:
    """Broken: whoever has the key of a message removes the message's mark."""
    backend = conf.backend(mark.alias)
    backend.run(completion.remove(backend.policy, mark.key))


def marks_copies(kind: Kind) -> tuple[Any, str, Any]:
    """Broken: a copy that waits sets a mark."""
    if kind.name == "celery":
        return of_celery, "same_message", lambda **_: same_message()
    from django_redlock.tasks.run import DjangoTaskRun

    back = DjangoTaskRun.come_back
    return DjangoTaskRun, "come_back", lambda *a, **more: back(*a, **{**more, "again": False})


# What is replaced, by what, and a test that fails then.
RULES: dict[str, tuple[Any, Callable[..., object]]] = {
    "a body begins before the mark is gone": (
        (Run, "drop_mark", too_late),
        lambda kind: test_while_a_run_holds_the_lock_the_mode_decides(kind, "until_started"),
    ),
    "what is skipped keeps its mark": (
        (Run, "drop_mark", only_granted),
        lambda kind: test_a_message_that_ends_waits_no_more(kind, "skipped"),
    ),
    "what is interrupted keeps its mark": (
        (Run, "drop_mark", only_granted),
        lambda kind, monkeypatch: test_a_run_that_fails_before_its_body_leaves_no_mark(
            kind, monkeypatch, "take"
        ),
    ),
    "the lock is no mark": (
        (OutgoingMessage, "locks_of_run", lambda *_: ()),
        lambda kind: test_while_a_run_holds_the_lock_the_mode_decides(kind, "until_finished"),
    ),
    "a run of another task is in the way": (
        lambda kind: (publishing, "short_name", lambda _: short_name(kind.name_of(kind.made))),
        test_another_task_and_another_key_are_no_duplicates,
    ),
    "a copy that waits sets a mark": (marks_copies, test_a_copy_that_waits_sets_no_mark),
    "a message that was not sent keeps its mark": (
        (OutgoingMessage, "take_back", lambda _: None),
        test_a_queue_that_is_down_leaves_no_mark,
    ),
    "a run removes any mark of its key": (
        (Mark, "remove", remove_any),
        test_a_mark_that_is_gone_stops_no_message,
    ),
    "the mark is set before the COMMIT": (
        (publishing, "in_transaction", lambda _: False),
        test_a_transaction_that_rolls_back_marks_and_sends_nothing,
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(kind: Kind, monkeypatch, rule):
    """Without it, the test that is named beside it fails."""
    broken, test = RULES[rule]
    more = {"monkeypatch": monkeypatch}
    needed = inspect.signature(test).parameters
    monkeypatch.setattr(*(broken(kind) if callable(broken) else broken))
    with pytest.raises(AssertionError):
        test(kind, **{name: more[name] for name in needed if name in more})
