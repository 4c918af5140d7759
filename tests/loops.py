"""Locks over real nodes for the tests of asyncio, and what the nodes and the system say of it."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.policy import Policy
from django_redlock.fanout.group import NodeGroup
from django_redlock.locks.options import Options
from django_redlock.locks.template import LockTemplate
from django_redlock.testing.embedded import EmbeddedNode, EmbeddedNodes
from django_redlock.transport.address import from_url
from django_redlock.transport.connection import Connection
from django_redlock.transport.node import Node

ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR
OUT_OF_STEP = ("answered another question", "sent an answer to nothing", "not the Redis protocol")


def backend_of(redlock: LockTemplate) -> Backend:
    """What its locks ask."""
    return redlock._source(redlock.alias)


@contextmanager
def unguarded(count: int) -> Iterator[EmbeddedNodes]:
    """So many nodes without the guard."""
    with EmbeddedNodes(count) as nodes:
        nodes.settings(RESTART_GUARD=False)
        yield nodes


def group_of(urls: Sequence[str], timeout: float = 0.5) -> NodeGroup:
    """A process's view of these nodes, with nobody connected yet."""
    return NodeGroup([from_url(url) for url in urls], timeout=timeout, guard=0, prefix="redlock:")


def template(group: NodeGroup, *, ttl: float = 30, kind: type[Backend] = Backend) -> LockTemplate:
    """What calls itself ``redlock`` over a group; not renewed, so every key counts."""
    backend = kind("default", group, Policy(size=len(group.nodes)), ttl=ttl, renew=False)
    return LockTemplate(lambda _: backend, "default", Options())


def keys_on(nodes: Iterable[EmbeddedNode]) -> list[list[str]]:
    """The locks that each node stores."""
    found = []
    for node in nodes:
        with closing(node.client(decode_responses=True, socket_timeout=5)) as client:
            found.append(sorted(map(str, client.keys("redlock:lock:*"))))
    return found


def connections(node: EmbeddedNode) -> int:
    """How many clients the node has, this question's apart."""
    with closing(node.client(socket_timeout=5)) as client:
        return int(client.info("clients")["connected_clients"]) - 1


def owing(nodes: Sequence[Node]) -> list[int]:
    """How many idle connections to each node owe answers, once those that have come are read."""
    for node in nodes:
        for channel in node._free:
            channel.read()
    return [sum(bool(channel.owed) for channel in node._free) for node in nodes]


def shows(node: Node, signs: int = ENDED) -> bool:
    """Whether each idle connection to a node shows one of these signs, or is known to be lost."""
    for channel in node._free:
        poll = select.poll()
        poll.register(channel.fileno, signs)
        if not (channel.fault or any(events & signs for _, events in poll.poll(0))):
            return False
    return True


def open_files() -> int:
    """How many file descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def threads() -> int:
    """How many threads this process has, those that Python does not list included."""
    return len(list(Path("/proc/self/task").iterdir()))


async def soon(condition: Callable[[], object], *, within: float = 20.0, what: str = "") -> None:
    """Wait until something is true, with the loop running meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not condition():
        assert loop.time() < deadline, f"not within {within:g} s: {what or condition}"
        await asyncio.sleep(0.002)


def lanes_of(group: NodeGroup) -> list[Any]:
    """The connections of the running loop."""
    return group._loops._lanes.of(asyncio.get_running_loop()).lanes


async def connect(redlock: LockTemplate, group: NodeGroup) -> list[Any]:
    """Open the loop's connection to every node, however long a handshake takes here.

    Returns the connections; none of them is owed an answer.
    """
    with suppress(NodesUnavailable):
        async with redlock("warm"):
            pass
    lanes = lanes_of(group)
    await soon(
        lambda: all(lane.channel is not None and not lane.channel.owed for lane in lanes),
        what="connections that owe nothing",
    )
    return [lane.channel for lane in lanes]


@contextmanager
def faults_noted(group: NodeGroup) -> Iterator[list[str]]:
    """Why connections to these nodes were closed meanwhile; not what other tests have left."""
    faults: list[str] = []
    labels = {node.label for node in group.nodes}
    close: Any = Connection.close

    def noting(channel: Connection, fault: str) -> None:
        if channel.label in labels:
            faults.append(channel.fault or fault)
        close(channel, fault)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "close", noting)
        yield faults


def out_of_step(faults: Iterable[str]) -> list[str]:
    """Those that say that an answer met a question that was not its own."""
    return [fault for fault in faults if any(sign in fault for sign in OUT_OF_STEP)]
