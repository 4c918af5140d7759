"""Locks over real nodes for the tests of asyncio, and what the nodes and the system say of it."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from django_redlock.backend import Backend
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.policy import Policy
from django_redlock.core.reasons import Reason
from django_redlock.locks.options import Options
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.address import from_url
from django_redlock.nodes.connection import Connection
from django_redlock.nodes.group import _ALL, NodeGroup
from django_redlock.nodes.node import Node
from django_redlock.nodes.threads import Threads
from django_redlock.testing.embedded import EmbeddedNode, EmbeddedNodes

UNDONE: Final = 50.0  # seconds after which no thread sends a release: the ttl is over
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


@contextmanager
def connects(group: NodeGroup) -> Iterator[list[int]]:
    """How often this process connects to each node of the group meanwhile."""
    counts = [0] * len(group.nodes)

    def counted(place: int, connect: Callable[..., Connection | None]) -> Any:
        def counting(*args: Any) -> Connection | None:
            counts[place] += 1
            return connect(*args)

        return counting

    with pytest.MonkeyPatch.context() as patch:
        for place, node in enumerate(group.nodes):
            patch.setattr(node, "_connect", counted(place, node._connect))
        yield counts


def idle(node: Node) -> list[Connection]:
    """The idle connections to a node, with those of the links, which are dissolved."""
    if threads := _threads_of(node):
        threads.close()
    return node._free


def in_links(node: Node) -> list[Connection]:
    """The connections to a node, and to others, that are in idle links."""
    threads = _threads_of(node)
    links = (*threads.idle.values(), *threads.owing.values()) if threads else ()
    return [connection for each in links for connection in each.connections.values()]


def _threads_of(node: Node) -> Threads | None:
    groups = [each for each in tuple(_ALL) if node in each.nodes]
    return groups[0]._threads if groups else None


def owing(nodes: Sequence[Node]) -> list[int]:
    """How many idle connections to each node owe answers, once those that have come are read."""
    for node in nodes:
        for connection in idle(node):
            connection.read()
    return [sum(bool(connection.owed) for connection in node._free) for node in nodes]


def shows(node: Node, signs: int = ENDED) -> bool:
    """Whether each idle connection to a node shows one of these signs, or is known to be lost."""
    for connection in idle(node):
        poll = select.poll()
        poll.register(connection.fileno, signs)
        if not (connection.fault or any(events & signs for _, events in poll.poll(0))):
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


def loop_connections(group: NodeGroup) -> list[Any]:
    """The connections of the running loop."""
    return group._loops._connections.of(asyncio.get_running_loop()).by_index


async def connect(redlock: LockTemplate, group: NodeGroup) -> list[Any]:
    """Open the loop's connection to every node, however long a handshake takes here.

    Returns the connections; none of them is owed an answer.
    """
    with suppress(NodesUnavailable):
        async with redlock("warm"):
            pass
    every = loop_connections(group)
    await soon(
        lambda: all(each.connection is not None and not each.connection.owed for each in every),
        what="connections that owe nothing",
    )
    return [each.connection for each in every]


@contextmanager
def faults_noted(group: NodeGroup) -> Iterator[list[str]]:
    """Why connections to these nodes were closed meanwhile; not what other tests have left."""
    faults: list[str] = []
    labels = {node.label for node in group.nodes}
    close: Any = Connection.close

    def noting(connection: Connection, fault: Reason) -> None:
        if connection.label in labels:
            faults.append(str(connection.fault or fault))
        close(connection, fault)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "close", noting)
        yield faults


def out_of_step(faults: Iterable[str]) -> list[str]:
    """Those that say that an answer met a question that was not its own."""
    return [fault for fault in faults if any(sign in fault for sign in OUT_OF_STEP)]
