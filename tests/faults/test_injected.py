"""An exception at every point where a signal handler may raise one, over a Lock that is shared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.loops import unguarded

from .injected import FIRST, SCENARIOS, TASKS

ROOT = Path(__file__).parents[2]


def stormed(scenario: str, urls: str = "", variant: str = "") -> dict[str, Any]:
    """What a process says that was interrupted at each point of the scenario."""
    command = [sys.executable, "-m", "tests.faults.injected", scenario, urls, variant]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def well(said: dict[str, Any]) -> None:
    """See that nothing is left taken, locked, unwatched or open, and nothing strange was raised."""
    assert said["points"] > 20
    assert (said["left"], said["strange"], said["problems"]) == ([], [], [])


OTHER_POINTS_EACH_TIME = {"waiting", *TASKS}  # threads and a loop's timers decide
# A thread and a task that take, extend and release, and a transaction; the others resemble them.
DAILY = {"extended", "aextended", "atomic"}


def daily_or_nightly(*scenarios: str) -> list[Any]:
    """The scenarios, of which most are for the night."""
    return [
        pytest.param(each, marks=() if each in DAILY else pytest.mark.nightly) for each in scenarios
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", daily_or_nightly(*SCENARIOS, *TASKS))
def test_an_interruption_anywhere_leaves_nothing_of_a_shared_lock(scenario):
    """The name is free at once, the watchdog renews and tells, descriptors and threads are few.

    A transaction is over, and what a failed body wrote is not there. Before the first instruction
    of a block's end, and only there, the lease is renewed no more, and the next request ends the
    transaction.
    """
    said = stormed(scenario)
    well(said)
    if scenario not in OTHER_POINTS_EACH_TIME:
        assert said["torn"] == (scenario != "by_acquire")


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", ["block", "ablock", "atomic", "outvoting", FIRST])
def test_an_interruption_anywhere_leaves_nothing_on_real_nodes(scenario):
    """The same with connections, which an interruption may leave out of step, or half open."""
    with unguarded(3) as nodes:
        well(stormed(scenario, ",".join(nodes.urls)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "variant"),
    [
        ("extended", "held-by-the-lock"),
        ("aextended", "renewed"),
        ("atomic", "forgotten"),
        pytest.param("block", "once", marks=pytest.mark.nightly),
        pytest.param("block", "renewed", marks=pytest.mark.nightly),
        pytest.param("block", "condition", marks=pytest.mark.nightly),
        pytest.param("arenewed", "trusting", marks=pytest.mark.nightly),
        pytest.param("atomic_failing", "djangos", marks=pytest.mark.nightly),
    ],
)
def test_the_storm_catches(scenario, variant):
    """A lease that the Lock holds, is released once or is renewed without its block.

    A lock in Python, a loop that believes what it never heard. And a transaction that nobody ends
    after its block, or that is rolled back as Django does.
    """
    said = stormed(scenario, variant=variant)
    assert said["left"] or said["strange"] or said["problems"]


@pytest.mark.nightly
def test_the_storm_on_real_nodes_catches_an_event():
    """A thread that waits for a connection by a ``threading.Event`` leaves its lock locked."""
    with unguarded(3) as nodes:
        said = stormed(FIRST, ",".join(nodes.urls), variant="event")
    assert said["left"] or said["strange"] or said["problems"]
