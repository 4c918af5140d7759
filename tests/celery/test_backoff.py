"""How long a refused run waits in its worker, and when its message comes back."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from django_redlock import LockTaken, redlock
from django_redlock.celery import backoff
from django_redlock.celery.backoff import LEAST, MOST, RunWait, WaitBudget

from .desk import Desk, hold, locked, memory, sent

# -- in the worker -----------------------------------------------------------------------------


class Told:
    """A patience with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.budget = WaitBudget(lambda: self.now)

    def wait(self, seconds: float, *, in_vain: bool) -> None:
        """Let a run wait."""
        self.now += seconds
        if in_vain:
            self.budget.note_refusal(seconds)
        else:
            self.budget.note_grant(seconds)

    def exhausted(self) -> Told:
        """Wait in vain until next to nothing is left."""
        while self.budget.seconds > LEAST:
            self.wait(self.budget.seconds, in_vain=True)
        return self


def test_waits_in_vain_take_a_fifth_of_the_time():
    """However long messages are refused, with less than a second besides, and the least waits."""
    told, in_vain, until = Told(), 0.0, 700.0
    while told.now < until:
        seconds = told.budget.seconds
        told.wait(seconds, in_vain=True)
        in_vain += seconds
        told.now += 0.3
    assert in_vain <= 0.25 * 600 + MOST + LEAST * 600 / 0.35


@pytest.mark.parametrize(
    ("waited", "seconds"), [(0.001, LEAST), (0.04, 0.16), (0.2, 0.8), (0.3, MOST), (5.0, MOST)]
)
def test_a_wait_that_was_worth_it_makes_the_next_longer(waited, seconds):
    """Four times as long as it was; a lock that was free says nothing."""
    told = Told().exhausted()
    told.wait(waited, in_vain=False)
    assert told.budget.seconds == pytest.approx(seconds, abs=0.07)


def test_a_run_that_may_not_wait_learns_nothing():
    """Without patience, as for a direct call, the lock's own ``wait`` counts."""
    turn = RunWait(None)
    with turn:
        assert turn.seconds is None
    assert turn.refuse() < 1


# -- in the queue ------------------------------------------------------------------------------


def pauses(desk: Desk, message: Any, times: int) -> list[float]:
    """For how long a message that is refused stays away, each time."""
    found = []
    for _ in range(times):
        found.append(desk.execute(message).info.retval.when)
        message = desk.only()
    return found


def test_the_pause_is_half_of_the_time_waited(desk):
    """A message comes back when it has waited half as long again, less some chance."""
    message = sent(desk, desk.task(locked("retry", wait=0)))
    with hold("name"):
        found = pauses(desk, message, 12)
    waited = 0.0
    for pause in found:
        most = max(0.5, waited / 2)
        assert 0.49 * most <= pause <= most + 0.1  # the attempts themselves take some time
        waited += pause
    assert waited > 5


def test_without_a_majority_the_pause_doubles(desk):
    """In an outage no release is near: a message comes back after 1, 2, 4 … s, less some chance."""
    message = sent(desk, desk.task(locked("retry", wait=0)))
    memory().down = {0, 1, 2}
    for number, pause in enumerate(pauses(desk, message, 7)):
        most = min(60, 2**number)
        assert 0.49 * most <= pause <= most


@pytest.mark.parametrize(
    "told", ["12", True, -1, 1e999, pytest.param(10**400, id="huge"), None, [3]]
)
def test_a_header_that_makes_no_sense_is_as_none(desk, told):
    """What anybody may have written into a header cannot keep a message away."""
    message = sent(desk, desk.task(locked("retry", wait=0)))
    message.headers["redlock"] = {"deferred": told, "waited": told}
    with hold("name"):
        (pause,) = pauses(desk, message, 1)
    assert pause <= 0.6


@pytest.mark.parametrize("away", [False, True], ids=["taken", "no majority"])
def test_the_pause_is_shorter_than_the_visibility_timeout(desk, away):
    """A message that waits for its time is not taken for lost by the broker meanwhile."""
    desk.app.conf.broker_transport_options = {"visibility_timeout": 5}
    message = sent(desk, desk.task(locked("retry", wait=0)))
    message.headers["redlock"] = {"deferred": 9, "again": False, "waited": 1000}
    with hold("name"):
        memory().down = {0, 1, 2} if away else set()
        (pause,) = pauses(desk, message, 1)
        memory().down = set()
    assert 1.2 <= pause <= 2.5


@pytest.mark.parametrize(("kind", "least"), [("quorum", 1.0), ("classic", 0.24)])
def test_a_quorum_queue_delays_for_whole_seconds(desk, kind, least):
    """Celery cannot send a countdown below a second there, and fails the run that wants it."""
    app = Celery(broker="amqp://", set_as_current=False)
    app.conf.task_default_queue_type = kind
    with hold("name"), pytest.raises(LockTaken) as refused:
        redlock("name").acquire()
    task = app.task(locked("retry"), lazy=False, shared=False)
    seconds = backoff.pause(task, refused.value, times=0, waited=0.0)
    assert least <= seconds <= max(least, 0.5)
