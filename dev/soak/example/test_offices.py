"""The demo's offices and its verdict: a frozen office, with the fence and without."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from example_project.box_office.models import Show
from example_project.demo import office
from example_project.demo.offices import Act

from .test_seats import MINUTE, let_leases_expire

pytestmark = [pytest.mark.django_db]
LATER = 3  # sales while an office is frozen


@pytest.mark.parametrize("how", ["with the fence", "without", "with a broken fence"])
def test_the_row_refuses_what_a_frozen_office_writes(nodes, show, monkeypatch, how):
    """With the fence nothing is lost; without it the later sales are. The verdict tells both."""
    act = Act("an act", show.pk, 1.0, locked=True, fence=how != "without")
    slept = [0.0]

    def tell(event: str, sale: office.Sale | None) -> None:
        if sale:
            (act.sales if event == "sold" else act.refused).append(sale)

    def frozen(_: object) -> None:
        act.frozen.append((0, time.monotonic()))
        let_leases_expire(nodes)
        slept[0] = MINUTE / 1000
        for _later in range(LATER):
            office.sell(show.pk, tell, fence=act.fence, freeze=False)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + slept[0])
    monkeypatch.setattr(office, "time", clock)
    monkeypatch.setattr(office, "stop", frozen)
    monkeypatch.setattr(office, "think", lambda: None)
    if how == "with a broken fence":
        monkeypatch.setattr(office, "fenced", lambda lease, rows: rows)
    office.sell(show.pk, tell, fence=act.fence, freeze=False)
    assert office.sell(show.pk, tell, fence=act.fence, freeze=True)
    act.row = Show.objects.get(pk=show.pk).sold
    assert act.fences_increase()
    if how == "with the fence":
        assert (act.lost_updates(), act.overlaps(), len(act.refused)) == (0, 0, 1)
    else:
        assert (act.lost_updates(), act.overlaps(), len(act.refused)) == (LATER, LATER, 0)
    assert bool(list(act.failures())) == (how == "with a broken fence")
