"""The first connections of a new process, over slow ways."""

from __future__ import annotations

from contextlib import ExitStack

from tests.nodes.test_first_contact import TIMEOUT, fresh, nodes
from tests.support.proxy import Proxy

__all__ = ["nodes"]


def test_connecting_may_take_several_round_trips(nodes):
    """A node timeout is for one answer; a first handshake, of several, may take longer."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        for proxy in proxies:
            proxy.delay = TIMEOUT / 4
        redlock, group = fresh([proxy.url for proxy in proxies])
        redlock("name").acquire().release()
        group.close()
