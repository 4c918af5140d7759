"""One run of a message: what is refused, what is delivered again, of each kind of tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redlock import LockTaken, NodesUnavailable, current_lease, events, redlock
from django_redlock.events import TaskEvent, TaskOutcome
from django_redlock.testing import stale
from django_redlock.work.run import Run
from tests.celery.desk import hold, is_free

from .kinds import ENDED, FAILED, LATER, RAN, SKIPPED, Kind, elsewhere, no_majority

# -- a message that is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refuses", "options", "outcome"),
    [
        ("key", {}, SKIPPED),
        ("key", {"on_conflict": "retry"}, LATER),
        ("key", {"on_conflict": "raise"}, FAILED),
        ("key", {"on_unavailable": "run"}, SKIPPED),
        ("nodes", {}, LATER),
        ("nodes", {"on_conflict": "raise"}, LATER),
        ("nodes", {"on_conflict": "raise", "on_unavailable": "raise"}, FAILED),
        ("nodes", {"on_conflict": "retry", "on_unavailable": "run"}, RAN),
    ],
)
def test_what_becomes_of_a_refused_message(kind: Kind, refuses, options, outcome):
    """The options decide, and without a majority nothing is skipped; listeners are told."""
    sent = kind.send(kind.task("key", **options))
    seen: list[TaskEvent] = []
    events.watch_tasks(seen.append)
    try:
        with hold("key") if refuses == "key" else no_majority():
            assert kind.run() == outcome
    finally:
        events.unwatch_tasks(seen.append)
    told = {LATER: [TaskOutcome.DEFERRED], SKIPPED: [TaskOutcome.SKIPPED]}.get(outcome, [])
    expected = [(each, "key", sent) for each in told]
    assert [(each.outcome, each.name, each.task_id) for each in seen] == expected
    if outcome == SKIPPED:
        assert kind.told["reason"] == "the key is held"
        assert kind.told["retry_after"] > 0
    if outcome == FAILED:
        error = kind.told if isinstance(kind.told, type) else type(kind.told)
        assert error is (LockTaken if refuses == "key" else NodesUnavailable)
    if outcome == RAN:
        assert kind.told is None  # the name of the lock that it holds
    if outcome == LATER:
        assert kind.run() == RAN
    assert (kind.log, kind.waiting()) == ([1] if outcome in {LATER, RAN} else [], 0)
    assert is_free("key")


@pytest.mark.parametrize(
    ("on_conflict", "outcome"), [("skip", SKIPPED), ("retry", LATER), ("raise", FAILED)]
)
def test_what_came_back_for_want_of_a_majority_is_no_copy(kind: Kind, on_conflict, outcome):
    """It has never run: ``on_conflict`` says what becomes of it, as of any other."""
    kind.send(kind.task("key", on_conflict=on_conflict))
    with no_majority():
        assert kind.run() == LATER
    with hold("key"):
        assert kind.run() == outcome


def test_a_refusal_inside_of_the_body_is_the_bodys_own(kind: Kind):
    """A LockTaken of another lock is an error of the body, whatever ``on_conflict`` says."""
    kind.send(kind.task("key", on_conflict="skip"))
    kind.bodies.append(lambda: redlock("inner").acquire())
    with hold("inner"):
        assert kind.run() == FAILED
    assert is_free("key")


def test_a_message_whose_key_is_held_keeps_no_run_name(kind: Kind):
    """It comes back later as the same message, and takes the run name then: it may be soon."""
    task, free = kind.task("key", on_conflict="retry"), list[bool]()
    kind.send(task)

    def look(_: TaskEvent) -> None:
        free.append(is_free(kind.run_name(task)))

    events.watch_tasks(look)
    try:
        with hold("key"):
            assert kind.run() == LATER
    finally:
        events.unwatch_tasks(look)
    assert free == [True]


# -- a message that is delivered again -------------------------------------------------------------


@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_a_copy_of_what_has_finished_ends_without_its_body(kind: Kind, on_conflict):
    """The run name has become a record, also of a message that came back; its result stays."""
    task = kind.task("key", on_conflict=on_conflict)
    kind.send(task)
    if on_conflict == "retry":
        with hold("key"):
            assert kind.run() == LATER
    assert kind.run() == RAN
    stored = kind.stored()
    assert (kind.copy(), kind.stored()) == (ENDED, stored)
    assert (kind.log, kind.waiting()) == ([1], 0)
    with pytest.raises(LockTaken) as refused:
        redlock(kind.run_name(task)).acquire()
    assert refused.value.code == "recorded"


@pytest.mark.parametrize("on_conflict", ["skip", "retry", "raise"])
def test_a_copy_that_meets_its_run_comes_back(kind: Kind, on_conflict):
    """Whatever ``on_conflict`` says, for the first may yet die; when that has finished, it ends."""
    kind.send(kind.task("key", on_conflict=on_conflict))
    met: list[str] = []
    kind.bodies.append(lambda: met.append(elsewhere(kind.copy)))
    assert kind.run() == RAN
    assert kind.stored()[1] == "key"  # stored last
    assert (met, kind.waiting()) == ([LATER], 1)
    assert kind.run() in {ENDED, SKIPPED}
    assert kind.log == [1]


def lose() -> None:
    """Let the lease of the body be lost."""
    lease = current_lease()
    assert lease is not None
    stale(lease)


def test_a_run_whose_key_was_lost_is_not_recorded(kind: Kind):
    """Another run may have begun under the key, and refused what this one wrote."""
    kind.bodies.append(lose)
    kind.send(kind.task("key"))
    kind.run()
    assert kind.copy() == RAN
    assert kind.log == [1, 1]


# -- rules that are needed -------------------------------------------------------------------------


always = property(lambda _: True, lambda *_: None)
# What is replaced, by what, and a test that fails then.
RULES: dict[str, tuple[tuple[str, Any], Callable[..., object]]] = {
    "a record after a lost key": (
        ("is_sound", always),
        test_a_run_whose_key_was_lost_is_not_recorded,
    ),
    "a refusal of the body is taken for the key's": (
        ("is_granted", property(lambda _: False, lambda *_: None)),
        test_a_refusal_inside_of_the_body_is_the_bodys_own,
    ),
    "a run name that stays": (
        ("end", lambda *_, **__: None),
        test_a_message_whose_key_is_held_keeps_no_run_name,
    ),
    "no run name": (
        ("take", lambda _: None),
        lambda kind: test_a_copy_of_what_has_finished_ends_without_its_body(kind, "skip"),
    ),
    "without a majority it fails": (
        ("goes_unlocked", lambda *_: False),
        lambda kind: test_what_becomes_of_a_refused_message(
            kind, "nodes", {"on_conflict": "retry", "on_unavailable": "run"}, RAN
        ),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(kind: Kind, monkeypatch, rule):
    """Without it, the test that is named beside it fails."""
    broken, test = RULES[rule]
    monkeypatch.setattr(Run, *broken, raising=False)
    with pytest.raises(AssertionError):
        test(kind)
