"""The demo's offices and its verdict: a frozen office, with the fence and without."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_redlock.nodes.memory import MemoryNodes
from example_project.box_office.models import Show
from example_project.demo import office
from example_project.demo.facts import Act, Acts, Sale, office_failures

from .test_seats import MINUTE, let_leases_expire

pytestmark = pytest.mark.nightly

FROZEN, SUCCESSOR = 6, 1
LATER = 3  # sales while an office is frozen
Play = Callable[..., Act]


def an_act(*, locked: bool, fence: bool) -> Act:
    """An act of two offices, in which nodes are lost before it begins."""
    act = Act("an act", "", 1, 1.0, 1, locked=locked, fence=fence)
    act.begin()
    act.lost_nodes = [(act.began, "killed"), (act.began, "hung")]
    return act


@pytest.fixture
def play(nodes: MemoryNodes, show: Show, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Sell as the offices do; one is frozen past its lease between its read and its write."""

    def play(*, fence: bool) -> Act:
        act, at_work, slept = an_act(locked=True, fence=fence), [SUCCESSOR], [0.0]

        def frozen() -> None:
            office.tell("frozen")
            let_leases_expire(nodes)
            slept[0] = MINUTE / 1000
            at_work.append(SUCCESSOR)
            for _ in range(LATER):
                office.sell(show.pk, fence=fence, freeze=False)
            at_work.pop()

        def tell(event: str, **facts: Any) -> None:
            act.hear(event, at_work[-1], facts)

        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + slept[0])
        monkeypatch.setattr(office, "time", clock)
        monkeypatch.setattr(office, "tell", tell)
        monkeypatch.setattr(office, "stop", frozen)
        monkeypatch.setattr(office, "think", lambda: None)
        office.sell(show.pk, fence=fence, freeze=False)
        at_work.append(FROZEN)
        assert office.sell(show.pk, fence=fence, freeze=True)
        act.row = Show.objects.sold(show.pk)
        return act

    return play


@pytest.mark.django_db
def test_the_row_refuses_what_a_frozen_office_writes(play):
    """With the fence nothing is lost; with the lock alone all the later sales are."""
    act = play(fence=True)
    assert (act.lost_updates(), len(act.sales), len(act.refused)) == (0, 1 + LATER, 1)
    assert (act.overlaps(), act.fences_increase()) == (0, True)


@pytest.mark.django_db
def test_without_the_fence_the_frozen_office_overwrites(play):
    """The lock alone refuses nothing: the later sales are lost, and overlap its own."""
    act = play(fence=False)
    assert (act.lost_updates(), len(act.sales), len(act.refused)) == (LATER, 2 + LATER, 0)
    assert act.overlaps() == LATER
    assert act.fences_increase()


@pytest.mark.django_db
@pytest.mark.parametrize("broken", [False, True])
def test_the_verdict_fails_when_the_row_refuses_nothing(play, monkeypatch, broken):
    """Of a broken fence the demo says that updates were lost, and that nothing was refused."""
    if broken:
        monkeypatch.setattr(office, "fenced", lambda lease, rows: rows)
    act = play(fence=True)
    told = list(office_failures(all_well()._replace(fenced=act)))
    assert told == (
        [
            f"{LATER} sales overlapped with the lock and the fence",
            f"{LATER} updates were lost with the lock and the fence",
            "no office froze, or its stale write was not refused by the row",
        ]
        if broken
        else []
    )


# -- the verdict ----------------------------------------------------------------------------------


def all_well() -> Acts:
    """Three acts as they are to be."""
    fenced, locked, neither = (
        an_act(locked=True, fence=True),
        an_act(locked=True, fence=False),
        an_act(locked=False, fence=False),
    )
    for act in (fenced, locked, neither):
        began = act.began + 1
        act.sales = [Sale(1, n, began + n, began + n + 0.5) for n in range(1, 5)]
        act.row = len(act.sales) - (act is not fenced)
    for act in (fenced, locked):
        act.counts["frozen"] = 1
    fenced.refused = [Sale(1, 5, fenced.began + 6, fenced.began + 7)]
    return Acts(fenced, locked, neither)
