"""Carry a request of a task to the nodes, over the connections of its event loop.

A node is silent when it owes an answer and has given none for the node timeout. The time of a
request counts from there, not from its own start: behind a thousand others it may wait longer
for a node that is busy, and no longer for one that is hung.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_redlock.concurrency.listening import Listening
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.fanout.votes import LINGER, OVER, PATIENCE
from django_redlock.transport.pending import nobody

from .timers import Timer, cancel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from django_redlock.core.protocol import Vote
    from django_redlock.fanout.collectors import TaskCollector
    from django_redlock.fanout.votes import Verdict
    from django_redlock.transport.connection import Connection

    from .connections import LoopConnections


class AsyncRequest:
    """One request of a task, on its way.

    Args:
        late: None for a request that is asked here. Of one that a batch has asked, the seconds
            that the timers of the loop have been late since.

    Attributes:
        answered: the votes, once it is enough.
        collector: decides what is done.
    """

    def __init__(
        self,
        connections: LoopConnections,
        collector: TaskCollector,
        answered: asyncio.Future[list[Vote]],
        loop: asyncio.AbstractEventLoop,
        late: float | None = None,
    ) -> None:
        self.answered = answered
        self.collector = collector
        collector.driver = self
        self._connections = connections
        self._loop = loop
        self._timer: Timer | None = None
        self._lingers = False
        self._listening: Listening | None = None  # while nodes are being connected
        self._longest = collector.start + PATIENCE * connections.timeout
        self._since = collector.start  # time.monotonic when the timer was set
        if late is not None:
            self._longest += late
            self._look_at(time.monotonic())
            return
        self._ask()
        if len(collector.unheard) < len(connections.nodes):  # else nothing is clear yet
            self.follow(collector, collector.verdict())
        if not (self._lingers or answered.done()):
            self._look_at(collector.start + connections.timeout)

    def is_over(self) -> bool:
        """Tell whether the task waits no more."""
        return self.answered.done()

    # -- asking ---------------------------------------------------------------------------------

    def _ask(self) -> None:
        collector = self.collector
        usable = self._connections.usable(collector.asked, collector.start, self._loop)
        connected = len(usable)
        if collector.undoing:
            self._undo_elsewhere(usable)
        if len(usable) < len(collector.asked):
            collector.urgent = connected < collector.majority
            for place in collector.asked:
                if place not in usable and collector.votes[place] is None:
                    self._connect(place)
        self._put(usable, collector.start)

    def _undo_elsewhere(self, usable: dict[int, Connection]) -> None:
        """Undo behind the grant, where a thread or another loop acquired and is unanswered."""
        collector, nonce = self.collector, self.collector.request.nonce
        for place in collector.asked:
            if place not in collector.touched:
                continue
            node, own = collector.nodes[place], self._connections.by_place[place].connection
            other = None
            if nonce in node.unanswered or len(node.lent) > (own is not None):
                other = node.elsewhere(nonce, own)
            if other is not None:
                usable.pop(place, None)
                again = collector.asker.again(nobody, time.monotonic())
                if not other.send(again) and not other.fault:
                    collector.keep(place)
                collector.lose(place, because(ReasonCode.GRANT_UNANSWERED), sent=True)
            elif own is not None and not own.fault:
                usable[place] = own  # a silent one will do: what is to be undone went there

    def _connect(self, place: int) -> None:
        """Have a node connected; wait for it if it is worth that."""
        collector, connection = self.collector, self._connections.by_place[place]
        worth = collector.awaits(place)
        if connection.open(collector.start, self._loop, urgent=collector.urgent) and worth:
            collector.coming |= {place}
            connection.wait(self, place)
            self._listening = self._listening or Listening(self._connections.timeout)
        else:
            collector.unreachable(place)

    def _put(self, usable: Mapping[int, Connection], now: float) -> None:
        """Ask the nodes that may vote, over these connections."""
        collector = self.collector
        pending = collector.owed(usable, now)
        collector.unheard.update({place: usable[place] for place in pending})
        for place in self._connections.put(pending, self._loop):
            collector.unheard.pop(place, None)
            collector.not_sent(place, None)

    def connected(self, place: int, connection: Connection | None) -> None:
        """Ask a node that has a connection at last; None: it could not be had.

        What is over by now is asked no more; but undoing is never over.
        """
        collector = self.collector
        collector.coming -= {place}
        if not self.answered.done() or collector.undoing:
            if connection is None:
                collector.unreachable(place)
            else:
                collector.votes[place] = None
                self._put({place: connection}, time.monotonic())
        if not self.answered.done():
            self.follow(collector, collector.verdict())

    # -- hearing --------------------------------------------------------------------------------

    def follow(self, collector: TaskCollector, verdict: Verdict) -> None:
        """End when it is enough; set a timer when only a moment more is worth it."""
        if self.answered.done():
            return
        if verdict is OVER:
            self._end()
        elif verdict is LINGER and not self._lingers:
            self._lingers = True
            self._look_at(collector.lingers_until)

    # -- time -----------------------------------------------------------------------------------

    def _look_at(self, when: float) -> None:
        before, self._since = self._timer, time.monotonic()
        # Cancelled last, for an interruption may come between.
        self._timer = self._connections.timers.set(when, self, self._loop)
        if before is not None:
            cancel(before)

    def look_again(self, when: float, now: float) -> None:
        """End, unless a node that we wait for is answering others; called by a timer.

        Whatever the timer is late is the loop's own delay, and makes no node silent.
        """
        timer = self._timer
        self._longest += now - when
        if self._listening is not None:
            self._listening.waited_for(max(0.0, when - self._since), self._since)
        if not self._lingers and now < self._longest:
            left = max(self._handshake_left(), self._answer_left(now))
            if self.answered.done() or self._timer is not timer:
                return  # ended, or lingers, by what was read
            if left > 0:
                self._look_at(now + left)
                return
        self._end()

    def _handshake_left(self) -> float:
        """Return for how many seconds more to wait for a connection."""
        if self._listening is None:
            return 0.0
        collector, listening, left = self.collector, self._listening, 0.0
        for place in collector.coming:
            silent = listening.silence(self._connections.by_place[place].sign)
            left = max(left, collector.handshake_left(place, listening.seconds, silent))
        return listening.part(left) if left > 0 else 0.0

    def _answer_left(self, now: float) -> float:
        """Return for how many seconds more to wait for an answer."""
        left = 0.0
        for place, connection in tuple(self.collector.unheard.items()):
            silent = self._connections.by_place[place].silence(connection, now, self._loop)
            left = max(left, self._connections.timeout - silent)
        return left

    def _end(self) -> None:
        collector = self.collector
        for place in tuple(collector.coming):
            connection = self._connections.by_place[place]
            silent = self._listening.silence(connection.sign) if self._listening else 0.0
            connection.forgo(self, silent=collector.is_silent(silent))
            collector.unreachable(place)
        collector.end()
        if self._timer is not None:
            cancel(self._timer)
