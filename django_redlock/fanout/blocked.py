"""A connection that is blocked on a queue, until a word comes or we leave."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Final

from django_redlock.core.protocol import Answer, Command, Vote, Wakeup
from django_redlock.transport.pending import PendingReply, nobody, packed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from django_redlock.core.protocol import BlockOnNode
    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import Node

LEAST: Final = 0.05  # seconds: 0 would be for ever


class BlockedConnection:
    """Somebody's place in a queue of one node, with a connection of its own.

    Attributes:
        place: the node's index.
        vote: what the node said in the end; None while we stand there.
        told: called when it has.
        pid: of the process that stands there.
    """

    def __init__(self, node: Node, channel: Connection, stand: BlockOnNode) -> None:
        self.node = node
        self.channel = channel
        self.place = stand.place
        self.vote: Vote | None = None
        self.told: Callable[[], object] | None = None
        queue = stand.ticket.queue
        data = packed("BLPOP", queue, f"{max(LEAST, stand.longest):.3f}")
        owed = PendingReply(Command.STAND, queue.encode(), self._hear, time.monotonic(), data)
        self.pid = os.getpid()
        self._given = False
        self._loop: asyncio.AbstractEventLoop | None = None
        if not channel.send(owed) and self.vote is None:
            self.vote = Vote(channel.label, Answer.UNKNOWN, why=channel.fault or "owes too much")

    def _hear(self, _: int, vote: Vote) -> None:
        self.vote = vote

    def stood(self) -> Wakeup:
        """What came of it."""
        if self.vote is None:
            return Wakeup()
        if self.vote.answer is Answer.YES:
            return Wakeup(wakeup=str(self.vote.data[0]))
        return Wakeup(broken=self.vote.answer is Answer.UNKNOWN)

    def wait(self, seconds: float) -> None:
        """Block until something comes, for at most so long."""
        poll = select.poll()
        poll.register(self.channel.fileno, select.POLLIN)
        end = time.monotonic() + seconds
        while self.vote is None and (left := end - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self.channel.read()

    def look(self) -> None:
        """Read what has come, if the connection is still ours."""
        if not self._given:
            self.channel.read()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have an event loop wait, which calls ``told``."""
        if self.vote is not None:
            return  # the connection has ended, and its socket's number may be another's by now
        self._loop, self.channel.looped = loop, True
        loop.add_reader(self.channel.fileno, self._read)

    def _read(self) -> None:
        self.channel.read()
        if self.vote is not None:
            self.end()
            if self.told is not None:
                self.told()

    def end(self) -> None:
        """Give the connection back; one that still stands in the queue is closed."""
        if self._given:
            return
        self._given = True
        if self._loop is not None:
            self._loop.remove_reader(self.channel.fileno)
            self.channel.looped = False
        if self.channel.owed or self.channel.fault:
            self.channel.close("left the queue")
        self.node.give(self.channel, None, time.monotonic())

    def abandon(self) -> None:
        """Leave, since whoever stood here is gone; any thread may come to know."""
        if self._given:
            return
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.end)
            except RuntimeError:  # the loop is closed, and has forgotten the connection
                self._loop, self.channel.looped = None, False
        if self._loop is None:
            self.end()

    def unblock(self) -> PendingReply | None:
        """What must be sent over another connection to make the node answer now, if anything."""
        if self.vote is not None or not self.channel.client:
            return None
        data = packed("CLIENT", "UNBLOCK", self.channel.client)
        return PendingReply(Command.UNBLOCK, b"", nobody, time.monotonic(), data)
