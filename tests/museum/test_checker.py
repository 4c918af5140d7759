from __future__ import annotations

import pytest
from hypothesis import given

from museum import history
from museum.checker import Break, judge
from museum.history import Event

from .histories import CLIENTS, believes, event, histories, moments

pytestmark = pytest.mark.nightly

# -- against a slow and plain reading -------------------------------------------------------------


@given(histories())
def test_holds_are_the_times_at_which_clients_believe(events):
    """At each moment a client is in one of its holds if and only if it believes to hold."""
    found = judge(events).holds
    for at in moments(events):
        held = [hold.who for hold in found if hold.start <= at < hold.end]
        assert sorted(held) == [who for who in CLIENTS if believes(events, who, at)]


@given(histories())
def test_overlaps_are_the_times_with_two_holders(events):
    """Each moment with two holders is in an overlap, and each overlap names two that hold."""
    found = judge(events).overlaps
    for at in moments(events):
        holders = [who for who in CLIENTS if believes(events, who, at)]
        here = [each for each in found if each.start <= at < each.end]
        assert bool(here) == (len(holders) > 1)
        assert all({each.first, each.second} <= set(holders) for each in here)
    assert all(each.start < each.end for each in found)


# -- each way to break ----------------------------------------------------------------------------

TURN = [
    event(0, "A", history.ASKS), event(1, "A", history.HOLDS, fence=1),
    event(2, "A", history.READS), event(3, "A", history.WRITES, value=1),
    event(4, "A", history.RELEASES), event(5, "B", history.ASKS),
    event(6, "B", history.HOLDS, fence=2), event(7, "B", history.READS, value=1),
    event(8, "B", history.WRITES, value=2), event(9, "B", history.RELEASES),
    event(10, "museum", history.FINAL, value=2),
]  # fmt: skip


def with_event(place: int, what: str | None = None, **more: object) -> list[Event]:
    """Two turns of which one event is another one, or has not been."""
    old = TURN[place]
    new = [] if what is None else [Event(old.at, old.who, what, old.more | more)]
    return [*TURN[:place], *new, *TURN[place + 1 :]]


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        (TURN, set()),
        (with_event(4), {Break.TWO}),
        (with_event(4, history.KILLED), set()),
        (with_event(4, history.HANGS), set()),
        (with_event(4, history.LOST), set()),
        (with_event(1, history.HOLDS, until=4.5), set()),
        (with_event(1, history.HOLDS, until=20.0), set()),
        (with_event(6, history.HOLDS, fence=1), {Break.FENCES}),
        (with_event(8, history.WRITES, value=1), set()),
        (with_event(10, history.FINAL, value=1), {Break.LOST}),
        (with_event(8, history.WRITES, done=False), set()),
        (with_event(6, history.READS), {Break.STUCK}),
        (with_event(6, history.REFUSED), set()),
    ],
)  # fmt: skip
def test_each_break_is_seen_and_no_other(events, seen):
    """Two turns are well; a change of one event breaks what it must."""
    assert judge(events).breaks(patience=3) == seen


def test_a_client_that_three_have_overtaken_is_starved():
    """Three came later and had the lock, and it was refused; of two nobody speaks."""
    turns = [event(0, "A", history.HOLDS), event(1, "W", history.ASKS)]
    for at in (2, 5, 8):
        turns += [event(at, "B", history.ASKS), event(at + 1, "B", history.HOLDS)]
        turns += [event(at + 2, "B", history.RELEASES)]
    assert judge([*turns, event(11, "W", history.REFUSED)]).breaks(9) == {Break.TWO, Break.STARVED}
    assert judge([*turns[:-3], event(11, "W", history.REFUSED)]).breaks(9) == {Break.TWO}
    assert judge([*turns, event(11, "W", history.HOLDS)]).breaks(9) == {Break.TWO}
