"""Ask the nodes for tasks: each event loop of the process over its own connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from django_redlock.concurrency.loops import PerLoop
from django_redlock.core.protocol import UNDO, Command
from django_redlock.fanout.collectors import TaskCollector

from .batch import join, leave
from .connections import LoopConnections
from .request import AsyncRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.core.protocol import Request, Vote
    from django_redlock.transport.node import Node
    from django_redlock.transport.pending import PendingReply


class Loops:
    """The nodes, for the event loops of this process.

    Args:
        timeout: the node timeout, in seconds.
        give_up: called with the nonce of a grant, whose undo or heal goes over a loop's
            connections: a thread may have acquired, and keep connections that owe a reply to the
            grant.
    """

    def __init__(
        self, nodes: Sequence[Node], timeout: float, give_up: Callable[[str], object]
    ) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._give_up = give_up
        self.reset()

    def reset(self) -> None:
        """Forget all loops, as a forked child must."""
        self._connections = PerLoop(partial(LoopConnections, self._nodes, self._timeout))

    def close(self) -> None:
        """Have each loop close its idle connections, in its next tick; any thread may call this."""
        for loop, connections in self._connections.made():
            with suppress(RuntimeError):  # it has been closed meanwhile, with its connections
                loop.call_soon_threadsafe(connections.close_idle)

    def ask(self, request: Request) -> asyncio.Future[list[Vote]]:
        """Put a request to the nodes; the votes, one for each, in order.

        What can be sent is on its way, in order, when this returns: it is in the streams, or in the
        batch that goes there before anything else of this loop.
        """
        loop = asyncio.get_running_loop()
        connections = self._connections.of(loop)
        if request.command in UNDO or request.command is Command.HEAL:
            self._give_up(request.nonce)
        answered: asyncio.Future[list[Vote]] = loop.create_future()
        collector = TaskCollector(self._nodes, request, self._timeout, answered)
        if not join(connections, collector, loop):
            leave(connections)
            AsyncRequest(connections, collector, answered, loop)
        return answered

    def put(self, place: int, pending: PendingReply) -> bool:
        """Send something else over the running loop's connection to a node, if there is one."""
        loop = asyncio.get_running_loop()
        connections = self._connections.of(loop)
        leave(connections)
        return connections.by_place[place].put(pending, loop)
