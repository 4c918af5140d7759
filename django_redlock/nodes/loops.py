"""Put the requests of tasks to the nodes: the driver for event loops.

All tasks of a loop share its connections.

Asking is a plain call: when it returns, the request is in the streams, behind whatever it must not
overtake, or in the batch that goes there before anything else of this loop. So a task that is
cancelled while it waits drops its future, never the stream, and nothing can cancel the undoing that
follows. Requests of one tick of the loop leave in one write for each node; a connection matches
replies to requests, first in, first out.

A loop borrows its connections from the process's ``Node`` and returns them when it is shut down:
loops that come and go (``async_to_sync``, test clients) connect no more often than threads do.
Connecting itself, redis-py's blocking handshake, happens in a thread.

A ``Batch`` has the exchanges that were begun together: while all nodes are well, those of one tick;
else one alone, which may wait for a node to be connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from django_redlock import events
from django_redlock.core.protocol import TAKING
from django_redlock.core.reasons import ReasonCode, because

from .background import ListeningTime, PerLoop
from .connection import close_as_silent, parts, silence
from .exchange import HEAL, OVER, Exchange
from .faults import GUARD_OVER, INTERRUPTED, TAKES_NO_MORE, no_answer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from django_redlock.core.protocol import Request, Vote
    from django_redlock.core.reasons import Reason

    from .connection import Connection, OnWire
    from .exchange import Verdict
    from .node import ConnectAttempt, Node
    from .threads import Threads


CLOSE_EVERY: Final = (
    0.05  # seconds after which a connection that was to be closed is looked at again
)
LATE: Final = 1.0  # seconds after which what the loop was to be told of was interrupted …
STALE: Final = 0.05  # … and a flush, which a tick of the loop is to bring
PLENTY: Final = 65536  # bytes: what a hundred tasks ask in one tick leaves in one write


class Loops:
    """The nodes, for the event loops of this process.

    Args:
        timeout: the node timeout, in seconds.
        threads: has the links of threads. A loop takes connections from them where no other is
            idle.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float, threads: Threads) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._threads = threads
        self.reset()

    def reset(self) -> None:
        """Forget all loops, as a forked child must."""
        self._connections = PerLoop(
            partial(LoopConnections, self._nodes, self._timeout, self._threads)
        )

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
        answered: asyncio.Future[list[Vote]] = loop.create_future()
        exchange = Exchange(self._nodes, request, self._timeout, answered, late=self._threads.late)
        if exchange.undoing:
            self._threads.undo_by_loop(exchange, connections.number)
        elif request.command in TAKING:
            exchange.link = connections.number
            if request.command is HEAL:
                self._threads.read_late(request.nonce)
        batch, usual, start = connections.batch, is_usual(exchange), exchange.start
        if batch is not None and not (usual and batch.takes(start)):
            batch.flush()
            batch = None
        if batch is None and usual and connections.are_well(start):
            connections.batch = batch = Batch(connections, start, loop, [*reversed(exchange.asked)])
            connections.flush_soon(start, loop)
        if batch is not None:
            batch.add(exchange)
        else:
            Batch(connections, start, loop).ask(exchange)
        return answered

    def put(self, index: int, pending: OnWire) -> bool:
        """Send something else over the running loop's connection to a node, if there is one."""
        loop = asyncio.get_running_loop()
        connections = self._connections.of(loop)
        if connections.batch is not None:
            connections.batch.flush()
        return connections.by_index[index].put(pending, loop)


