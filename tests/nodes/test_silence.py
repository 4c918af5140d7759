"""A process that did not run says nothing against a node: its silence is counted anew, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from django_redlock import LockTaken, NodesUnavailable
from django_redlock.nodes import loops as loop_side
from django_redlock.nodes import node as node_module
from django_redlock.nodes.connection import Connection
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing.embedded import EmbeddedNodes
from tests.support.loops import connect, group_of, idle, loop_connections, template, unguarded
from tests.support.waiting import eventually

TIMEOUT = 0.05  # seconds
STOPPED = 1.2  # seconds: a virtual machine was moved


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def group(three: EmbeddedNodes) -> Iterator[NodeGroup]:
    """A process that is connected to each; the first one stops."""
    group = group_of(three.urls, TIMEOUT)
    eventually(lambda: all_vote(group))
    yield group
    three.resume(0)
    group.close()


def ask(group: NodeGroup) -> None:
    """Ask all nodes; on a busy machine even those that run may not answer in time."""
    with suppress(LockTaken, NodesUnavailable), template(group)("name"):
        pass


def owes_unnoticed(connection: Connection) -> bool:
    """Whether a reply is due and nobody has excused that: the process has not stood still yet."""
    return bool(connection.owed) and connection.excused != connection.owed[0].since


def all_vote(group: NodeGroup) -> bool:
    """Whether each node is connected to, once all were asked."""
    ask(group)
    return all(state.voting for state in group.states())


def by_a_thread(group: NodeGroup, three: EmbeddedNodes) -> list[bool]:
    """Whether the node is asked: after the pause, soon after it, and later."""
    node = group.nodes[0]

    def owes() -> bool:
        three.resume(0)
        eventually(lambda: all_vote(group))
        three.pause(0)
        ask(group)
        return any(map(owes_unnoticed, idle(node))) and not node.down

    # A node that was late before is not asked, and where the others are late it is silent already.
    eventually(owes)

    def asked(now: float) -> bool:
        connection = node.take(now)
        if connection is not None:
            node.give(connection, now)
        return not node.down

    woken = time.monotonic() + STOPPED
    return [asked(woken + later) for later in (0, TIMEOUT / 2, TIMEOUT * 1.1)]


def by_a_task(group: NodeGroup, three: EmbeddedNodes) -> list[bool]:
    """The same, in an event loop."""

    async def main() -> list[bool]:
        redlock = template(group)
        while True:
            await connect(redlock, group)
            three.pause(0)
            with suppress(LockTaken, NodesUnavailable):
                async with redlock("name"):
                    pass
            connection = loop_connections(group)[0].connection
            if connection and owes_unnoticed(connection) and not group.nodes[0].down:
                break
            three.resume(0)
        first, loop = loop_connections(group)[0], asyncio.get_running_loop()
        woken = time.monotonic() + STOPPED
        moments = (woken, woken + TIMEOUT / 2, woken + TIMEOUT * 1.1)
        return [first.usable(now, loop) is not None for now in moments]

    return asyncio.run(main())


@pytest.mark.parametrize("way", [by_a_thread, by_a_task])
def test_a_node_is_asked_again_after_the_process_stood_still(
    group: NodeGroup, three: EmbeddedNodes, way: Callable[..., list[bool]]
) -> None:
    """The silence of a node that nobody watched is counted anew; then it is silent."""
    assert way(group, three) == [True, True, False]


@pytest.mark.parametrize("way", [by_a_thread, by_a_task])
def test_a_silence_that_is_held_against_the_node_is_found(
    group: NodeGroup,
    three: EmbeddedNodes,
    way: Callable[..., list[bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check can fail."""

    def never_excused(connection: Connection, now: float, _: float) -> float:
        return connection.silent_for(now)

    for module in (node_module, loop_side):
        monkeypatch.setattr(module, "silence", never_excused)
    assert way(group, three) == [False, False, False]
