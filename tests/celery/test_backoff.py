"""When a message that was refused comes back."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery

from django_redlock.celery import backoff
from django_redlock.testing import taken
from django_redlock.work.backoff import FOR_A_SLOT
from django_redlock.work.plan import plan_of

from .desk import Desk, Work, hold, locked, memory, sent


def pauses(desk: Desk, message: Any, times: int) -> list[float]:
    """For how long a message that is refused stays away, each time."""
    found = []
    for _ in range(times):
        found.append(desk.execute(message).info.retval.when)
        message = desk.only()
    return found


@pytest.mark.parametrize("away", [False, True], ids=["taken", "no majority"])
def test_the_pause_grows_with_chance(desk, monkeypatch, away):
    """A message comes back after 1, 2, 4 … s, and a minute at the most, less some chance."""
    message = sent(desk, desk.task(locked("retry")))
    spans: list[tuple[float, ...]] = []

    def chance(*span: float) -> float:
        spans.append(span)
        return 0.75

    monkeypatch.setattr("random.uniform", chance)
    with hold("name"):
        memory().down = {0, 1, 2} if away else set()
        found = pauses(desk, message, 8)
        memory().down = set()
    assert found == [0.75 * seconds for seconds in (1, 2, 4, 8, 16, 32, 60, 60)]
    assert set(spans) == {(0.5, 1.0)}


@pytest.mark.parametrize("away", [False, True], ids=["full", "no majority"])
def test_the_pause_for_a_slot_does_not_grow(desk, monkeypatch, away):
    """5 s less some chance, however often: a slot is free again long before a minute is over.

    Without a majority it grows as ever: there is no slot to use.
    """
    message = sent(desk, desk.task(locked("retry", limit=2)))
    monkeypatch.setattr("random.uniform", lambda *_: 0.75)
    with taken("name", limit=2):
        memory().down = {0, 1, 2} if away else set()
        found = pauses(desk, message, 5)
        memory().down = set()
    assert found == [0.75 * seconds for seconds in ((1, 2, 4, 8, 16) if away else [5] * 5)]


def test_the_pause_of_a_copy_grows(desk, monkeypatch):
    """It waits for its own first run, and for no slot of the limit."""
    monkeypatch.setattr("random.uniform", lambda *_: 1.0)
    found: list[float] = []

    def meet() -> str:
        work.message.headers["redlock"] |= {"deferred": 9}
        Context().run(ThreadPoolExecutor(1).submit, work.copy).result()
        (again,) = desk.messages()
        away = datetime.fromisoformat(again.headers["eta"]) - datetime.now(UTC)
        found.append(away.total_seconds())
        return "done"

    work = Work(desk, meet, lock={"limit": 5})
    assert work.run().retval == "done"
    assert found[0] > FOR_A_SLOT


def test_a_run_waits_for_what_wait_says(desk):
    """In its worker, each run anew, however often that was in vain; without ``wait`` none waits."""
    for on_conflict in ("skip", "retry", "raise"):
        plan = plan_of(locked(on_conflict))
        assert plan is not None
        assert plan.template.options.wait == 0
    message = sent(desk, desk.task(locked("retry", wait=0.05)))
    with hold("name"):
        for _ in range(3):
            began = time.monotonic()
            assert desk.execute(message).info.state == "RETRY"
            assert time.monotonic() - began >= 0.05
            message = desk.only()


@pytest.mark.parametrize(
    "told", ["12", True, -1, 1e999, pytest.param(10**400, id="huge"), None, [3]]
)
def test_a_header_that_makes_no_sense_is_as_none(desk, told):
    """What anybody may have written into a header cannot keep a message away."""
    message = sent(desk, desk.task(locked("retry")))
    message.headers["redlock"] = {"deferred": told}
    with hold("name"):
        (pause,) = pauses(desk, message, 1)
    assert pause <= 1


@pytest.mark.parametrize("away", [False, True], ids=["taken", "no majority"])
def test_the_pause_is_shorter_than_the_visibility_timeout(desk, away):
    """A message that waits for its time is not taken for lost by the broker meanwhile."""
    desk.app.conf.broker_transport_options = {"visibility_timeout": 5}
    message = sent(desk, desk.task(locked("retry")))
    message.headers["redlock"] = {"deferred": 9, "again": False}
    with hold("name"):
        memory().down = {0, 1, 2} if away else set()
        (pause,) = pauses(desk, message, 1)
        memory().down = set()
    assert 1.2 <= pause <= 2.5


@pytest.mark.parametrize(("kind", "least"), [("quorum", 1.0), ("classic", 0.5)])
def test_a_quorum_queue_delays_for_whole_seconds(kind, least):
    """Celery cannot send a countdown below a second there, and fails the run that wants it."""
    app = Celery(broker="amqp://", set_as_current=False)
    app.conf.task_default_queue_type = kind
    task = app.task(locked("retry"), lazy=False, shared=False)
    assert least <= backoff.pause(task, times=0) <= 1.0
