"""Lines and queues, for the threads and the event loops of a process; see ``waiting``."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from .farewells import Farewell
from .latches import LOOK, Latch
from .lines import Lines
from .parked import Parked
from .protocol import Line, Stand, Stood, Ticket
from .question import HANDSHAKE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .anodes import Loops
    from .channel import Channel
    from .node import Node
    from .opening import Opening
    from .protocol import Leave

SELDOM: Final = 5.0  # seconds after which a task in line looks for itself


class Standing:
    """Who stands where."""

    def __init__(self, nodes: Sequence[Node], loops: Loops, timeout: float) -> None:
        self._nodes = nodes
        self._loops = loops
        self._timeout = timeout
        self._connecting = HANDSHAKE * timeout  # seconds that it may take
        self._lines = Lines()

    def reset(self) -> None:
        """Forget everybody, as a forked child must."""
        self._lines.reset()

    # -- threads --------------------------------------------------------------------------------

    def queue(self, effect: Line | Stand | Leave) -> bool | Stood | str:
        """Wait in line, stand or leave, by blocking."""
        if isinstance(effect, Line):
            return self._line(effect)
        if isinstance(effect, Stand):
            return self._stand(effect)
        return self._leave(effect)

    def _line(self, line: Line) -> bool:
        first, end = Latch(), time.monotonic() + line.seconds
        if self._lines.join(line.ticket, first.set):
            return True
        while (left := end - time.monotonic()) > 0:
            # Whoever leaves calls the next; an interruption may have kept it from that.
            if first.wait(min(left, LOOK)) or self._lines.is_first(line.ticket):
                return True
        return first.is_set()

    def _stand(self, stand: Stand) -> Stood:
        parked = _parked(stand.ticket)
        if parked is not None and parked.place != stand.place:
            word = self._unpark(stand.ticket)  # that node is down
            if word:
                return Stood(word)
            parked = None
        if parked is None:
            channel = self._connection(self._nodes[stand.place])
            if channel is None:
                return Stood(broken=True)
            parked = self._park(channel, stand)
        parked.wait(stand.seconds)
        stood = parked.stood()
        if parked.vote is not None:
            parked.end()
            self._stood(stand.ticket, stood)
        return stood

    def _park(self, channel: Channel, stand: Stand) -> Parked:
        parked = stand.ticket.parked = Parked(self._nodes[stand.place], channel, stand)
        # A ghost would be handed the word.
        Farewell(stand.ticket, parked.abandon)
        return parked

    def _stood(self, ticket: Ticket, stood: Stood) -> None:
        """Out of the queue; a word stays until it is taken along, or left behind."""
        if stood.word:
            self._lines.leave(ticket)
        else:
            ticket.parked = None

    def _connection(self, node: Node) -> Channel | None:
        now = time.monotonic()
        channel = node.take(now)
        if channel is None and (opening := node.open(now, urgent=True)) is not None:
            opening.done.wait(self._connecting)
            channel = opening.channel
            if channel is None:
                node.forgo(opening)
        return channel

    def _leave(self, leave: Leave) -> str:
        try:
            return self._unpark(leave.ticket)
        finally:
            self._lines.leave(leave.ticket)

    def _unpark(self, ticket: Ticket) -> str:
        parked, ticket.parked = _parked(ticket), None
        if parked is None:
            return ""
        try:
            asking = parked.unblock()
            other = parked.node.take(time.monotonic()) if asking else None
            if asking and other is not None:
                other.send(asking)
                parked.wait(self._timeout)
                parked.node.give(other, None, time.monotonic())
            else:
                parked.look()  # a word may have come already
        finally:
            parked.end()
        return parked.stood().word

    # -- tasks ----------------------------------------------------------------------------------

    def aqueue(self, effect: Line | Stand | Leave) -> asyncio.Future[bool | Stood | str]:
        """The same for a task of the running loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool | Stood | str] = loop.create_future()
        if isinstance(effect, Line):
            self._aline(effect, _Once(done), loop)
        elif isinstance(effect, Stand):
            self._astand(effect, _Once(done), loop)
        else:
            self._aleave(effect, _Once(done), loop)
        return done

    def _aline(self, line: Line, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
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

    def _astand(self, stand: Stand, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        parked = _parked(stand.ticket)
        if parked is not None and parked.place != stand.place:
            parked.look()
            word = parked.stood().word  # it may have come just now
            parked.end()  # that node is down
            stand.ticket.parked = None
            if word:
                once(Stood(word))
                return
            parked = None
        if parked is not None:
            self._await(parked, stand, once, loop)
            return
        node = self._nodes[stand.place]
        channel = node.take(time.monotonic())
        if channel is not None:
            self._apark(channel, stand, once, loop)
            return

        def connected(opening: Opening) -> None:
            if once.over and opening.channel is not None:
                node.give(opening.channel, None, time.monotonic())
            elif opening.channel is not None:
                self._apark(opening.channel, stand, once, loop)
            else:
                once(Stood(broken=True))

        def then(opening: Opening) -> None:
            loop.call_soon_threadsafe(connected, opening)

        if node.open(time.monotonic(), urgent=True, then=then) is None:
            once(Stood(broken=True))
        else:
            once.after(loop, max(stand.seconds, self._connecting), result=Stood(broken=True))

    def _apark(
        self, channel: Channel, stand: Stand, once: _Once, loop: asyncio.AbstractEventLoop
    ) -> None:
        parked = self._park(channel, stand)
        parked.watch(loop)
        self._await(parked, stand, once, loop)

    def _await(
        self, parked: Parked, stand: Stand, once: _Once, loop: asyncio.AbstractEventLoop
    ) -> None:
        standing = weakref.ref(stand.ticket)

        def told() -> None:
            ticket, stood = standing(), parked.stood()
            if ticket is not None:
                self._stood(ticket, stood)
            once(stood)

        parked.told = told
        if parked.vote is not None:
            parked.end()
            told()
        else:
            once.after(loop, stand.seconds, result=Stood())

    def _aleave(self, leave: Leave, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        self._lines.leave(leave.ticket)
        parked, leave.ticket.parked = _parked(leave.ticket), None
        if parked is None:
            once("")
            return

        def told() -> None:
            once(parked.stood().word)

        def late() -> None:
            parked.end()
            told()

        asking = parked.unblock()
        if asking is None or not self._loops.put(parked.place, asking):
            parked.look()  # a word may have come already
            late()
            return
        parked.told = told
        loop.call_later(self._timeout, late)


def _parked(ticket: Ticket) -> Parked | None:
    """What stands for the ticket, unless that is of the parent, from which this child was forked.

    The ticket itself has it: no table keeps what an interruption has left there.
    """
    parked: Parked | None = ticket.parked
    return parked if parked is not None and parked.pid == os.getpid() else None


class _Once:
    """Sets a future's result, if nobody has. Weakly, so that a task which is dropped has left."""

    def __init__(self, future: asyncio.Future[bool | Stood | str]) -> None:
        self._future = weakref.ref(future)

    @property
    def over(self) -> bool:
        """Whether nobody waits any more."""
        future = self._future()
        return future is None or future.done()

    def __call__(self, result: bool | Stood | str) -> None:  # noqa: FBT001 - a future's result
        future = self._future()
        if future is not None and not future.done():
            future.set_result(result)

    def after(
        self, loop: asyncio.AbstractEventLoop, seconds: float, *, result: bool | Stood
    ) -> None:
        """Set this result then."""
        future = self._future()
        if future is not None:
            for late in (0.0, LOOK):  # twice, should an interruption keep the first from it
                timer = loop.call_later(seconds + late, self, result)
                future.add_done_callback(partial(_cancel, timer))


def _cancel(timer: asyncio.TimerHandle, _: object) -> None:
    timer.cancel()
