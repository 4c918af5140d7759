"""The connection to one node that all tasks of an event loop share: opening, writing, reading."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from django_redlock.core.reasons import ReasonCode, because
from django_redlock.transport.connection import close_as_silent, silence
from django_redlock.transport.wire.faults import GUARD_OVER, INTERRUPTED, TAKES_NO_MORE, no_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.fanout.votes import VoteCollector
    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import ConnectAttempt, Node
    from django_redlock.transport.pending import Owed, PendingReply

LATE: Final = 1.0  # seconds after which what the loop was to be told of was interrupted
STALE: Final = 0.05  # … and a flush, which a tick of the loop is to bring
PLENTY: Final = 65536  # bytes: what a hundred tasks ask in one tick leaves in one write


class Asking(Protocol):
    """A request that waits for a connection."""

    @property
    def collector(self) -> VoteCollector:
        """What decides about it."""

    def connected(self, place: int, connection: Connection | None) -> None:
        """Go on, where a connection has come, or (None) could not be had."""


class LoopConnection:
    """One node's connection of one event loop.

    Attributes:
        group: all of the loop's connections; they live as long as the loop waits for one of them.
        connection: the connection itself, or None.
    """

    def __init__(self, group: object, node: Node, timeout: float) -> None:
        self.group = group
        self.node = node
        self.timeout = timeout
        self.connection: Connection | None = None
        self._silent = False
        self._attempt: ConnectAttempt | None = None
        self._waiting: dict[Asking, int] = {}  # for a connection; with our place
        self._flushing = False
        self._flushes = -math.inf  # time.monotonic of the first request that waits for that
        self._blocked = False  # whether the socket takes no more for now
        self._plenty = PLENTY  # unsent bytes with which not to wait for the end of the tick

    # -- the connection -------------------------------------------------------------------------

    def usable(self, now: float, loop: asyncio.AbstractEventLoop) -> Connection | None:
        """The connection for a new request, if there is one that answers."""
        connection = self.connection
        if connection is None or connection.fault:
            self._drop(loop)
            while (taken := self.node.take(now)) is not None:
                taken.read()  # it may have been closed while it was idle …
                if not taken.fault:
                    taken.read()  # … and the end of it may be behind a last reply
                if not taken.fault:
                    self._have(taken, loop)
                    return taken
            return None
        if connection.owed and connection.silent_for(now) > self.timeout:
            self.read(loop)  # perhaps this loop did not look
            if self.connection is None:
                return None
            if (silent := silence(connection, now, self.timeout)) > self.timeout:
                self._silent = True
                self.node.down_reason = no_answer(silent)
                return None
        elif connection.guarded and now >= connection.votes_from:
            connection.close(GUARD_OVER)
            self._drop(loop)
            return None
        if self.node.undos.kept:
            self.node.undos.send(partial(self.put, loop=loop), now)
        return connection

    def is_well(self, now: float) -> bool:
        """Tell whether ``usable`` would return the connection, and do no more."""
        connection, node = self.connection, self.node
        return not (
            connection is None
            or connection.fault
            or connection.guarded
            or self._silent
            or node.duplicate_of
            or node.undos.kept
            or (connection.owed and connection.silent_for(now) > self.timeout)
        )

    def open(self, now: float, loop: asyncio.AbstractEventLoop, *, urgent: bool) -> bool:
        """Begin to connect; whether a connection is on its way."""
        if self._attempt is None or self._unheard(self._attempt, now):

            def arrived(attempt: ConnectAttempt) -> None:
                loop.call_soon_threadsafe(self._opened, loop, attempt)

            self._attempt = self.node.open(now, urgent=urgent, then=arrived)
        return self._attempt is not None

    @property
    def sign(self) -> float | None:
        """``time.monotonic`` of the last sign of the node that is being connected, or None."""
        return self._attempt.heard if self._attempt is not None else None

    def silence(self, connection: Connection, now: float, loop: asyncio.AbstractEventLoop) -> float:
        """Seconds for which a node has owed an answer; on a lost connection for ever.

        Args:
            connection: over which it was asked.
        """
        silent = connection.silent_for(now)
        if connection is self.connection:
            self._send_late(loop)
        if connection.fault:  # an interruption kept us from hearing so
            return math.inf
        if silent > self.timeout and connection is self.connection:
            self.read(loop)  # perhaps this loop did not look
            silent = connection.silent_for(now)
        return silent

    def _unheard(self, attempt: ConnectAttempt, now: float) -> bool:
        """Whether it was done long ago: an interruption kept us from hearing of it."""
        return attempt.done.is_set() and now > attempt.wanted + LATE

    def _opened(self, loop: asyncio.AbstractEventLoop, attempt: ConnectAttempt) -> None:
        if self._attempt is attempt:
            self._attempt = None
        if attempt.connection is not None and not attempt.connection.fault:
            if self.connection is not None and self._silent:
                close_as_silent(self.connection)  # it answers on a new one
            if self.connection is not None and not self.connection.fault:
                self.node.give(attempt.connection, None, time.monotonic())  # one is enough
            else:
                self._drop(loop)
                self._have(attempt.connection, loop)
        waiting, self._waiting = self._waiting, {}
        for request, place in waiting.items():
            request.connected(place, self.connection)

    def _have(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.connection, self._blocked, self._silent = connection, False, False
        try:
            connection.looped = True
            self.node.check_out(connection)
            loop.add_reader(connection.fileno, self.read, loop)
        except BaseException:
            self._give_up(connection, loop)
            raise
        if connection.unsent:
            self._flush(loop)

    def _give_up(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Close what a signal handler's exception has left out of step, or unread."""
        connection.close(INTERRUPTED)
        if self.connection is connection:
            self._drop(loop)

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have no connection any more; a closed one leaves the loop before its number is new."""
        connection, self.connection = self.connection, None
        if connection is not None:
            loop.remove_reader(connection.fileno)
            loop.remove_writer(connection.fileno)
            connection.looped = False
            self.node.check_in(connection)
            if connection.fault:
                connection.close(connection.fault)

    def give_back(self) -> None:
        """Return the connection to the process; the loop ends."""
        for request, place in tuple(self._waiting.items()):
            self.forgo(request, silent=False)
            request.collector.keep(place)
        connection = self.connection
        if connection is not None:
            self._drop(asyncio.get_running_loop())
            if not connection.flush():
                connection.close(TAKES_NO_MORE)
            connection.disown(because(ReasonCode.LOOP_ENDS))
            self.node.give(connection, None, time.monotonic())

    def close_idle(self) -> bool:
        """Close the connection unless a reply is on its way; return whether there is none now."""
        connection, now = self.connection, time.monotonic()
        if connection and (not connection.owed or connection.silent_for(now) > self.timeout):
            self._drop(asyncio.get_running_loop())
            connection.close(because(ReasonCode.CLOSED))
        return self.connection is None

    # -- requests -------------------------------------------------------------------------------

    def wait(self, request: Asking, place: int) -> None:
        """Have a request told when there is a connection."""
        self._waiting[request] = place

    def forgo(self, request: Asking, *, silent: bool) -> None:
        """Have it wait no longer, for a node that was silent if so."""
        self._waiting.pop(request, None)
        if silent and self._attempt is not None:
            self.node.suspect(self._attempt)

    def put(self, pending: PendingReply, loop: asyncio.AbstractEventLoop) -> bool:
        """Put a request into the stream, to leave with all others of this tick.

        In a tick with very many the first leave at once: the node works while we go on.
        """
        connection = self.connection
        if connection is None or not connection.put(pending):
            return False
        if connection.unsent >= self._plenty and not self._blocked:
            connection.flush()
            self._plenty = connection.unsent + PLENTY  # more, where the socket is full
        # A flush that has not come for so long was interrupted.
        if not self._blocked and (not self._flushing or pending.since > self._flushes + STALE):
            loop.call_soon(self._flush, loop)
            self._flushing, self._flushes = True, pending.since
        return True

    def put_all(
        self,
        owed: Sequence[Owed],
        parts: Sequence[bytes],
        size: int,
        loop: asyncio.AbstractEventLoop,
    ) -> bool:
        """Put requests into the stream together, and send what the socket takes of it."""
        connection = self.connection
        if connection is None:
            return False
        try:
            if not connection.send_all(owed, parts, size):
                return False
            if connection.unsent and not self._blocked:
                self._flush(loop)
        except BaseException:
            self._give_up(connection, loop)
            raise
        return True

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flushing, self._plenty = False, PLENTY
        connection = self.connection
        if connection is None:
            return
        try:
            blocked = not connection.flush()
        except BaseException:
            self._give_up(connection, loop)
            raise
        if connection.fault:
            self._drop(loop)
        elif blocked and not self._blocked:
            loop.add_writer(connection.fileno, self._unblocked, loop)
            self._blocked = True
        elif self._blocked and not blocked:
            self._blocked = False
            loop.remove_writer(connection.fileno)

    def _send_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send what should have left long ago: an interruption may have kept it."""
        if self.connection is not None and self.connection.unsent and not self._blocked:
            self._flush(loop)

    def _unblocked(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send more; called by the loop as long as it does not know that there is no more."""
        self._blocked = True
        self._flush(loop)

    def read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Settle every answer that has arrived."""
        connection = self.connection
        if connection is None:
            return
        try:
            connection.read()
        except BaseException:
            self._give_up(connection, loop)
            raise
        if connection.fault:
            self._drop(loop)
            return
        if connection.unsent and not self._blocked:  # what another thread could not send at once
            self._flush(loop)
        if self._silent and connection.silent_for(time.monotonic()) <= self.timeout:
            self._silent, self.node.down_reason = False, None