class LoopConnections:
    """The connections of the event loop that runs where this is made.

    Attributes:
        batch: the exchanges of this tick that are not in the streams yet.
        number: its own, which no link has.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float, threads: Threads) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.by_index = [
            LoopConnection(self, node, index, timeout, threads) for index, node in enumerate(nodes)
        ]
        self.looks = Looks()
        self.batch: Batch | None = None
        self._flushing = False
        self._flushes = -math.inf  # time.monotonic of the first request that waits for that
        self.number = next(threads.numbers)
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
                self.batch.flush()
            for each in self.by_index:
                each.give_back()

    def flush_soon(self, since: float, loop: asyncio.AbstractEventLoop) -> None:
        """Have what was put into the streams at ``since`` leave at the end of this tick."""
        # A flush that has not come for so long was interrupted.
        if not self._flushing or since > self._flushes + STALE:
            loop.call_soon(self._flush, loop)
            self._flushing, self._flushes = True, since

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flushing = False
        if self.batch is not None:
            self.batch.flush()
        for each in self.by_index:
            each.flush(loop)

    def close_idle(self) -> None:
        """Close each connection as soon as no reply is on its way over it; called by the loop."""
        self._close(self.by_index)

    def _close(self, connections: Sequence[LoopConnection]) -> None:
        idle = self.batch is None  # else requests of this tick are about to be written
        busy = [each for each in connections if not (idle and each.close_idle())]
        if busy:
            asyncio.get_running_loop().call_later(CLOSE_EVERY, self._close, busy)

    def are_well(self, now: float) -> bool:
        """Tell whether there is nothing to be done about any connection before it is used."""
        for each in self.by_index:
            connection, node = each.connection, each.node
            if (
                connection is None
                or connection.fault
                or connection.guarded
                or each.silent
                or node.duplicate_of
                or node.undos.kept
                or (connection.owed and connection.silent_for(now) > self.timeout)
            ):
                return False
        return True

    def usable(
        self, indexes: Sequence[int], now: float, loop: asyncio.AbstractEventLoop
    ) -> dict[int, Connection]:
        """The connections for a new request to these nodes, of those that answer, by index."""
        found = {}
        for index in indexes:
            connection = self.by_index[index].usable(now, loop)
            if connection is not None:
                found[index] = connection
        return found

    def put(self, pending: Mapping[int, OnWire], loop: asyncio.AbstractEventLoop) -> list[int]:
        """Put requests into the streams; the indexes whose connection does not take it."""
        return [index for index, one in pending.items() if not self.by_index[index].put(one, loop)]


# -- one node's connection -------------------------------------------------------------------------


class LoopConnection:
    """One node's connection of one event loop.

    Attributes:
        group: all of the loop's connections; they live as long as the loop waits for one of them.
        connection: the connection itself, or None.
        silent: whether it owes a reply for too long.
    """

    def __init__(
        self, group: LoopConnections, node: Node, index: int, timeout: float, threads: Threads
    ) -> None:
        self.group = group
        self.node = node
        self.timeout = timeout
        self._index = index
        self._threads = threads
        self.connection: Connection | None = None
        self.silent = False
        self._attempt: ConnectAttempt | None = None
        self._waiting: dict[Exchange, Batch] = {}  # for a connection
        self._blocked = False  # whether the socket takes no more for now

    # -- the connection -------------------------------------------------------------------------

    def usable(self, now: float, loop: asyncio.AbstractEventLoop) -> Connection | None:
        """The connection for a new request, if there is one that answers."""
        connection = self.connection
        if connection is None or connection.fault:
            self._drop(loop)
            while (taken := self._threads.take(self.node, now)) is not None:
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
                self.silent = True
                self.node.down_reason = no_answer(silent)
                return None
        elif connection.guarded and now >= connection.votes_from:
            connection.close(GUARD_OVER)
            self._drop(loop)
            return None
        if self.node.undos.kept:
            self.node.undos.send(partial(self.put, loop=loop), now)
        return connection

    def open(
        self, now: float, loop: asyncio.AbstractEventLoop, *, urgent: bool
    ) -> ConnectAttempt | None:
        """Begin to connect; the attempt, if a connection is on its way."""
        if self._attempt is None or self._unheard(self._attempt, now):

            def arrived(attempt: ConnectAttempt) -> None:
                loop.call_soon_threadsafe(self._opened, loop, attempt)

            self._attempt = self.node.open(now, urgent=urgent, then=arrived)
        return self._attempt

    def look(self, now: float, loop: asyncio.AbstractEventLoop) -> None:
        """Send and read what the loop, which may not have run or was interrupted, did not."""
        self.flush(loop)
        if self.connection is not None and self.connection.silent_for(now) > self.timeout:
            self.read(loop)

    def _unheard(self, attempt: ConnectAttempt, now: float) -> bool:
        """Whether it was done long ago, and what was to hear so was interrupted."""
        return attempt.done.is_set() and now > attempt.wanted + LATE

    def _opened(self, loop: asyncio.AbstractEventLoop, attempt: ConnectAttempt) -> None:
        if self._attempt is attempt:
            self._attempt = None
        connection = attempt.take()
        if connection is not None and not connection.fault:
            if self.silent:
                self.read(loop)  # perhaps this loop did not look
            if self.connection is not None and self.silent:
                close_as_silent(self.connection)  # it answers on a new one
            if self.connection is not None and not self.connection.fault:
                self.node.give(connection, time.monotonic())  # one is enough
            else:
                self._drop(loop)
                self._have(connection, loop)
        waiting, self._waiting = self._waiting, {}
        for exchange, batch in waiting.items():
            batch.connected(exchange, self._index, self.connection)

    def _have(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.connection, self._blocked, self.silent = connection, False, False
        try:
            connection.looped = True
            loop.add_reader(connection.fileno, self.read, loop)
        except BaseException:
            self._give_up(connection, loop)
            raise
        self.flush(loop)

    def _give_up(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Close what an interruption has left out of step, or unread."""
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
            if connection.fault:
                connection.close(connection.fault)

    def give_back(self) -> None:
        """Return the connection to the process; the loop ends."""
        for exchange in tuple(self._waiting):
            self.forgo(exchange, silent=False)
            exchange.entrust(self._index)
        connection = self.connection
        if connection is not None:
            self._drop(asyncio.get_running_loop())
            if not connection.flush():
                connection.close(TAKES_NO_MORE)
            connection.disown(because(ReasonCode.LOOP_ENDS))
            self.node.give(connection, time.monotonic())

    def close_idle(self) -> bool:
        """Close the connection unless a reply is on its way; return whether there is none now."""
        connection, now = self.connection, time.monotonic()
        if connection and (not connection.owed or connection.silent_for(now) > self.timeout):
            self._drop(asyncio.get_running_loop())
            connection.close(because(ReasonCode.CLOSED))
        return self.connection is None

    # -- requests -------------------------------------------------------------------------------

    def wait(self, exchange: Exchange, batch: Batch) -> None:
        """Have the batch of an exchange told when there is a connection."""
        self._waiting[exchange] = batch

    def forgo(self, exchange: Exchange, *, silent: bool) -> None:
        """Have it wait no longer, for a node that was silent if so."""
        self._waiting.pop(exchange, None)
        if silent and self._attempt is not None:
            self.node.suspect(self._attempt)

    def put(self, pending: OnWire, loop: asyncio.AbstractEventLoop) -> bool:
        """Put a request into the stream, to leave with all others of this tick.

        In a tick with very many the first leave at once: the node works while we go on.
        """
        connection = self.connection
        if connection is None or not connection.put(pending):
            return False
        if connection.unsent >= PLENTY:
            self.flush(loop)
        self.group.flush_soon(pending.since, loop)
        return True

    def put_all(
        self,
        owed: Sequence[OnWire],
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
            self.flush(loop)
        except BaseException:
            self._give_up(connection, loop)
            raise
        return True

    def flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send what the socket takes, unless the loop waits until the socket takes more."""
        if self.connection is not None and self.connection.unsent and not self._blocked:
            self._send(loop)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
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

    def _unblocked(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send more; called by the loop as long as it does not know that there is no more."""
        self._blocked = True
        self._send(loop)

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
        self.flush(loop)  # a script that the node forgot, and the socket did not take whole
        if self.silent and connection.silent_for(time.monotonic()) <= self.timeout:
            self.silent, self.node.down_reason = False, None


# -- exchanges ---------------------------------------------------------------------------------


def is_usual(exchange: Exchange) -> bool:
    """Return whether an exchange may join those of its tick: it goes to all nodes alike."""
    some = len(exchange.asked) < len(exchange.nodes)
    return not (some or exchange.request.each is not None or events.node_watchers)


class Batch:
    """Exchanges that were begun together, and the timer that looks after them.

    While each node is connected, votes, owes no reply for too long and has nothing to undo, the
    exchanges of a tick are one list. At the end of the tick, or before anything else of this loop,
    the list is noted and written once for each node. What happens when something is unusual:

    * An exchange goes to some of the nodes only, each node is asked something else, or somebody
      watches the nodes: it is asked alone, at once, over the connections that there are.
    * A node is not well when the tick ends: so is each exchange of the list, in order.
    * A node is not connected: the exchange waits for it as long as is worth it
      (``Exchange.awaits``).
    * A task is cancelled: its exchange stays in the list and in the streams; nobody hears its
      votes. Where the list is taken apart, only what undoes is still asked.
    * The writing to a node is interrupted: that connection is closed, since half of a request may
      be in it. The votes of this node are unknown, and its next connection carries what is to be
      undone. The other nodes are written to in the loop's next tick.
    * A connection is lost: each exchange hears an unknown vote of that node.
    * A node owes a reply: the exchange waits until the node has been silent for the node timeout.
      What the timer is late is the loop's own delay, and makes no node silent
      (``Exchange.next_wait``).
    * A release waits a moment for prompt nodes: the timer ends it.
    * The loop shuts down: the list leaves before the connections are given back.

    Args:
        start: ``time.monotonic`` when the first exchange began.
        unwritten: the indexes of the nodes that the list goes to, the last one first.

    Attributes:
        exchanges: those that may still be waited for.
    """

    def __init__(
        self,
        connections: LoopConnections,
        start: float,
        loop: asyncio.AbstractEventLoop,
        unwritten: Sequence[int] = (),
    ) -> None:
        self.exchanges: list[Exchange] = []
        self._connections = connections
        self._loop = loop
        self._start = start
        self._size = 0  # bytes
        self._open = 0  # of the exchanges, or fewer
        self._unwritten = [*unwritten]
        self._left = False  # whether any node has been written to
        self._listening: ListeningTime | None = None  # from the first look
        self._since = start  # ``time.monotonic`` when the timer was set
        self._look_at(start + connections.timeout)

    # -- all nodes at the end of the tick -------------------------------------------------------

    def takes(self, now: float) -> bool:
        """Return whether one more exchange may join; a batch that has not left long ago must go."""
        return not self._left and now <= self._start + STALE

    def add(self, exchange: Exchange) -> None:
        """Take one more; in a tick with very many the first leave at once."""
        exchange.follow = self.follow
        self.exchanges.append(exchange)
        self._open += 1
        self._size += len(exchange.packed)
        if self._size >= PLENTY:
            self.flush()

    def flush(self) -> None:
        """Put the requests into the streams of all nodes that have not got them yet."""
        if not self._unwritten:
            return
        try:
            if not self._left and not self._connections.are_well(time.monotonic()):
                self._take_apart()
            elif self.exchanges:
                self._write()
            self._unwritten.clear()
            self._connections.batch = None
            if self._open <= 0 or not self.exchanges:  # else a reply may be on its way
                self._tidy()
        except BaseException:  # the rest leaves in the next tick
            self._loop.call_soon(self.flush)
            raise

    def _write(self) -> None:
        every = self._connections.by_index
        if not self._left:
            asked = {index: every[index].connection for index in self._unwritten}
            for exchange in self.exchanges:
                exchange.unheard = asked.copy()  # type: ignore[assignment] # all are connected
            self._left = True
        pieces = parts(self.exchanges)
        while self._unwritten:
            index = self._unwritten.pop()
            try:
                sent = every[index].put_all(self.exchanges, pieces, self._size, self._loop)
            except BaseException:
                self._not_sent(self.exchanges, index, INTERRUPTED)
                raise
            if not sent:
                self._not_sent(self.exchanges, index, None)

    def _take_apart(self) -> None:
        """Ask one by one, in order: a node has had its troubles since."""
        while self.exchanges:
            exchange = self.exchanges[0]
            try:
                # Undoing is never over, as in ``connected``.
                if exchange.is_open or exchange.undoing:
                    Batch(self._connections, exchange.start, self._loop).ask(exchange)
            except BaseException:
                self.exchanges.pop(0)
                for index in exchange.asked:
                    self._not_sent([exchange], index, INTERRUPTED)
                raise
            self.exchanges.pop(0)

    def _not_sent(self, exchanges: Sequence[Exchange], index: int, fault: Reason | None) -> None:
        for exchange in exchanges:
            if exchange.votes[index] is None:
                exchange.unheard.pop(index, None)
                exchange.not_sent(index, fault)
                self.follow(exchange, exchange.verdict())

    # -- one alone, at once ---------------------------------------------------------------------

    def ask(self, exchange: Exchange) -> None:
        """Ask the nodes over the connections that there are, and have the others connected."""
        connections, start = self._connections, exchange.start
        exchange.follow = self.follow
        self.exchanges.append(exchange)
        self._open += 1
        usable = connections.usable(exchange.asked, start, self._loop)
        connected = len(usable)
        if exchange.undoing:
            self._undo_on_silent(exchange, usable)
        if len(usable) < len(exchange.asked):
            exchange.urgent = connected < exchange.majority
            for index in exchange.asked:
                if index not in usable and exchange.votes[index] is None:
                    self._connect(exchange, index)
        self._put(exchange, usable, start)
        if len(exchange.unheard) < len(connections.nodes):  # else nothing is clear yet
            self.follow(exchange, exchange.verdict())

    def _undo_on_silent(self, exchange: Exchange, usable: dict[int, Connection]) -> None:
        """Undo over this loop's own connections, also where a node is silent."""
        for index in exchange.asked:
            own = self._connections.by_index[index].connection
            wanted = index in exchange.touched and exchange.votes[index] is None
            if wanted and own and not own.fault:
                usable[index] = own  # what is to be undone went there

    def _connect(self, exchange: Exchange, index: int) -> None:
        """Have a node connected; wait for it if it is worth that."""
        connection = self._connections.by_index[index]
        worth = exchange.awaits(index)
        attempt = connection.open(exchange.start, self._loop, urgent=worth)
        if attempt is not None and worth:
            exchange.coming = {**exchange.coming, index: attempt}
            connection.wait(exchange, self)
        else:
            exchange.unreachable(index)

    def _put(self, exchange: Exchange, usable: Mapping[int, Connection], now: float) -> None:
        """Ask the nodes that may vote, over these connections."""
        pending = exchange.ask(usable, now)
        exchange.unheard.update({index: usable[index] for index in pending})
        for index in self._connections.put(pending, self._loop):
            exchange.unheard.pop(index, None)
            exchange.not_sent(index, None)

    def connected(self, exchange: Exchange, index: int, connection: Connection | None) -> None:
        """Ask a node that has a connection at last; None: it could not be had.

        What is over by now is asked no more; but undoing is never over.
        """
        exchange.coming = {
            other: exchange.coming[other] for other in exchange.coming if other != index
        }
        if exchange.is_open or exchange.undoing:
            if connection is None:
                exchange.unreachable(index)
            else:
                exchange.votes[index] = None
                self._put(exchange, {index: connection}, time.monotonic())
        if exchange.is_open:
            self.follow(exchange, exchange.verdict())

    # -- hearing --------------------------------------------------------------------------------

    def follow(self, exchange: Exchange, verdict: Verdict) -> None:
        """End an exchange when it is enough; set the timer when a moment more is worth it."""
        if verdict is OVER:
            self._end(exchange)
        elif exchange.lingering:
            # Those that were begun later in the tick linger for less, so that all end at once.
            last = self.exchanges[-1] if self.exchanges else exchange
            due = exchange.lingers_until - (last.start - exchange.start)
            if due < self._connections.looks.open.get(self, -math.inf):
                self._look_at(due)

    def _end(self, exchange: Exchange) -> None:
        for index, attempt in exchange.coming.items():
            silent = self._listening.silence(attempt.heard) if self._listening else 0.0
            connection = self._connections.by_index[index]
            connection.forgo(exchange, silent=exchange.is_silent(silent))
            exchange.unreachable(index)
        exchange.end()
        self._open -= 1
        if self._open <= 0:
            self._tidy()

    def _tidy(self) -> None:
        """Forget the exchanges that nobody waits for."""
        if not self._unwritten:
            self.exchanges = [each for each in self.exchanges if each.is_open]
            self._open = len(self.exchanges)
            if not self.exchanges:
                self._connections.looks.open.pop(self, None)

    # -- time -----------------------------------------------------------------------------------

    def _look_at(self, when: float) -> None:
        self._since = time.monotonic()
        self._connections.looks.set(self, when, self._loop)

    def look_again(self, when: float, now: float) -> None:
        """End what has lingered for long enough, and see what has not been answered in time."""
        if self._listening is None:
            self._listening = ListeningTime(self._connections.timeout, self._start)
        self._listening.waited_for(max(0.0, when - self._since), self._since)
        self.flush()
        for each in self._connections.by_index:
            each.look(now, self._loop)
        self._tidy()
        due = math.inf
        for exchange in tuple(self.exchanges):
            if not exchange.is_open:
                continue
            if wait := exchange.next_wait(self._listening):
                due = min(due, now + wait)
            else:
                self._end(exchange)
        self._tidy()
        if self.exchanges:
            self._look_at(due)


# -- timers ----------------------------------------------------------------------------------------


class Looks:
    """When to look at the batches of an event loop again: one timer of the loop for all of them.

    Nearly every batch is over long before that, and a timer of its own would cost more than its
    replies.

    Attributes:
        open: the batches that are not over, and ``time.monotonic`` when to look at each.
    """

    def __init__(self) -> None:
        self.open: dict[Batch, float] = {}
        # The loop's own; the second in case that the first is interrupted: that would be a hang.
        self._handles: tuple[asyncio.TimerHandle, ...] = ()
        self._next = math.inf  # when they are due

    def set(self, batch: Batch, when: float, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``batch.look_again`` called at that ``time.monotonic``, and not before."""
        self.open[batch] = when
        if when < self._next:
            self._arm(when, loop)

    def _arm(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        before, left = self._handles, max(0.0, when - time.monotonic())
        handles = [loop.call_later(left + late, self._run, loop) for late in (0.0, LATE)]
        self._handles, self._next = tuple(handles), when
        for handle in before:
            handle.cancel()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()  # what is set meanwhile is due later, and needs no timer yet
        try:
            for batch, when in tuple(self.open.items()):
                if when <= now:
                    batch.look_again(when, now)
        finally:  # also after an interruption: what was to be looked at is, once more
            handles, self._handles, self._next = self._handles, (), math.inf
            for handle in handles:
                handle.cancel()
            if self.open:
                self._arm(min(self.open.values()), loop)
