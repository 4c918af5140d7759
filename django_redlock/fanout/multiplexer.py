"""N masters for asyncio: one connection per node and running loop, shared by all its tasks.

Questions of one tick of the loop leave in one write per node; answers are matched to questions
first-in first-out by the channel. Asking is a plain call: when it returns, the question stands
in the stream, behind whatever it must not overtake. So a task that is cancelled while it waits
drops its future, never the stream, and the undoing that follows cannot be cancelled any more.

A loop borrows its connections from the process's ``Node`` and returns them when it is shut
down: loops that come and go (``async_to_sync``, test clients) connect no more often than
threads do. Connecting itself, redis-py's blocking handshake, happens in a thread.

What becomes of one question stands in ``aio``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from .timers import TimerHeap
from .votes import HANDSHAKE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from django_redlock.transport.attempt import ConnectAttempt
    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import Node
    from django_redlock.transport.pending import PendingReply

    from .votes import VoteCollector

LATE: Final = 1.0  # seconds after which what the loop was to be told of was interrupted
STALE: Final = 0.05  # … and a flush, which a tick of the loop is to bring
PLENTY: Final = 65536  # bytes: what a hundred tasks ask in one tick leaves in one write


class Asking(Protocol):
    """A request that waits for a connection."""

    question: VoteCollector

    def connected(self, place: int, lane: LoopConnection) -> None:
        """Go on, where a connection has come or could not be had."""


class LoopConnections:
    """The connections of the event loop that runs where this is made."""

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.lanes = [LoopConnection(self, node) for node in nodes]
        self.alarms = TimerHeap()
        # An asynchronous generator that is in its body is what a loop closes before it ends.
        self._ending = self._until_shutdown()
        with contextlib.suppress(StopIteration):  # "has yielded"
            self._ending.__anext__().send(None)

    async def _until_shutdown(self) -> AsyncGenerator[None]:
        """Return the connections when the loop is shut down."""
        try:
            yield
        finally:
            for lane in self.lanes:
                lane.give_back()


class LoopConnection:
    """One node's connection of one event loop.

    Attributes:
        group: all of the loop's lanes; they live as long as the loop waits for one of them.
    """

    def __init__(self, group: LoopConnections, node: Node) -> None:
        self.group = group
        self.node = node
        self.timeout = group.timeout
        self.channel: Connection | None = None
        self._silent = False
        self._opening: ConnectAttempt | None = None
        self._waiting: dict[Asking, int] = {}  # for a connection; with our place
        self._flushing = False
        self._flushes = -math.inf  # time.monotonic of the first question that waits for that
        self._blocked = False  # whether the socket takes no more for now
        self._plenty = PLENTY  # unsent bytes with which not to wait for the end of the tick

    # -- the connection -------------------------------------------------------------------------

    def usable(self, now: float, loop: asyncio.AbstractEventLoop) -> Connection | None:
        """The connection for a new question, if there is one that answers."""
        channel = self.channel
        if channel is None or channel.fault:
            self._drop(loop)
            while (taken := self.node.take(now)) is not None:
                taken.read()  # it may have been closed while it was idle …
                if not taken.fault:
                    taken.read()  # … and the end of it stand behind a last answer
                if not taken.fault:
                    self._have(taken, loop)
                    return taken
            return None
        if channel.silent_for(now) > self.timeout:
            self.read(loop)  # perhaps it was us who did not look
            if self.channel is None:
                return None
            if channel.silent_for(now) > self.timeout:
                self._silent = True
                self.node.down_reason = f"no answer for {channel.silent_for(now):.2f} s"
                return None
        elif channel.guarded and now >= channel.votes_from:
            channel.close("the restart guard is over: look again")
            self._drop(loop)
            return None
        if self.node.undos:
            self.node.undos.send(partial(self.put, loop=loop), now)
        return channel

    def open(self, now: float, loop: asyncio.AbstractEventLoop, *, urgent: bool) -> bool:
        """Begin to connect; whether a connection is on its way."""
        if self._opening is None or self._unheard(self._opening, now):

            def arrived(opening: ConnectAttempt) -> None:
                loop.call_soon_threadsafe(self._opened, loop, opening)

            self._opening = self.node.open(now, urgent=urgent, then=arrived)
        return self._opening is not None

    def patience(self, longest: float) -> float:
        """Until when, at the most, the node that is being connected may give its next sign."""
        opening = self._opening
        if opening is None or self.node.down:
            return -math.inf
        return opening.patience_ends(HANDSHAKE * self.timeout, longest)

    def _unheard(self, opening: ConnectAttempt, now: float) -> bool:
        """Whether it was done long ago: an interruption kept us from hearing of it."""
        return opening.done.is_set() and now > opening.wanted + LATE

    def _opened(self, loop: asyncio.AbstractEventLoop, opening: ConnectAttempt) -> None:
        if self._opening is opening:
            self._opening = None
        if opening.channel is not None and not opening.channel.fault:
            if self.channel is not None and self._silent:
                self.channel.close("no answer")  # it answers on a new one
            if self.channel is not None and not self.channel.fault:
                self.node.give(opening.channel, None, time.monotonic())  # one is enough
            else:
                self._drop(loop)
                self._have(opening.channel, loop)
        waiting, self._waiting = self._waiting, {}
        for inquiry, place in waiting.items():
            inquiry.connected(place, self)

    def _have(self, channel: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.channel, self._blocked, self._silent = channel, False, False
        try:
            channel.looped = True
            self.node.check_out(channel)
            loop.add_reader(channel.fileno, self.read, loop)
        except BaseException:
            self._give_up(channel, loop)
            raise
        if channel.unsent:
            self._flush(loop)

    def _give_up(self, channel: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Close what a signal handler's exception has left out of step, or unread."""
        channel.close("interrupted")
        if self.channel is channel:
            self._drop(loop)

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have no connection any more; a closed one leaves the loop before its number is new."""
        channel, self.channel = self.channel, None
        if channel is not None:
            loop.remove_reader(channel.fileno)
            loop.remove_writer(channel.fileno)
            channel.looped = False
            self.node.check_in(channel)
            if channel.fault:
                channel.close(channel.fault)

    def give_back(self) -> None:
        """Return the connection to the process; the loop ends."""
        for inquiry, place in tuple(self._waiting.items()):
            self.forgo(inquiry)
            inquiry.question.keep(place)
        channel = self.channel
        if channel is not None:
            self._drop(asyncio.get_running_loop())
            if not channel.flush():
                channel.close("takes no more data")
            channel.disown("the event loop ends")
            self.node.give(channel, None, time.monotonic())

    # -- questions ------------------------------------------------------------------------------

    def wait(self, inquiry: Asking, place: int) -> None:
        """Put the question when there is a connection."""
        self._waiting[inquiry] = place

    def forgo(self, inquiry: Asking) -> None:
        """Wait for a connection no longer."""
        self._waiting.pop(inquiry, None)
        if self._opening is not None:
            self.node.suspect(self._opening)

    def put(self, owed: PendingReply, loop: asyncio.AbstractEventLoop) -> bool:
        """Put a question into the stream, to leave with all others of this tick.

        In a tick with very many the first leave at once: the node works while we go on.
        """
        channel = self.channel
        if channel is None or not channel.put(owed):
            return False
        if channel.unsent >= self._plenty and not self._blocked:
            channel.flush()
            self._plenty = channel.unsent + PLENTY  # more, where the socket is full
        # A flush that has not come for so long was interrupted.
        if not self._blocked and (not self._flushing or owed.since > self._flushes + STALE):
            loop.call_soon(self._flush, loop)
            self._flushing, self._flushes = True, owed.since
        return True

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flushing, self._plenty = False, PLENTY
        channel = self.channel
        if channel is None:
            return
        try:
            blocked = not channel.flush()
        except BaseException:
            self._give_up(channel, loop)
            raise
        if channel.fault:
            self._drop(loop)
        elif blocked and not self._blocked:
            loop.add_writer(channel.fileno, self._unblocked, loop)
            self._blocked = True
        elif self._blocked and not blocked:
            self._blocked = False
            loop.remove_writer(channel.fileno)

    def send_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send what should have left long ago: an interruption may have kept it."""
        if self.channel is not None and self.channel.unsent and not self._blocked:
            self._flush(loop)

    def _unblocked(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send more; called by the loop as long as it does not know that there is no more."""
        self._blocked = True
        self._flush(loop)

    def read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Settle every answer that has arrived."""
        channel = self.channel
        if channel is None:
            return
        try:
            channel.read()
        except BaseException:
            self._give_up(channel, loop)
            raise
        if channel.fault:
            self._drop(loop)
            return
        if channel.unsent and not self._blocked:  # what another thread could not send at once
            self._flush(loop)
        if self._silent and channel.silent_for(time.monotonic()) <= self.timeout:
            self._silent, self.node.down_reason = False, ""
