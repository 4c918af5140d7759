"""Real processes crowd for the slots of a name: nodes die, hang, holders are killed, stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.soak.faults.crowding import in_one_slot, judge, most_at_a_time, play
from django_redlock.testing import EmbeddedNodes
from tests.support.replays import note_broken

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes() -> Iterator[EmbeddedNodes]:
    """Nodes for these processes alone."""
    with EmbeddedNodes(5) as started:
        yield started


def test_never_do_more_than_k_hold_it(tmp_path: Path, nodes):
    """Nor two in one slot; its fences increase, and no slot is leaked."""
    outcome = play(tmp_path, nodes, 2, processes=6, strikes=4)
    assert judge(outcome, 2) == []
    assert outcome.strikes == 4
    assert {hold.slot for hold in outcome.holds} == {0, 1}


def test_votes_that_are_counted_for_the_name_let_more_in(tmp_path: Path, nodes):
    """A broken variant: each node admits k, in whatever slot, and more than k find a majority."""
    note_broken("the votes of all slots count together")
    outcome = play(tmp_path, nodes, 2, processes=6, strikes=2, broken=True)
    assert most_at_a_time(outcome.holds) > 2 or in_one_slot(outcome.holds)
