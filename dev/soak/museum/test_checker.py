"""A play that shows something else is seen: by the checker, in the tally, by the exit status."""

from __future__ import annotations

from typing import Any

import pytest

from dev.museum import history
from dev.museum.__main__ import main
from dev.museum.cell import TWO, Cell, fault
from dev.museum.checker import Break, judge
from dev.museum.history import Event
from dev.museum.play import Played, tallies
from dev.museum.rooms.setnx import DEL
from dev.museum.stage import Stage


def event(at: float, client: str, kind: str, **more: Any) -> Event:
    """An event with all that its kind has."""
    usual: dict[str, dict[str, Any]] = {
        history.HOLDS: {"until": None, "fence": None},
        history.WRITES: {"value": 1, "done": True},
    }
    return Event(at, client, kind, usual.get(kind, {}) | more)


TURN = [
    event(0, "A", history.ASKS), event(1, "A", history.HOLDS, fence=1),
    event(2, "A", history.READS, value=0), event(3, "A", history.WRITES, value=1),
    event(4, "A", history.RELEASES), event(5, "B", history.ASKS),
    event(6, "B", history.HOLDS, fence=2), event(7, "B", history.READS, value=1),
    event(8, "B", history.WRITES, value=2), event(9, "B", history.RELEASES),
    event(10, "museum", history.FINAL, value=2),
]  # fmt: skip


def with_event(index: int, kind: str | None = None, **more: object) -> list[Event]:
    """Two turns of which one event is another one, or has not been."""
    old = TURN[index]
    new = [] if kind is None else [Event(old.at, old.client, kind, old.more | more)]
    return [*TURN[:index], *new, *TURN[index + 1 :]]


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
    turns = [event(0, "A", history.ASKS), event(1, "W", history.ASKS)]
    for at in (2, 5, 8):
        turns += [event(at, "B", history.ASKS), event(at + 1, "B", history.HOLDS)]
        turns += [event(at + 2, "B", history.RELEASES)]
    refused = event(11, "W", history.REFUSED)
    assert judge([*turns, refused]).breaks(9) == {Break.STARVED}
    assert judge([*turns[:-3], refused]).breaks(9) == set()
    assert judge([*turns, event(11, "W", history.HOLDS)]).breaks(9) == set()


def limited(at_once: int, *, is_asked: bool = False) -> list[Event]:
    """So many come in, one after the other, and stay for nine seconds; one more may ask."""
    names = "ABCD"[:at_once]
    events = [event(at, name, history.ASKS) for at, name in enumerate(names)]
    events += [event(at + 0.5, name, history.HOLDS) for at, name in enumerate(names)]
    if is_asked:
        events += [event(5, "X", history.ASKS), event(9, "X", history.REFUSED)]
    events += [event(12, name, history.RELEASES) for name in names]
    return sorted(events, key=lambda each: each.at)


@pytest.mark.parametrize(
    ("events", "limit", "seen"),
    [
        (limited(2), 2, set()),
        (limited(3), 2, {Break.MANY}),
        (limited(2), 1, {Break.TWO}),
        (limited(3), 3, set()),
        (limited(2, is_asked=True), 2, set()),
        (limited(1, is_asked=True), 2, {Break.STUCK}),
        (limited(1, is_asked=True), 1, set()),
        (limited(3, is_asked=True)[:-3], 3, set()),
    ],
)
def test_of_a_limited_lock_one_more_than_may_is_too_many(events, limit, seen):
    """As many as may are well; who asks while there are fewer is stuck."""
    assert judge(events, limit).breaks(patience=3) == seen


def test_three_in_turns_are_no_more_than_two_at_once():
    """Each comes when another one has gone, and is not counted together with that."""
    stays = {"A": (0, 2), "B": (1, 9), "C": (3, 5), "D": (6, 8)}
    events = [event(start, name, history.ASKS) for name, (start, _) in stays.items()]
    events += [event(start, name, history.HOLDS) for name, (start, _) in stays.items()]
    events += [event(end, name, history.RELEASES) for name, (_, end) in stays.items()]
    events.sort(key=lambda each: each.at)
    assert judge(events, 2).breaks(patience=3) == set()
    late = [event(7, "E", history.ASKS), event(7, "E", history.HOLDS)]
    (overlap,) = judge(sorted([*events, *late], key=lambda each: each.at), 2).overlaps
    assert (overlap.clients, overlap.start, overlap.end) == (["B", "D", "E"], 7, 8)


# -- the tally and the exit status ----------------------------------------------------------------


@fault(ttl=9)
def emptied(stage: Stage) -> None:
    """The server restarts empty."""
    first, second = stage.clients("AB")
    assert first.take(10)
    stage.restart_empty(0)
    assert second.take(10)


BREAKS = DEL.breaks(emptied, TWO, why="The key is gone.")
(HOLDS,) = DEL.holds(emptied)  # which is wrong


@pytest.mark.parametrize(("cell", "status"), [(BREAKS, 0), (HOLDS, 1)])
def test_the_exit_status_says_whether_all_was_as_expected(capsys, tmp_path, cell, status):
    """A wrong expectation is told, with what was seen; what was played is drawn."""
    assert main(["--pictures", str(tmp_path)], [cell]) == status
    is_told = "setnx-del/emptied: expected nothing" in capsys.readouterr().out
    assert is_told == bool(status)
    assert "Two holders at once: A and B." in (tmp_path / "setnx-del.emptied.svg").read_text()


def is_well(cell: Cell, right: int, wrong: int) -> bool:
    """Whether a tally of so many plays has no complaint."""
    two_holders = with_event(4)
    broken, whole = Played(cell, findings=judge(two_holders)), Played(cell, findings=judge(TURN))
    good, bad = (broken, whole) if cell.breaks else (whole, broken)
    (tally,) = tallies([cell], [good] * right + [bad] * wrong)
    return not tally.complaint


def test_a_break_is_seen_in_nineteen_of_twenty_plays():
    """Eighteen are too few; a lock that holds does so in each."""
    assert is_well(BREAKS, 19, 1)
    assert not is_well(BREAKS, 18, 2)
    assert not is_well(BREAKS, 9, 1)
    assert is_well(HOLDS, 20, 0)
    assert not is_well(HOLDS, 19, 1)
