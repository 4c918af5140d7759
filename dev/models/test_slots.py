"""The wake-ups of two slots, searched exhaustively; each rule, broken on purpose, is found out."""

from __future__ import annotations

import pytest

from .heal import search
from .slots import LOST, Slots


@pytest.mark.parametrize(
    ("rules", "least"),
    [
        (Slots(), 3_000),
        (Slots(dies=True), 6_000),
        (Slots(waiters=2, cancels=2), 500),
        pytest.param(Slots(waiters=4, cancels=2, dies=True), 30_000, marks=pytest.mark.slow),
        pytest.param(Slots(waiters=5, cancels=2, dies=True), 600_000, marks=pytest.mark.nightly),
    ],
    ids=["three waiters", "holders die", "two cancelled", "four waiters", "five waiters"],
)
def test_no_wake_up_is_lost(rules, least):
    """Releases of both slots at once, cancelled waiters, looks and deaths need no further look."""
    _, way, states = search(rules)
    assert way == ()
    assert states > least  # the search goes somewhere


@pytest.mark.parametrize(
    "rules",
    [
        Slots(lists=1),
        Slots(notes="wished"),
        Slots(blocks="wished"),
        Slots(passes_on="first"),
        Slots(passes_on="none"),
        Slots(takes_along=False, dies=True),
        Slots(uses="other"),
    ],
    ids=[
        "one wake-up for both slots",
        "a waiter is noted for one slot",
        "a waiter blocks on one list",
        "a wake-up is passed on to another slot",
        "a wake-up is passed on to nobody",
        "a wake-up is left behind",
        "a wake-up is used for another slot",
    ],
)
def test_each_broken_rule_is_found_out(rules):
    """With one of these a slot stays free beside a waiter that nobody wakes."""
    assert search(rules)[0] == LOST
