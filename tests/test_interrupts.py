"""Ctrl-C, or a signal handler's exception, anywhere in acquire and release."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from django_redlock.testing import EmbeddedNodes

from .waiting import eventually

POINTS = 5_000  # for each seed


@pytest.fixture
def nodes():
    """Five nodes of our own, without the guard."""
    with EmbeddedNodes(5) as nodes:
        nodes.settings(RESTART_GUARD=False)
        yield nodes


def interrupted(nodes: EmbeddedNodes, points: int, *arguments: object) -> dict[str, Any]:
    """What a process reports that was interrupted at so many points."""
    command = [sys.executable, "-m", "tests.interrupted", ",".join(nodes.urls), str(points)]
    result = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=400
    )
    assert (result.returncode, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_an_interruption_anywhere_leaves_nothing(nodes, seed):
    """FM-10, F26: of 10,000 interruptions none leaves a key, a connection, or costs a vote."""
    said = interrupted(nodes, POINTS, seed)
    assert (said["taken"], said["unavailable"]) == (0, 0)
    assert said["sockets"] <= 0
    assert said["blocks"] > POINTS / 20  # the points lie in release, too
    for node in nodes:
        with node.client(socket_timeout=20) as client:
            assert client.keys("redlock:lock:*") == []
            eventually(lambda: client.info("clients")["connected_clients"] == 1)


@pytest.mark.slow
def test_a_careless_driver_is_caught(nodes):
    """A driver that does not hand interruptions to the generator leaves keys: the test sees it."""
    assert interrupted(nodes, 60, 3, "careless")["taken"] > 0
