"""Links to three nodes, and a grant by one of them whose last reply is late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from django_redlock.core.commands import Acquire, Release
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Request
from django_redlock.core.quorum import granted_or_not, heard, with_majority
from django_redlock.nodes.exchange import Exchange
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.link import Link
from django_redlock.nodes.threads import Threads
from django_redlock.testing import EmbeddedNode, EmbeddedNodes

from .loops import group_of, keys_on, owing, template
from .proxy import Proxy
from .waiting import eventually

LONG = 20.0
NONCE = "0123456789abcdef" * 2
TARGET = Policy(size=3).target(["name"])


def grant(nonce: str = NONCE, wish: int = 10**15) -> Acquire:
    """A grant as the algorithm asks for it."""
    return Acquire(nonce, with_majority(granted_or_not, 2), TARGET, wish, 10**12, 30_000, "label")


def release(nonce: str = NONCE) -> Release:
    """A release as the algorithm asks for it."""
    return Release(nonce, with_majority(heard, 2), TARGET, 50, lasts=60.0)


def threads_of(group: NodeGroup) -> Threads:
    """What has the links of a group."""
    return group._threads


def links_of(group: NodeGroup) -> list[Link]:
    """The idle links of a group."""
    threads = threads_of(group)
    return [*threads.idle.values(), *threads.owing.values()]


@contextmanager
def generally() -> Iterator[None]:
    """Have each request go the general way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "_is_usual", lambda self, _: self.settle() and False)
        yield


def asking(group: NodeGroup, request: Request) -> Exchange:
    """An exchange of this request, as a thread begins it."""
    return Exchange(group.nodes, request, group.nodes[0].timeout)


def settled(link: Link) -> bool:
    """Whether a link owes nothing, once what has come is read."""
    link.settle()
    return not link.owing


def connected(group: NodeGroup, *, more: bool = False) -> Link:
    """A new link of a group, the only one if there are not to be more."""
    threads = threads_of(group)
    if not more:
        threads.close()
    link = Link(next(threads.numbers), group.nodes, threads.timeout)
    for place, node in enumerate(group.nodes):
        connection = node._connect(bool)
        assert connection is not None
        node._welcome(connection)
        link.have(place, connection)
    threads.idle[link.number] = link
    return link


def overdue(group: NodeGroup, place: int, seconds: float) -> None:
    """From here on this node's reply is overdue after so many seconds, as is a link's late one."""
    threads_of(group).timeout = group.nodes[place].timeout = seconds
    for link in links_of(group):
        link._timeout = seconds


def note_scripts(node: EmbeddedNode) -> None:
    """Have a node note each command from here on; see ``has_run``."""
    with closing(node.client()) as client:
        client.config_set("slowlog-max-len", 1000)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()


def has_run(node: EmbeddedNode, nonce: str) -> bool:
    """Whether a node that notes its commands has run a script of this nonce."""
    with closing(node.client()) as client:
        return any(nonce.encode() in entry["command"] for entry in client.slowlog_get(1000))


class Held:
    """Three nodes, to the last of which a grant is on its way."""

    def __init__(self, nodes: EmbeddedNodes, proxy: Proxy) -> None:
        self.nodes = nodes
        self.proxy = proxy
        self.noted: list[object] = []
        self.group = group_of([*nodes.urls[:2], proxy.url], LONG)
        self.redlock = template(self.group)
        connected(self.group)
        connected(self.group, more=True)
        proxy.holding = 1
        note_scripts(nodes[2])
        self.lease = self.redlock("late").acquire()
        eventually(lambda: proxy.held == 1)

    def overtaken(self) -> bool:
        """Whether the undo is there before the grant; both may be on their way for a while."""
        return has_run(self.nodes[2], self.lease.grant.nonce)

    def all_free(self) -> bool:
        """Let the grant arrive; return whether the undo came behind it."""
        self.proxy.let_go()
        eventually(lambda: owing(self.group.nodes) == [0] * 3)
        return keys_on(self.nodes) == [[]] * 3
