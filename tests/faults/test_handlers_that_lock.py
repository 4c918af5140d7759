"""A signal handler that locks, extends and releases at every point of code that does the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.loops import unguarded

WEATHERS = ["calm", "watched", "wounded", "undoing", "stalled", "owed", "owing"]
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def stormed(weather: str, variant: str = "") -> dict[str, Any]:
    """What a process says whose handler ran at each point."""
    with unguarded(3) as nodes:
        command = [sys.executable, "-m", "tests.faults.handlers", weather, ",".join(nodes.urls)]
        done = subprocess.run(
            [*command, variant], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert done.stdout, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize("weather", WEATHERS)
def test_a_handler_that_locks_disturbs_nothing(weather):
    """Neither it nor what it interrupts raises; nothing stays taken, locked, unwatched or open.

    And every reply meets its request.
    """
    said = stormed(weather)
    assert said["points"] > 100
    assert (said["strange"], said["left"], said["problems"]) == ([], [], [])
    assert said["out_of_step"] == []


@pytest.mark.parametrize(
    ("weather", "variant"),
    [
        ("stalled", "read-then-remove"),
        ("undoing", "iter-then-next"),
        ("owed", "two-steps"),
    ],
)
def test_the_storm_of_handlers_catches(weather, variant):
    """What is looked at in one call and changed in a later one."""
    said = stormed(weather, variant)
    assert said["strange"] or said["left"] or said["out_of_step"]
