"""A place in a node's queue: a connection that is blocked there until a wake-up comes."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Final

from django_redlock.core.protocol import Answer, Command, Vote, Wakeup
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.fanout.votes import HANDSHAKE
from django_redlock.transport.pending import PendingReply, nobody, packed
from django_redlock.transport.wire.faults import LEFT_QUEUE

from .place import Place

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from django_redlock.core.protocol import BlockOnNode
    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import ConnectAttempt, Node

LEAST: Final = 0.05  # seconds: 0 would be for ever


class NodePlaces:
    """Places in the queues of real nodes, each with a connection of its own.

    Args:
        put: sends something over the running loop's connection to a node, if there is one.
        timeout: the node timeout, in seconds.
    """

    def __init__(
        self, nodes: Sequence[Node], put: Callable[[int, PendingReply], bool], timeout: float
    ) -> None:
        self._nodes = nodes
        self._put = put
        self._connecting = HANDSHAKE * timeout

    def open(self, effect: BlockOnNode) -> BlockedConnection | None:
        """Take a place, for a thread; see ``Places``."""
        node, now = self._nodes[effect.place], time.monotonic()
        connection = node.take(now, spare=False)  # the thread needs its set when it is woken
        if connection is None and (attempt := node.open(now, urgent=True)) is not None:
            attempt.done.wait(self._connecting)
            connection = attempt.connection
            if connection is None:
                node.forgo(attempt)
        connection = connection or node.take(now)
        if connection is None:
            return None
        return BlockedConnection(node, connection, effect, self._put)

    def aopen(
        self,
        effect: BlockOnNode,
        loop: asyncio.AbstractEventLoop,
        *,
        wanted: Callable[[], bool],
        then: Callable[[BlockedConnection | None], object],
    ) -> float:
        """Take a place, for a task; see ``Places``."""
        node = self._nodes[effect.place]

        def connected(connection: Connection | None) -> None:
            if connection is None:
                then(None)
            elif wanted():
                then(BlockedConnection(node, connection, effect, self._put))
            else:
                node.give(connection, None, time.monotonic())

        def later(attempt: ConnectAttempt) -> None:
            loop.call_soon_threadsafe(lambda: connected(attempt.connection))

        connection = node.take(time.monotonic())
        if connection or node.open(time.monotonic(), urgent=True, then=later) is None:
            connected(connection)
        return max(effect.seconds, self._connecting)


class BlockedConnection(Place):
    """A waiter's place in a queue of one node.

    Attributes:
        connection: blocked there, and used for nothing else.
        vote: what the node said in the end; None until then.
    """

    def __init__(
        self,
        node: Node,
        connection: Connection,
        effect: BlockOnNode,
        put: Callable[[int, PendingReply], bool],
    ) -> None:
        super().__init__(effect.place)
        self.connection = connection
        self.vote: Vote | None = None
        self._node = node
        self._put = put
        self._given = False
        self._loop: asyncio.AbstractEventLoop | None = None
        queue = effect.ticket.queue
        data = packed("BLPOP", queue, f"{max(LEAST, effect.longest):.3f}")
        pending = PendingReply(Command.BLOCK, queue.encode(), self._hear, time.monotonic(), data)
        if not connection.send(pending) and self.vote is None:
            why = connection.fault or because(ReasonCode.BACKLOG)
            self.vote = Vote(connection.label, Answer.UNKNOWN, reason=why)

    def _hear(self, _: int, vote: Vote) -> None:
        self.vote = vote

    def outcome(self) -> Wakeup | None:
        """Return the outcome; None while the place is kept."""
        if self.vote is None:
            return None
        if self.vote.answer is Answer.YES:
            return Wakeup(wakeup=self.vote.result)
        return Wakeup(broken=self.vote.answer is Answer.UNKNOWN)

    def wait(self, seconds: float) -> None:
        """Block until something comes, for at most so long."""
        poll = select.poll()
        poll.register(self.connection.fileno, select.POLLIN)
        end = time.monotonic() + seconds
        while self.vote is None and (left := end - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self.connection.read()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have an event loop wait, which calls ``told``."""
        if self.vote is not None:
            return  # the connection has ended, and its socket's number may be another's by now
        self._loop, self.connection.looped = loop, True
        loop.add_reader(self.connection.fileno, self._read)

    def _read(self) -> None:
        self.connection.read()
        if self.vote is not None:
            self.end()
            if self.told is not None:
                self.told()

    def withdraw(self, *, looped: bool) -> bool:
        """Have the node answer now: told over another connection, if there is one."""
        if self.vote is None and self.connection.client:
            data = packed("CLIENT", "UNBLOCK", self.connection.client)
            pending = PendingReply(Command.UNBLOCK, b"", nobody, time.monotonic(), data)
            if self._put(self.index, pending) if looped else self._send(pending):
                return True
        if not self._given:
            self.connection.read()  # a wake-up may have come already
        return False

    def _send(self, pending: PendingReply) -> bool:
        other = self._node.take(time.monotonic())
        if other is None:
            return False
        sent = other.send(pending)
        self._node.give(other, None, time.monotonic())
        return sent

    def end(self) -> None:
        """Give the connection back; one that is still blocked is closed."""
        if self._given:
            return
        self._given = True
        if self._loop is not None:
            self._loop.remove_reader(self.connection.fileno)
            self.connection.looped = False
        if self.connection.owed or self.connection.fault:
            self.connection.close(LEFT_QUEUE)
        self._node.give(self.connection, None, time.monotonic())

    def abandon(self) -> None:
        """Leave: a dead waiter would consume the wake-up."""
        if self._given:
            return
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.end)
            except RuntimeError:  # the loop is closed, and has forgotten the connection
                self._loop, self.connection.looped = None, False
        if self._loop is None:
            self.end()
