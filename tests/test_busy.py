"""A process that does not get the processor calls no node silent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_redlock import NodesUnavailable, handshake, node
from django_redlock.channel import Channel
from django_redlock.locks import LockTemplate
from django_redlock.testing import EmbeddedNodes

from .loops import group_of, template, unguarded

ROOT = Path(__file__).parent.parent
NODE_TIMEOUT = 0.2


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that connect, but not for a while after each answer of a node, which is there."""
    connect: Callable[..., Channel] = handshake.open_channel

    def slowly(*args: Any, progress: Callable[[], object], **options: Any) -> Channel:
        def late() -> None:
            progress()
            time.sleep(2 * NODE_TIMEOUT)

        return connect(*args, progress=late, **options)

    monkeypatch.setattr(node, "open_channel", slowly)


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


@pytest.mark.parametrize("take", [by_a_thread, by_a_task])
@pytest.mark.usefixtures("starved")
def test_a_handshake_that_goes_on_is_waited_for(three, take):
    """Six node timeouts pass while a node is connected that answered each time at once."""
    take(template(group_of(three.urls, NODE_TIMEOUT)))


@pytest.mark.parametrize("take", [by_a_thread, by_a_task])
@pytest.mark.usefixtures("starved")
def test_a_clock_alone_calls_such_nodes_silent(three, take, monkeypatch):
    """The check can fail: where no sign of a node counts, there is no lock."""
    monkeypatch.setattr(node.Opening, "patience_ends", lambda *_: 0.0)
    with pytest.raises(NodesUnavailable, match="0 of 3 nodes could vote"):
        take(template(group_of(three.urls, NODE_TIMEOUT)))


@pytest.mark.parametrize("take", [by_a_thread, by_a_task])
def test_threads_that_have_not_begun_make_no_node_silent(three, take, monkeypatch):
    """No node is known to be down because nobody has asked it yet."""
    group = group_of(three.urls, NODE_TIMEOUT)
    for each in group.nodes:
        run = each._open

        def late(opening: Any, run: Callable[[Any], None] = run) -> None:
            time.sleep(6 * NODE_TIMEOUT)
            run(opening)

        monkeypatch.setattr(each, "_open", late)
    take(template(group))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_lock_is_refused_because_the_machine_is_busy():
    """1,000 tasks, and ten threads, get their locks beside four busy processes, in every run."""
    command = [sys.executable, "-m", "tests.busy", "--runs", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["failed"] == 0
