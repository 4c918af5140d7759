"""Moments that real nodes seldom meet, played in virtual time by ``moments``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[2]
PLAYS = ("closing", "broken:closing")


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    """What came of all plays."""
    command = [sys.executable, "-m", "tests.nodes.moments", *PLAYS]
    done = subprocess.run(
        command, check=False, cwd=HERE, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


def test_a_loop_closes_a_connection_soon_after_its_last_reply(played):
    """Not only when a node timeout is over, which may be long; and not before the reply."""
    for name, last in (("closing", 0), ("broken:closing", 1)):
        assert played[name] == {
            "closed": [1, 1, 1],
            "before the reply": [1, 0, 0],
            "after the reply": [last, 0, 0],
        }
