"""Histories of many kinds, and what they show by a slow and plain reading of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from museum import history
from museum.cells import Cell
from museum.checker import judge
from museum.exhibits import Exhibit
from museum.history import Event
from museum.play import Played
from museum.runs import Run

ENDS = {history.RELEASES, history.KILLED, history.HANGS, history.LOST}
CLIENTS = ["A", "B", "C"]
STEPS = [
    history.ASKS, history.ASKS, history.HOLDS, history.HOLDS, history.HOLDS, history.REFUSED,
    history.READS, history.WRITES, history.RELEASES, history.RELEASED, history.LOST,
    history.STOPPED, history.GOES_ON, history.KILLED, history.FAILS, history.POINT,
    history.HANGS,
]  # fmt: skip


def event(at: float, who: str, what: str, **more: Any) -> Event:
    """An event with all that its kind has."""
    usual: dict[str, dict[str, Any]] = {
        history.HOLDS: {"until": None, "fence": None},
        history.READS: {"value": 0},
        history.WRITES: {"value": 1, "done": True},
        history.FAILS: {"why": "TimeoutError: too late"},
        history.POINT: {"where": "between two steps"},
        history.CHANGED: {"words": "server 2 is killed"},
        history.FINAL: {"value": 1},
    }
    return Event(at, who, what, usual.get(what, {}) | more)


ABC = st.sampled_from(CLIENTS)


@st.composite
def histories(draw: Any, who: st.SearchStrategy[str] = ABC) -> list[Event]:
    """Events at 0, 1, 2, …; holds end by themselves between two of them, or never."""
    steps = draw(st.lists(st.tuples(who, st.sampled_from(STEPS)), min_size=1, max_size=40))
    events = []
    for at, (name, what) in enumerate(steps):
        more: dict[str, Any] = {}
        if what == history.HOLDS:
            ttl = draw(st.one_of(st.none(), st.integers(-2, 12)))
            fence = draw(st.one_of(st.none(), st.integers(1, 5)))
            more = {"until": None if ttl is None else at + ttl + 0.5, "fence": fence}
        elif what == history.WRITES:
            more = {"value": draw(st.integers(1, 9)), "done": draw(st.booleans())}
        events.append(event(float(at), name, what, **more))
    return [
        *events,
        event(float(len(events)), "museum", history.FINAL, value=draw(st.integers(0, 9))),
    ]


def believes(events: Sequence[Event], who: str, at: float) -> bool:
    """Whether a client believes at a time to hold: what it last heard of the lock says so."""
    held, until = False, None
    for each in events:
        if each.at > at or each.who != who:
            continue
        if each.what == history.HOLDS:
            held, until = True, each.more["until"]
        elif each.what in ENDS:
            held = False
    return held and (until is None or at < until)


def moments(events: Sequence[Event]) -> list[float]:
    """One time of each stretch in which nothing changes; times of change are multiples of 0.5."""
    return [step / 2 + 0.25 for step in range(int(events[-1].at) * 2)]


def cell(title: str = "A lock", words: str = "something happens", why: str = "So it is.") -> Cell:
    """A cell that is never played."""
    exhibit = Exhibit("a-lock", title, "nowhere:Nothing")
    return Cell(exhibit, Run("a-run", "none", lambda _: None, words), frozenset(), why)


def played(events: Sequence[Event], of: Cell | None = None) -> Played:
    """A play with this history."""
    return Played(of or cell(), events, judge(events))
