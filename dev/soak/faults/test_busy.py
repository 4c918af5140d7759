"""A process that does not get the processor calls no node silent."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_redlock import NodesUnavailable
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import handshake, node
from django_redlock.nodes.background import ListeningTime
from django_redlock.nodes.connection import Connection
from django_redlock.nodes.link import Link
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, idle, template, unguarded
from tests.support.replays import note_broken

ROOT = Path(__file__).parents[3]

NODE_TIMEOUT = 0.2


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def timeout() -> float:
    """The node timeout of those who connect."""
    return NODE_TIMEOUT


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    """Threads that connect, but not for a while after each answer of a node, which is there."""
    connect: Callable[..., Connection] = handshake.open_connection

    def slowly(*args: Any, progress: Callable[[], object], **options: Any) -> Connection:
        def late() -> None:
            progress()
            time.sleep(2 * timeout)

        return connect(*args, progress=late, **options)

    monkeypatch.setattr(node, "open_connection", slowly)


def by_a_thread(redlock: LockTemplate) -> None:
    """Take a lock by blocking."""
    with redlock("name"):
        pass


def by_a_task(redlock: LockTemplate) -> None:
    """Take a lock in a new event loop."""

    async def main() -> None:
        async with redlock("name"):
            pass

    asyncio.run(main())


@pytest.mark.parametrize("timeout", [1.0])  # what is too late by two of it stood still for 2 s
@pytest.mark.parametrize("take", [by_a_thread, by_a_task])
def test_a_handshake_that_goes_on_is_waited_for(three, starved, take, timeout):
    """Six node timeouts pass while a node is connected that answered each time at once."""
    take(template(group_of(three.urls, timeout)))


@pytest.mark.parametrize("take", [by_a_thread, by_a_task])
def test_a_clock_alone_calls_such_nodes_silent(three, starved, take, monkeypatch):
    """The check can fail: where no sign of a node counts, there is no lock."""
    monkeypatch.setattr(ListeningTime, "silence", lambda *_: math.inf)
    with pytest.raises(NodesUnavailable, match="0 of 3 nodes could vote"):
        take(template(group_of(three.urls, NODE_TIMEOUT)))


@pytest.fixture
def halting(three: EmbeddedNodes, monkeypatch: pytest.MonkeyPatch) -> Callable[[], LockTemplate]:
    """Two nodes connected, of which one halts; the third is connected slowly."""

    def halt() -> LockTemplate:
        group = group_of(three.urls, NODE_TIMEOUT)
        redlock = template(group)
        with redlock("before"):
            pass
        slow = group.nodes[2]
        idle(slow)
        slow.close()
        slow.down_reason = None
        run = slow._open

        def late(coming: Any) -> None:
            while group.nodes[1]._free:  # until the question has both connections
                time.sleep(0.001)
            three.pause(1)
            time.sleep(3 * NODE_TIMEOUT)
            run(coming)

        monkeypatch.setattr(slow, "_open", late)
        return redlock

    return halt


def test_who_is_connected_late_is_asked_where_another_is_silent(three, halting):
    """A bare majority that were connected at once, and one of them halts: the third one votes."""
    redlock = halting()
    try:
        with redlock("name"):
            pass
    finally:
        three.resume(1)


def test_who_asks_no_further_node_is_refused(three, halting, monkeypatch):
    """The check can fail."""
    note_broken("more")  # a busy machine may pause node 1 when it has voted
    monkeypatch.setattr(Link, "_more", lambda *_: False)
    redlock = halting()
    try:
        with pytest.raises(NodesUnavailable), redlock("name"):
            pass
    finally:
        three.resume(1)


STANDS = 2.2  # seconds; more than two node timeouts, of which each is long for a busy machine

STOOD_STILL = """
import sys
from dev.soak.faults.busy import in_threads
from tests.support.loops import group_of, template, unguarded

with unguarded(5) as nodes:
    print(*(node.pid for node in nodes), flush=True)
    for _ in sys.stdin:
        group = group_of(nodes.urls, timeout=1.0)
        print("begins", flush=True)
        refused = in_threads(template(group, ttl=60))
        group.close()
        print(refused.most_common(3), flush=True)
"""


def test_no_lock_is_refused_because_the_machine_stood_still():
    """A process and its nodes are stopped for a while when threads connect; then all go on."""
    command = [sys.executable, "-c", STOOD_STILL]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stopped = [process.pid, *map(int, process.stdout.readline().split())]
        for turn in range(6):
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "begins\n"
            time.sleep(0.02 * turn)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(STANDS)
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)
            assert process.stdout.readline() == "[]\n"
        process.stdin.close()
