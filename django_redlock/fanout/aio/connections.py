"""Share one connection per node and event loop among all tasks of the loop.

Requests of one tick of the loop leave in one write per node; the connection matches answers to
requests, first in, first out. Asking is a plain call: when it returns, the request is in the
stream, behind whatever it must not overtake. So a task that is cancelled while it waits drops its
future, never the stream, and nothing can cancel the undoing that follows.

A loop borrows its connections from the process's ``Node`` and returns them when it is shut
down: loops that come and go (``async_to_sync``, test clients) connect no more often than
threads do. Connecting itself, redis-py's blocking handshake, happens in a thread.

What becomes of one request is decided in ``votes`` and done in ``batch`` and ``request``.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from .connection import LoopConnection
from .timers import TimerHeap

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from django_redlock.fanout.collectors import TaskCollector
    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import Node
    from django_redlock.transport.pending import PendingReply


class Batch(Protocol):
    """Requests that are to be put into the streams together; see ``batch``."""

    def takes(self, now: float) -> bool:
        """Return whether one more request may join."""

    def add(self, collector: TaskCollector) -> None:
        """Take one more."""

    def leave(self) -> None:
        """Put them there now."""


class LoopConnections:
    """The connections of the event loop that runs where this is made.

    Attributes:
        batch: the requests of this tick that are not in the streams yet.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.by_place = [LoopConnection(self, node, timeout) for node in nodes]
        self.timers = TimerHeap()
        self.batch: Batch | None = None
        # An asynchronous generator that is in its body is what a loop closes before it ends.
        self._ending = self._until_shutdown()
        with contextlib.suppress(StopIteration):  # "has yielded"
            self._ending.__anext__().send(None)

    async def _until_shutdown(self) -> AsyncGenerator[None]:
        """Return the connections when the loop is shut down."""
        try:
            yield
        finally:
            if self.batch is not None:
                self.batch.leave()
            for each in self.by_place:
                each.give_back()

    def close_idle(self) -> None:
        """Close each connection as soon as no reply is on its way over it; called by the loop."""
        self._close(self.by_place)

    def _close(self, connections: Sequence[LoopConnection]) -> None:
        idle = self.batch is None  # else requests of this tick are about to be written
        busy = [each for each in connections if not (idle and each.close_idle())]
        if busy:
            asyncio.get_running_loop().call_later(self.timeout, self._close, busy)

    def are_well(self, now: float) -> bool:
        """Tell whether there is nothing to be done about any connection before it is used."""
        for each in self.by_place:  # noqa: SIM110 - a generator costs more
            if not each.is_well(now):
                return False
        return True

    def usable(
        self, places: Sequence[int], now: float, loop: asyncio.AbstractEventLoop
    ) -> dict[int, Connection]:
        """The connections for a new request to these nodes, of those that answer, by place."""
        found = {}
        for place in places:
            connection = self.by_place[place].usable(now, loop)
            if connection is not None:
                found[place] = connection
        return found

    def put(
        self, pending: Mapping[int, PendingReply], loop: asyncio.AbstractEventLoop
    ) -> list[int]:
        """Put requests into the streams; the places whose connection does not take it."""
        return [place for place, one in pending.items() if not self.by_place[place].put(one, loop)]
