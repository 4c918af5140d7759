"""How long a refused run waits in its worker: as a table of what happened before."""

from __future__ import annotations

import pytest

from django_redlock.celery.backoff import LEAST, MOST, RECOVERY, RunWait, WaitBudget


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
    told, waited, until = Told(), 0.0, 700.0
    while told.now < until:
        seconds = told.budget.seconds
        told.wait(seconds, in_vain=True)
        waited += seconds
        told.now += 0.3
    assert waited <= 0.25 * 600 + MOST + LEAST * 600 / 0.35


@pytest.mark.parametrize(
    ("waited", "seconds"), [(0.001, LEAST), (0.04, 0.16), (0.2, 0.8), (0.3, MOST), (5.0, MOST)]
)
def test_a_wait_that_was_worth_it_makes_the_next_longer(waited, seconds):
    """Four times as long as it was; a lock that was free says nothing."""
    told = Told().exhausted()
    told.wait(waited, in_vain=False)
    assert told.budget.seconds == pytest.approx(seconds, abs=0.07)


@pytest.mark.parametrize(
    ("held", "seconds"), [(0.1, 0.4), (0.25, MOST), (0.3, LEAST), (60.0, LEAST), (0.0, LEAST)]
)
def test_where_bodies_are_short_waiting_is_worth_it_again(held, seconds):
    """After waits in vain, one short body is enough to wait for the next; a long one is none."""
    told = Told().exhausted()
    told.budget.note_body(held)
    assert told.budget.seconds == pytest.approx(seconds, abs=0.01)


def test_patience_comes_back():
    """What was waited in vain is forgotten after some seconds."""
    told = Told().exhausted()
    told.now += MOST / RECOVERY
    assert told.budget.seconds == MOST


def test_a_run_that_may_not_wait_learns_nothing():
    """Without patience, as for a direct call, the lock's own ``wait`` counts."""
    turn = RunWait(None)
    with turn:
        assert turn.seconds is None
    assert turn.refuse() < 1
