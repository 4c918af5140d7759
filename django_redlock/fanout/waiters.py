"""Track which waiter of this process is queued on which node; see ``core.wait`` for the rules."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from django_redlock.concurrency.farewells import Farewell
from django_redlock.concurrency.latches import LOOK, Latch
from django_redlock.core.protocol import BlockOnNode, JoinQueue, Waiter, Wakeup

from .blocked import BlockedConnection
from .local_queue import LocalQueue
from .votes import HANDSHAKE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.core.protocol import LeaveQueue
    from django_redlock.transport.attempt import ConnectAttempt
    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import Node

    from .aio import Loops

SELDOM: Final = 5.0  # seconds after which a task in line looks for itself


class Waiters:
    """Who waits where, for the threads and the event loops of this process."""

    def __init__(self, nodes: Sequence[Node], loops: Loops, timeout: float) -> None:
        self._nodes = nodes
        self._loops = loops
        self._timeout = timeout
        self._connecting = HANDSHAKE * timeout  # seconds that it may take
        self._lines = LocalQueue()

    def reset(self) -> None:
        """Forget everybody, as a forked child must."""
        self._lines.reset()

    # -- threads --------------------------------------------------------------------------------

    def queue(self, effect: JoinQueue | BlockOnNode | LeaveQueue) -> bool | Wakeup | str:
        """Wait in line, stand or leave, by blocking."""
        if isinstance(effect, JoinQueue):
            return self._line(effect)
        if isinstance(effect, BlockOnNode):
            return self._stand(effect)
        return self._leave(effect)

    def _line(self, line: JoinQueue) -> bool:
        first, end = Latch(), time.monotonic() + line.seconds
        if self._lines.join(line.ticket, first.set):
            return True
        while (left := end - time.monotonic()) > 0:
            # Whoever leaves calls the next; an interruption may have kept it from that.
            if first.wait(min(left, LOOK)) or self._lines.is_first(line.ticket):
                return True
        return first.is_set()

    def _stand(self, stand: BlockOnNode) -> Wakeup:
        blocked = _blocked_for(stand.ticket)
        if blocked is not None and blocked.place != stand.place:
            wakeup = self._unpark(stand.ticket)  # that node is down
            if wakeup:
                return Wakeup(wakeup)
            blocked = None
        if blocked is None:
            channel = self._connection(self._nodes[stand.place])
            if channel is None:
                return Wakeup(broken=True)
            blocked = self._park(channel, stand)
        blocked.wait(stand.seconds)
        stood = blocked.stood()
        if blocked.vote is not None:
            blocked.end()
            self._stood(stand.ticket, stood)
        return stood

    def _park(self, channel: Connection, stand: BlockOnNode) -> BlockedConnection:
        blocked = stand.ticket.blocked = BlockedConnection(self._nodes[stand.place], channel, stand)
        # A ghost would be handed the word.
        Farewell(stand.ticket, blocked.abandon)
        return blocked

    def _stood(self, ticket: Waiter, stood: Wakeup) -> None:
        """Out of the queue; a word stays until it is taken along, or left behind."""
        if stood.wakeup:
            self._lines.leave(ticket)
        else:
            ticket.blocked = None

    def _connection(self, node: Node) -> Connection | None:
        now = time.monotonic()
        channel = node.take(now)
        if channel is None and (opening := node.open(now, urgent=True)) is not None:
            opening.done.wait(self._connecting)
            channel = opening.channel
            if channel is None:
                node.forgo(opening)
        return channel

    def _leave(self, leave: LeaveQueue) -> str:
        try:
            return self._unpark(leave.ticket)
        finally:
            self._lines.leave(leave.ticket)

    def _unpark(self, ticket: Waiter) -> str:
        blocked, ticket.blocked = _blocked_for(ticket), None
        if blocked is None:
            return ""
        try:
            asking = blocked.unblock()
            other = blocked.node.take(time.monotonic()) if asking else None
            if asking and other is not None:
                other.send(asking)
                blocked.wait(self._timeout)
                blocked.node.give(other, None, time.monotonic())
            else:
                blocked.look()  # a word may have come already
        finally:
            blocked.end()
        return blocked.stood().wakeup

    # -- tasks ----------------------------------------------------------------------------------

    def aqueue(
        self, effect: JoinQueue | BlockOnNode | LeaveQueue
    ) -> asyncio.Future[bool | Wakeup | str]:
        """The same for a task of the running loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool | Wakeup | str] = loop.create_future()
        if isinstance(effect, JoinQueue):
            self._aline(effect, _Once(done), loop)
        elif isinstance(effect, BlockOnNode):
            self._astand(effect, _Once(done), loop)
        else:
            self._aleave(effect, _Once(done), loop)
        return done

    def _aline(self, line: JoinQueue, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        def call() -> None:
            loop.call_soon_threadsafe(once, True)  # noqa: FBT003 - the future's result

        ticket = weakref.ref(line.ticket)

        def look() -> None:
            """Look, should an interruption have kept the call from us."""
            standing = ticket()
            if standing is not None and not once.over:
                loop.call_later(SELDOM, look)
                if self._lines.is_first(standing):
                    once(True)  # noqa: FBT003 - as above

        if self._lines.join(line.ticket, call):
            once(True)  # noqa: FBT003 - as above
            return
        loop.call_later(SELDOM, look)
        if line.seconds < threading.TIMEOUT_MAX:
            once.after(loop, line.seconds, result=False)

    def _astand(self, stand: BlockOnNode, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        blocked = _blocked_for(stand.ticket)
        if blocked is not None and blocked.place != stand.place:
            blocked.look()
            wakeup = blocked.stood().wakeup  # it may have come just now
            blocked.end()  # that node is down
            stand.ticket.blocked = None
            if wakeup:
                once(Wakeup(wakeup))
                return
            blocked = None
        if blocked is not None:
            self._await(blocked, stand, once, loop)
            return
        node = self._nodes[stand.place]
        channel = node.take(time.monotonic())
        if channel is not None:
            self._apark(channel, stand, once, loop)
            return

        def connected(opening: ConnectAttempt) -> None:
            if once.over and opening.channel is not None:
                node.give(opening.channel, None, time.monotonic())
            elif opening.channel is not None:
                self._apark(opening.channel, stand, once, loop)
            else:
                once(Wakeup(broken=True))

        def then(opening: ConnectAttempt) -> None:
            loop.call_soon_threadsafe(connected, opening)

        if node.open(time.monotonic(), urgent=True, then=then) is None:
            once(Wakeup(broken=True))
        else:
            once.after(loop, max(stand.seconds, self._connecting), result=Wakeup(broken=True))

    def _apark(
        self, channel: Connection, stand: BlockOnNode, once: _Once, loop: asyncio.AbstractEventLoop
    ) -> None:
        blocked = self._park(channel, stand)
        blocked.watch(loop)
        self._await(blocked, stand, once, loop)

    def _await(
        self,
        blocked: BlockedConnection,
        stand: BlockOnNode,
        once: _Once,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        standing = weakref.ref(stand.ticket)

        def told() -> None:
            ticket, stood = standing(), blocked.stood()
            if ticket is not None:
                self._stood(ticket, stood)
            once(stood)

        blocked.told = told
        if blocked.vote is not None:
            blocked.end()
            told()
        else:
            once.after(loop, stand.seconds, result=Wakeup())

    def _aleave(self, leave: LeaveQueue, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        self._lines.leave(leave.ticket)
        blocked, leave.ticket.blocked = _blocked_for(leave.ticket), None
        if blocked is None:
            once("")
            return

        def told() -> None:
            once(blocked.stood().wakeup)

        def late() -> None:
            blocked.end()
            told()

        asking = blocked.unblock()
        if asking is None or not self._loops.put(blocked.place, asking):
            blocked.look()  # a word may have come already
            late()
            return
        blocked.told = told
        loop.call_later(self._timeout, late)


def _blocked_for(ticket: Waiter) -> BlockedConnection | None:
    """What stands for the ticket, unless that is of the parent, from which this child was forked.

    The ticket itself has it: no table keeps what an interruption has left there.
    """
    blocked: BlockedConnection | None = ticket.blocked
    return blocked if blocked is not None and blocked.pid == os.getpid() else None


class _Once:
    """Sets a future's result, if nobody has. Weakly, so that a task which is dropped has left."""

    def __init__(self, future: asyncio.Future[bool | Wakeup | str]) -> None:
        self._future = weakref.ref(future)

    @property
    def over(self) -> bool:
        """Whether nobody waits any more."""
        future = self._future()
        return future is None or future.done()

    def __call__(self, result: bool | Wakeup | str) -> None:  # noqa: FBT001 - a future's result
        future = self._future()
        if future is not None and not future.done():
            future.set_result(result)

    def after(
        self, loop: asyncio.AbstractEventLoop, seconds: float, *, result: bool | Wakeup
    ) -> None:
        """Set this result then."""
        future = self._future()
        if future is not None:
            for late in (0.0, LOOK):  # twice, should an interruption keep the first from it
                timer = loop.call_later(seconds + late, self, result)
                future.add_done_callback(partial(_cancel, timer))


def _cancel(timer: asyncio.TimerHandle, _: object) -> None:
    timer.cancel()
