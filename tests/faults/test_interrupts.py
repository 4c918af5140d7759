"""Ctrl-C, or a signal handler's exception, anywhere in acquire and release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core import hold
from django_redlock.core.policy import Policy
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Patch, with_edits
from tests.support.waiting import eventually

POINTS = int(os.environ.get("POINTS", "500"))  # for each seed; `make soak-interrupts`: 20,000


@pytest.fixture
def nodes():
    """Five nodes of our own, without the guard."""
    with EmbeddedNodes(5) as nodes:
        nodes.settings(RESTART_GUARD=False)
        yield nodes


def interrupted(nodes: EmbeddedNodes, points: int, *arguments: object) -> dict[str, Any]:
    """What a process reports that was interrupted at so many points."""
    command = [sys.executable, "-m", "tests.faults.interrupted", ",".join(nodes.urls), str(points)]
    result = subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=max(400, points / 5),
    )
    assert (result.returncode, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.nightly
@pytest.mark.timeout(max(600, POINTS / 2))
@pytest.mark.parametrize("seed", [1, 2])
def test_an_interruption_anywhere_leaves_nothing(nodes, seed):
    """Of 1,000 interruptions none leaves a key, a connection, or costs a vote.

    But those before the first statement of a block's end, whose lease is renewed no more.
    """
    said = interrupted(nodes, POINTS, seed)
    assert said["renewed"] == 0
    assert (said["taken"], said["unavailable"]) == (0, 0)
    assert said["problems"] == []
    # The thread that sends undos again may have had a connection to each node beside this one's.
    assert said["sockets"] <= len(nodes)
    assert said["blocks"] > POINTS / 20  # the points lie in release, too
    for node in nodes:
        with node.client(socket_timeout=20) as client:
            assert client.keys("redlock:lock:*") == []
            eventually(lambda: client.info("clients")["connected_clients"] == 1)


@pytest.mark.nightly
def test_a_careless_driver_is_caught(nodes):
    """A driver that does not hand interruptions to the generator leaves keys: the test sees it."""
    assert interrupted(nodes, 60, 3, "careless")["taken"] > 0


# -- the same at each call of a release, over nodes in memory -------------------------------------


class Interruption(Exception):  # noqa: N818 - it is one
    """What a signal handler raises."""


@contextmanager
def interruption(number: int) -> Iterator[list[str]]:
    """Raise at the call of this number, of those in the package; yields the calls up to it."""
    calls: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/django_redlock/" in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)
            if len(calls) == number:
                sys.setprofile(None)
                raise Interruption

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def left_behind(number: int) -> tuple[list[str], bool]:
    """What was called of a release that is interrupted there, and whether a key is left."""
    group = MemoryNodes([MemoryNode() for _ in range(3)])
    backend = Backend("interrupted", group, Policy(size=3), renew=False)
    lease = LockTemplate(lambda _: backend)("name").acquire()
    with interruption(number) as calls, suppress(Interruption):
        lease.release()
    if lease.held:  # the caller still has it, and releases it again
        lease.release()
    return calls, any(node.keys for node in group.nodes)


def all_left_behind() -> list[str]:
    """The calls at which an interruption of a release leaves a key."""
    leaving, number, calls = [], 0, ["the first"]
    while len(calls) >= number:
        number += 1
        calls, left = left_behind(number)
        if left:
            leaving.append(calls[-1])
    assert number > 30
    return leaving


@pytest.mark.nightly
@pytest.mark.alone
def test_a_release_that_is_interrupted_at_any_call_releases():
    """Once belief has ended, the keys go, too, wherever the interruption comes."""
    assert all_left_behind() == []


@pytest.mark.nightly
@pytest.mark.alone
def test_a_release_that_is_not_repeated_is_noticed():
    """The test above fails where a lease does not release again what was interrupted."""
    begun: list[str] = []

    def only_once(real: Any) -> Any:
        def release(policy: Any, grant: Any, **facts: Any) -> Any:
            if grant.nonce in begun:
                return []
            begun.append(grant.nonce)
            return (yield from real(policy, grant, **facts))

        return release

    with with_edits(Patch(hold, "release", only_once)):
        assert all_left_behind() != []
