"""Real processes that lead are killed, stopped and paused: never do two lead at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.soak.faults.leading import KILL, LONGEST, PAUSE, STOP, TTL, overlaps, play
from django_redlock.testing import EmbeddedNodes
from tests.support.replays import note_broken

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Nodes for these processes alone."""
    with EmbeddedNodes(3) as started:
        yield started


@pytest.mark.parametrize(("fault", "times"), [(KILL, 3), (STOP, 4), (PAUSE, 2)])
def test_one_process_leads_after_the_other(tmp_path: Path, nodes: EmbeddedNodes, fault, times):
    """Whatever strikes the leader, another one leads next, and works when the work has ended.

    After a stop it does long before the ttl is over: the release has freed the name.
    """
    assert TTL[STOP] > LONGEST
    outcome = play(tmp_path, fault, times, nodes)
    assert not overlaps(outcome.terms)
    assert len({term.pid for term in outcome.terms}) > 1
    assert len(outcome.seconds) == times


def test_processes_that_believe_a_flag_lead_at_the_same_time(tmp_path: Path, nodes: EmbeddedNodes):
    """One that was paused says that it leads, until its campaign has been told and has stopped."""
    note_broken("leads() answers what the campaign was told")
    assert overlaps(play(tmp_path, PAUSE, 1, nodes, "flag").terms)


def test_processes_that_release_before_the_work_ends_work_at_the_same_time(
    tmp_path: Path, nodes: EmbeddedNodes
):
    """A stop comes in the middle of a step, but for a few: so one of four shows it."""
    note_broken("the end of the block releases before on_elected has returned")
    assert overlaps(play(tmp_path, STOP, 4, nodes, "early").terms)
