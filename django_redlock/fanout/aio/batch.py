"""Carry the requests that tasks make in one tick of an event loop, while all nodes are well.

They are one list. At the end of the tick, or before anything else of this loop, the list is noted
and written once for each node, and one timer looks after all of it. That is the common case of
what ``request`` does for one request at a time; the same ``TaskCollector`` decides in both.

Only a request to all nodes alike joins a batch, while each node is connected, votes, owes nothing
for too long and has nothing to undo, and nobody watches the nodes (``join``). The rest takes the
general way, at once or later:

cancellation: the request stays in the list and in the streams; its votes are not heard.
a signal handler's exception: while a node is written to, it closes that connection, as a request
    may be in it by half. The votes of this node are unknown, and undoing is entrusted to the next
    connection. The rest of the nodes are written to in the loop's next tick. An exception that
    kept the list from leaving at all costs it a moment: the next request, or the timer, sends it.
a node that is not well any more when the tick ends: an ``AsyncRequest`` for each of the list.
a connection that is lost: each request hears an unknown vote of that node, as in ``request``.
a late, wrong or negative reply, an error: the connection settles them, and the collector counts.
a node without a reply for the node timeout: an ``AsyncRequest`` takes over, and ends the request.
releases that wait a moment for prompt nodes: the timer ends them.
the restart guard: the node is not well until it votes.
a loop that shuts down: the list leaves before the connections are given back.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from django_redlock import events
from django_redlock.fanout.votes import OVER, PATIENCE
from django_redlock.transport.pending import parts
from django_redlock.transport.wire.faults import INTERRUPTED

from .connection import PLENTY, STALE
from .request import AsyncRequest
from .timers import Timer, cancel

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from django_redlock.core.reasons import Reason
    from django_redlock.fanout.collectors import TaskCollector
    from django_redlock.fanout.votes import Verdict
    from django_redlock.transport.connection import Connection

    from .connections import LoopConnections


def join(
    connections: LoopConnections, collector: TaskCollector, loop: asyncio.AbstractEventLoop
) -> bool:
    """Add a request to the batch of this tick; return False if it must take the general way."""
    if (
        len(collector.asked) < len(collector.nodes)
        or collector.request.each is not None
        or events.node_watchers
        or (collector.undoing and _may_be_granted_elsewhere(collector))
    ):
        return False
    batch = connections.batch
    if batch is not None and not batch.takes(collector.start):
        batch.leave()
        batch = None
    if batch is None:
        if not connections.are_well(collector.start):
            return False
        batch = RequestBatch(connections, collector, loop)
        connections.batch = batch
    batch.add(collector)
    return True


def leave(connections: LoopConnections) -> None:
    """Write what is in the batch, so that nothing overtakes it."""
    if connections.batch is not None:
        connections.batch.leave()


def _may_be_granted_elsewhere(collector: TaskCollector) -> bool:
    """Return whether a thread or another loop may have the unanswered grant; see ``request``."""
    nonce = collector.request.nonce
    for node in collector.nodes:  # noqa: SIM110 - a generator costs more
        if nonce in node.unanswered or len(node.lent) > 1:
            return True
    return False


class RequestBatch:
    """The requests of one tick.

    Args:
        first: the first of them.

    Attributes:
        requests: those that may still be waited for.
    """

    __slots__ = (
        "_connections",
        "_due",
        "_late",
        "_left",
        "_loop",
        "_open",
        "_since",
        "_size",
        "_timer",
        "_unwritten",
        "requests",
    )

    def __init__(
        self, connections: LoopConnections, first: TaskCollector, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.requests: list[TaskCollector] = []
        self._connections = connections
        self._loop = loop
        self._since = first.start
        self._size = 0  # bytes
        self._open = 0  # of the requests, or fewer
        self._unwritten = list(reversed(first.asked))  # the places of the nodes
        self._left = False  # whether any node has been written to
        self._late = 0.0  # seconds, of the timers
        self._due = self._since + connections.timeout
        self._timer: Timer = connections.timers.set(self._due, self, loop)
        loop.call_soon(self.leave)

    # -- asking ---------------------------------------------------------------------------------

    def takes(self, now: float) -> bool:
        """Return whether one more request may join; a batch that has not left long ago must go."""
        return not self._left and now <= self._since + STALE

    def add(self, collector: TaskCollector) -> None:
        """Take one more; in a tick with very many the first leave at once."""
        collector.driver = self
        self.requests.append(collector)
        self._open += 1
        self._size += len(collector.packed)
        if self._size >= PLENTY:
            self.leave()

    def leave(self) -> None:
        """Put the requests into the streams of all nodes that have not got them yet."""
        if not self._unwritten:
            return
        try:
            if not self._left and not self._connections.are_well(time.monotonic()):
                self._take_apart()
            elif self.requests:
                self._write()
            self._unwritten.clear()
            self._connections.batch = None
            if self._open <= 0 or not self.requests:  # else an answer may be on its way
                self._tidy()
        except BaseException:  # the rest leaves in the next tick
            self._loop.call_soon(self.leave)
            raise

    def _write(self) -> None:
        every = self._connections.by_place
        if not self._left:
            asked = {place: every[place].connection for place in self._unwritten}
            for collector in self.requests:
                collector.unheard = asked.copy()  # type: ignore[assignment] # all are connected
            self._left = True
        pieces = parts(self.requests)
        while self._unwritten:
            place = self._unwritten[-1]
            try:
                sent = every[place].put_all(self.requests, pieces, self._size, self._loop)
            except BaseException:
                self._unwritten.pop()
                self._not_sent(self.requests, place, INTERRUPTED)
                raise
            self._unwritten.pop()
            if not sent:
                self._not_sent(self.requests, place, None)

    def _take_apart(self) -> None:
        """Ask the general way, in order: some node has had its troubles since."""
        while self.requests:
            collector = self.requests[0]
            try:
                if collector.answered is not None:
                    AsyncRequest(self._connections, collector, collector.answered, self._loop)
            except BaseException:
                self.requests.pop(0)
                for place in collector.asked:
                    self._not_sent([collector], place, INTERRUPTED)
                raise
            self.requests.pop(0)

    def _not_sent(
        self, requests: Sequence[TaskCollector], place: int, fault: Reason | None
    ) -> None:
        for collector in requests:
            if collector.votes[place] is None:
                collector.unheard.pop(place, None)
                collector.not_sent(place, fault)
                self.follow(collector, collector.verdict())

    # -- hearing --------------------------------------------------------------------------------

    def follow(self, collector: TaskCollector, verdict: Verdict) -> None:
        """End a request when it is enough; set the timer when a moment more is worth it."""
        if verdict is OVER:
            collector.end()
            self._open -= 1
            if self._open <= 0:
                self._tidy()
        elif collector.lingering:
            # The later one was asked, the sooner it lingers no more.
            due = collector.lingers_until - (self.requests[-1].start - collector.start)
            if due < self._due:
                self._look_at(due)

    def _tidy(self) -> None:
        """Forget the requests that nobody waits for."""
        if not self._unwritten:
            self.requests = [each for each in self.requests if _is_open(each)]
            self._open = len(self.requests)
            if not self.requests:
                cancel(self._timer)

    # -- time -----------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Tell whether there is nothing to look at any more."""
        return not self.requests

    def _look_at(self, when: float) -> None:
        before = self._timer
        self._timer = self._connections.timers.set(when, self, self._loop)
        self._due = when
        cancel(before)

    def look_again(self, when: float, now: float) -> None:
        """End what has lingered for long enough, and see what has not been answered in time."""
        self._late += now - when
        self.leave()
        self._tidy()
        silence: dict[Connection, float] = {}
        due = math.inf
        for collector in tuple(self.requests):
            if _is_open(collector):
                due = min(due, self._look(collector, now, silence))
        self._tidy()
        if self.requests:
            self._look_at(due)

    def _look(
        self, collector: TaskCollector, now: float, silence: dict[Connection, float]
    ) -> float:
        """Return the ``time.monotonic`` when to look at a request again; end it if that is now."""
        timeout = self._connections.timeout
        if collector.lingering:
            due = collector.lingers_until
            if due <= now:
                self.follow(collector, OVER)
                return math.inf
            return due
        due = collector.start + timeout
        if due > now:
            return due
        left = 0.0
        if now < collector.start + PATIENCE * timeout + self._late:
            for place, connection in tuple(collector.unheard.items()):
                if connection not in silence:
                    each = self._connections.by_place[place]
                    silence[connection] = each.silence(connection, now, self._loop)
                left = max(left, timeout - silence[connection])
        if left <= 0 and _is_open(collector):
            assert collector.answered is not None  # it is open
            AsyncRequest(
                self._connections, collector, collector.answered, self._loop, late=self._late
            )
            self.requests.remove(collector)
            return math.inf
        return now + left


def _is_open(collector: TaskCollector) -> bool:
    return collector.answered is not None and not collector.answered.done()
