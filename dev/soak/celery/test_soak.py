"""The soak of workers in small: real workers that are killed, and nodes that die and hang."""

from __future__ import annotations

from dev.soak.celery.rig import Play, perform
from dev.soak.celery.rules import figures, judge


def test_workers_and_nodes_may_die_at_any_time(tmp_path):
    """20 seconds of the soak ``celery``: no rule is broken, and it was no idle time."""
    history = perform(Play(seconds=20, messages=2000, keys=50), tmp_path)
    assert judge(history) == []
    seen = figures(history)
    assert seen["messages"] == 2000
    for what in ("bodies killed", "run again", "completion records", "duplicates not sent"):
        assert seen[what], seen
    for what in ("nodes killed", "nodes hung"):
        assert seen[what], seen


def test_a_lock_that_is_not_that_of_the_key_is_caught(tmp_path):
    """Broken: each message locks a name of its own. Bodies of a key run at once."""
    play = Play(seconds=5, messages=400, keys=5, faults=False, broken="lock", drain=30)
    found = {each.rule for each in judge(perform(play, tmp_path))}
    assert "two bodies at once" in found


def test_records_that_are_not_written_and_marks_that_stay_are_caught(tmp_path):
    """Broken: a copy of a long run finds no record and runs; a mark keeps messages out."""
    broken = "record,mark"
    play = Play(seconds=5, messages=400, keys=9, faults=False, rare=20, broken=broken, drain=20)
    found = {each.rule for each in judge(perform(play, tmp_path))}
    assert found >= {
        "ran again after its record",
        "a mark that is left",
        "a message without effect",
    }
