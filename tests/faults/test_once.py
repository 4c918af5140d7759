"""Work that is done once, by many processes on real nodes, of which some are killed at work."""

from __future__ import annotations

import pytest

from dev.soak.faults.doing_once import BEGINS, DONE, MET, Event, judge, play
from tests.support.replays import note_broken

NAMES = 50


@pytest.mark.slow
def test_each_body_ends_once_though_processes_are_killed_at_work(tmp_path):
    """At least once; and after its record was written or met, no body begins."""
    played = play(tmp_path, NAMES, 8, 6)
    assert played.wrong() == []
    assert played.gone_through() == NAMES
    assert played.killed >= 1


@pytest.mark.slow
def test_a_record_before_the_body_is_caught(tmp_path):
    """Broken: the work of a process that is killed at it is never done."""
    note_broken("record_first")
    played = play(tmp_path, NAMES, 8, 6, broken=True)
    assert played.killed >= 1
    assert any(fault.endswith("never") for fault in played.wrong())


def test_a_history_that_ends_early_is_judged_as_well():
    """Work that has only begun is not wrong; work after a record is, and a record without work."""
    begins, done, met = (Event(what, "a", 1) for what in (BEGINS, DONE, MET))
    assert judge([begins]) == judge([begins, begins, done, met]) == []
    assert judge([begins, done, met, begins]) == ["a again"]
    assert judge([begins, met]) == ["a never"]
