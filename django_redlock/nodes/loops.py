"""The requests of the tasks of event loops, over connections that all tasks of a loop share.

Asking is a plain call: when it returns, the request is in the streams, behind whatever it must not
overtake, or in the batch that goes there before anything else of this loop. So a task that is
cancelled while it waits drops its future, never the stream, and nothing can cancel the undoing that
follows. Requests of one tick of the loop leave in one write for each node; a connection matches
replies to requests, first in, first out.

A loop borrows its connections from the process's ``Node`` and returns them when it is shut down:
loops that come and go (``async_to_sync``, test clients) connect no more often than threads do.
Connecting itself, redis-py's blocking handshake, happens in a thread.

While all nodes are well, the requests of a tick are one ``RequestBatch``. Anything else is an
``AsyncRequest``. The same ``TaskCollector`` decides in both.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django_redlock import events
from django_redlock.core.protocol import UNDO, Command
from django_redlock.core.reasons import ReasonCode, because

from .background import Listening, PerLoop
from .connection import close_as_silent, nobody, parts, silence
from .faults import GUARD_OVER, INTERRUPTED, TAKES_NO_MORE, no_answer
from .round import LINGER, OVER, PATIENCE, TaskCollector

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from django_redlock.core.protocol import Request, Vote
    from django_redlock.core.reasons import Reason

    from .connection import Connection, Owed, PendingReply
    from .node import ConnectAttempt, Node
    from .round import Verdict


Timer: TypeAlias = list[Any]  # when; which of those; the request, or None when it is over

FEW: Final = 1024  # timers that are not worth tidying
LATE: Final = 1.0  # seconds after which what the loop was to be told of was interrupted …
STALE: Final = 0.05  # … and a flush, which a tick of the loop is to bring
PLENTY: Final = 65536  # bytes: what a hundred tasks ask in one tick leaves in one write


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
            with contextlib.suppress(
                RuntimeError
            ):  # it has been closed meanwhile, with its connections
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
        self.batch: RequestBatch | None = None
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


# -- one node's connection -------------------------------------------------------------------------


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
        self._waiting: dict[AsyncRequest, int] = {}  # for a connection; with our place
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

    def wait(self, request: AsyncRequest, place: int) -> None:
        """Have a request told when there is a connection."""
        self._waiting[request] = place

    def forgo(self, request: AsyncRequest, *, silent: bool) -> None:
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


# -- requests while all nodes are well -------------------------------------------------------------


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
    """The requests of one tick, while all nodes are well.

    They are one list. At the end of the tick, or before anything else of this loop, the list is
    noted and written once for each node, and one timer looks after all of it.

    A request joins a batch only if it goes to all nodes alike, each node is connected, votes, owes
    no reply for too long and has nothing to undo, and nobody watches the nodes (``join``). What
    happens to a request in a batch when something is unusual:

    * Its task is cancelled: the request stays in the list and in the streams, and nobody hears its
      votes.
    * A signal handler raises while the batch is written to a node: that connection is closed, since
      half of a request may be in it. The votes of this node are unknown, and its next connection
      carries what is to be undone. The other nodes are written to in the loop's next tick. If the
      exception kept the list from leaving at all, the next request or the timer sends it.
    * A node is not well any more when the tick ends: each request of the list becomes an
      ``AsyncRequest``.
    * A connection is lost: each request hears an unknown vote of that node.
    * A node has not replied within the node timeout: an ``AsyncRequest`` takes over the request.
    * A release waits a moment for prompt nodes: the timer ends it.
    * The loop shuts down: the list leaves before the connections are given back.

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


# -- other requests --------------------------------------------------------------------------------


class AsyncRequest:
    """One request of a task, on its way to nodes of which one is not well, or to some of them.

    A node is silent when it owes a reply and has given none for the node timeout. The time of a
    request counts from there, not from its own start: behind a thousand others it may wait longer
    for a node that is busy, and no longer for one that is hung.

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


# -- timers ----------------------------------------------------------------------------------------


def cancel(timer: Timer) -> None:
    """Let its time pass unnoticed."""
    timer[2] = None


class TimerHeap:
    """When to look at the requests of an event loop again: one timer of the loop for all of them.

    Nearly every request is answered long before it is to be looked at, and a timer of its own,
    made, sorted in and cancelled, would cost more than its replies. An entry is only dropped when
    its time comes, or when those that are void have become many; its request is, when it is over.
    """

    def __init__(self) -> None:
        self._timers: list[Timer] = []
        self._order = itertools.count()
        self._many = FEW
        # The loop's own; the second, should an interruption hit the first.
        self._handles: tuple[asyncio.TimerHandle, ...] = ()
        self._next = math.inf  # when the first of them is due

    def set(
        self, when: float, request: RequestBatch | AsyncRequest, loop: asyncio.AbstractEventLoop
    ) -> Timer:
        """Have ``request.look_again`` called at that ``time.monotonic``."""
        if len(self._timers) >= self._many:
            timers = [timer for timer in self._timers if timer[2] is not None]
            heapq.heapify(timers)
            self._timers, self._many = timers, max(FEW, 2 * len(timers))
        timer: Timer = [when, next(self._order), request]
        heapq.heappush(self._timers, timer)
        if when < self._next:
            self._arm(loop)
        return timer

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        before, due = self._handles, self._timers[0][0]
        left = max(0.0, due - time.monotonic())
        handles = [loop.call_later(left + late, self._run, loop) for late in (0.0, LATE)]
        self._handles, self._next = tuple(handles), due
        for handle in before:
            handle.cancel()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        now, self._next = time.monotonic(), -math.inf  # what is set meanwhile needs no handle yet
        try:
            while self._timers:
                when, _, request = self._timers[0]
                over = request is None or request.is_over()
                if when > now and not over:
                    return
                try:
                    heapq.heappop(self._timers)
                    if not over:
                        request.look_again(when, now)
                except BaseException:  # a signal handler's: look once more
                    heapq.heappush(self._timers, [now, next(self._order), request])
                    raise
        finally:
            handles, self._handles, self._next = self._handles, (), math.inf
            for handle in handles:
                handle.cancel()
            if self._timers:
                self._arm(loop)
