"""A link: connections to the nodes of a group, at most one to each, which one call uses as one.

A call takes a link (``threads``), puts its request to the nodes, and puts the link back. Meanwhile
nobody else touches the link's sockets, so nothing is locked. A request goes one of two ways:

* **The usual way**, where all is well: one write to each node, then one poll waits for the replies,
  and each is compared with the bytes of the usual one (``Exchange.usual``). A node that is known to
  be down, or owes too much, is left out. It ends when a majority has decided; the other nodes owe
  their replies, which the link reads before the next request.
* **The general way**, for everything else: a request to some of the nodes, one that has no usual
  reply or is very long, TLS, whose layer may have data that poll does not see, a restart guard,
  nodes that must be connected, and each request while somebody watches the nodes. So goes on what
  began in the usual way, where a reply is unusual, no majority has replied within a quarter of the
  node timeout, or a connection is lost or does not take the request.

For how long to listen is the exchange's to say (``Exchange.next_wait``). A node whose reply is
overdue by then is *silent*: its connection goes to the node, which reads it when a call asks for
the node again.
"""

from __future__ import annotations

import math
import select
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from django_redlock import events
from django_redlock.core.protocol import TAKING, Vote

from .background import ListeningTime, new_poll
from .connection import BACKLOG, NO_EPOCH, has_room, silence, undoing_until
from .exchange import (
    EXTEND,
    GRANT,
    LEAST_LINGER,
    LEAST_WORTH,
    LISTEN,
    OVER,
    YES,
)
from .faults import GUARD_OVER, INTERRUPTED, TAKES_NO_MORE
from .node import UNDOS_FIRST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .background import Poll
    from .connection import Connection
    from .exchange import Exchange
    from .node import ConnectAttempt, Node

    Ends: TypeAlias = tuple[int, Connection, Callable[[bytes], int], bytes]
    Order: TypeAlias = tuple[tuple[int, ...], Sequence[Ends]]


LARGEST: Final = 8192  # bytes of a request that every socket takes at once when it has no other
MOST_POLLS: Final = 64
ROOM: Final = 256  # bytes to read beside the usual reply: so small a buffer is quickly allocated
SOON: Final = 1 / 4  # of the node timeout, in which a majority replies when all is well
LOOK_EVERY: Final = 0.01  # seconds, at nodes that are left out
# For ``map``: a loop costs more, and each lock looks at all nodes.
OWED: Final = attrgetter("owed")
KEPT: Final = attrgetter("undos.kept")
DUPLICATE: Final = attrgetter("duplicate_of")
DOWN_REASON: Final = attrgetter("down_reason")


class Link:
    """Connections to several nodes, which one call uses at a time.

    Args:
        number: its own, of all links of a group.
        nodes: all nodes of the group.
        timeout: the node timeout, in seconds.

    Attributes:
        connections: by the index of the node.
        owing: whether a reply may be late.
        torn: ``time.monotonic`` of an interruption that may have put the streams out of step, so
            that only the undo of the same request may still use them; else 0.
    """

    def __init__(self, number: int, nodes: Sequence[Node], timeout: float) -> None:
        self.number = number
        self.connections: dict[int, Connection] = {}
        self.owing, self.torn = False, 0.0
        self._nodes, self._timeout = nodes, timeout
        self._size = len(nodes)
        self._poll = new_poll()
        self._indexes: dict[int, int] = {}  # by file descriptor
        self._unsent: set[int] = set()  # file descriptors that did not take all at once
        self._attempts: dict[int, ConnectAttempt] = {}  # to connect, by index
        self._listening = ListeningTime(timeout, 0.0)
        self._interrupted: Exchange | None = None
        self._look_at = -math.inf  # ``time.monotonic`` from which to look at nodes without one
        self._changed()

    def _changed(self) -> None:
        """Forget what was prepared for the connections that there were."""
        every = self.connections
        self._is_plain = bool(every) and not any(e.tls or e.guarded for e in every.values())
        self._left_out = [index for index in range(self._size) if index not in every]
        self._absent = [self._nodes[index] for index in self._left_out]
        self._here = [self._nodes[index] for index in every]
        self._recvs = {index: each.socket.recv for index, each in every.items()}
        self._polls: dict[tuple[int, ...], Poll] = {}
        self._orders: dict[int, Order] = {}  # by the index of the first

    def have(self, index: int, connection: Connection) -> None:
        """Take a connection, which is this link's alone from now on."""
        self.connections[index] = connection
        self._poll.register(connection.fileno, select.POLLIN)
        self._indexes[connection.fileno] = index
        self._changed()

    def drop(self, index: int) -> Connection:
        """Have a connection no more."""
        connection = self.connections.pop(index)
        # Else the connection was closed, and a new one has its number.
        if self._indexes.get(connection.fileno) == index:
            self._poll.unregister(connection.fileno)
            self._unsent.discard(connection.fileno)
            del self._indexes[connection.fileno]
        self._changed()
        return connection

    def carry(self, exchange: Exchange) -> list[Vote]:
        """Put an exchange to the nodes; return the votes."""
        exchange.link = self.number
        if self._is_usual(exchange):
            if self._write_to_all(exchange) and self._hear_usual(exchange):
                self.owing = any(map(OWED, self.connections.values()))
                if self.owing and exchange.command in TAKING:
                    exchange.unheard = self._unheard(exchange)
                return exchange.result()
            self._go_on(exchange)
        else:
            self._listening = ListeningTime(self._timeout, exchange.start)
            self._gather(exchange)
            self._write(exchange)
        self._listen(exchange)
        while self._more(exchange):
            self._write(exchange)
            self._listen(exchange)
        self._end(exchange)
        return exchange.result()

    # -- before writing -------------------------------------------------------------------------

    def _is_usual(self, exchange: Exchange) -> bool:
        """Return whether the request goes the usual way, once what has come is read."""
        self.settle()
        request = exchange.request
        return (
            self._is_plain
            and len(self.connections) >= exchange.majority  # else it waits for others
            and bool(exchange.usual or exchange.begins)
            and len(exchange.packed) <= LARGEST
            and (request.to is None or len(request.to) == self._size)
            and not (request.thorough or events.node_watchers or self.torn)
            and not (any(map(KEPT, self._here)) or any(map(DUPLICATE, self._here)))
            and not (self._left_out and (self._is_wanting() or self._is_behind(exchange)))
        )

    def settle(self) -> None:
        """Read what has come since the last request, and part with what cannot be used any more.

        A node is silent whose reply is overdue.
        """
        now = time.monotonic() if self.owing else 0.0  # before the look: see ``_end``
        self._read_all()
        if self.owing:
            self.owing = False
            for index, each in tuple(self.connections.items()):
                if each.owed:
                    self.owing = True
                    if each.silent_for(now) > self._nodes[index].timeout:
                        self._part_if_silent(index, now)
        if not self._is_plain:
            for index, each in tuple(self.connections.items()):
                if each.guarded and time.monotonic() >= each.votes_from:
                    self.drop(index).close(GUARD_OVER)

    def _read_all(self) -> None:
        """Read to the end: behind a last reply there may be the end of the connection."""
        while ready := self._poll.poll(0):
            for fileno, _ in ready:
                self._read(fileno)

    def _part_if_silent(self, index: int, now: float) -> None:
        node = self._nodes[index]
        if silence(self.connections[index], now, node.timeout) > node.timeout:
            node.stall(self.drop(index), now)

    def _is_wanting(self) -> bool:
        """Return whether a node without a connection can have one; try to connect it, too."""
        if not all(map(DOWN_REASON, self._absent)):
            return True
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY
        for node in self._absent:
            attempt = node.open(now, urgent=False)
            if attempt is not None:
                node.forgo(attempt)
            if node.is_back():
                return True
        return False

    def _is_behind(self, exchange: Exchange) -> bool:
        """Return whether a silent node has what is undone: the undo goes into its kernel, too."""
        for index in self._left_out:
            if index in exchange.touched and self._nodes[index].is_behind(exchange.nonce):
                return True
        return False

    def _gather(self, exchange: Exchange) -> None:
        """Get a connection to every node that can have one in time; the others have no vote."""
        for index, connection in self.connections.items():
            if (undos := self._nodes[index].undos).kept:
                undos.send(connection.send, exchange.start, most=UNDOS_FIRST)
        asked = [index for index in exchange.asked if exchange.votes[index] is None]
        while True:
            wanted = [index for index in asked if index not in self.connections]
            found = [index for index in wanted if self._take(exchange, index)]
            if not found:
                break
            self._read_all()  # of many idle connections all may be closed
        if wanted:
            self._connect(exchange, wanted)
        for index in asked:
            if index not in self.connections:
                exchange.unreachable(index)

    def _take(self, exchange: Exchange, index: int) -> bool:
        node = self._nodes[index]
        connection = node.take(exchange.start)
        if connection is None and index in exchange.touched:  # a hung node has it in its kernel
            connection = node.take_behind(exchange.request.nonce)
        if connection is not None:
            self.have(index, connection)
        return connection is not None

    def _connect(self, exchange: Exchange, wanted: list[int]) -> None:
        """Have nodes connected in the background, and wait for those that are worth it."""

        def urgent() -> bool:
            return len(self.connections) < exchange.majority

        exchange.urgent = urgent()
        for index in wanted:
            node, worth = self._nodes[index], exchange.awaits(index)
            attempt = node.open(exchange.start, urgent=worth)
            if attempt is not None and worth:
                self._attempts[index] = attempt
            elif attempt is not None:
                node.forgo(attempt)
        self._wait_for_connections(exchange, urgent)

    def _wait_for_connections(self, exchange: Exchange, urgent: Callable[[], bool]) -> None:
        listening = self._listening
        while True:
            self._collect(exchange)
            exchange.urgent = urgent()
            left, index = exchange.left_to_connect(self._attempts, listening)
            if left <= 0:
                return
            part, start = listening.part(left), time.monotonic()
            self._attempts[index].done.wait(part)
            listening.waited_for(part, start)

    def _collect(self, exchange: Exchange) -> None:
        """Take the connections that have come."""
        for index, attempt in tuple(self._attempts.items()):
            done = attempt.done.is_set()
            if not done and not self._take(exchange, index):
                continue
            del self._attempts[index]
            if done and (connection := attempt.take()) is not None:
                self.have(index, connection)
            else:
                self._nodes[index].forgo(attempt)

    def _more(self, exchange: Exchange) -> bool:
        """Return whether one more node can be asked, where too few have answered until now."""
        if not self._attempts:
            return False
        for fileno, _ in self._poll.poll(0):  # it came while this thread was waking up
            self._read(fileno)
        if not exchange.is_short_of_votes():
            return False
        before = frozenset(self.connections)
        self._wait_for_connections(exchange, lambda: len(self.connections) <= len(before))
        new = self.connections.keys() - before
        for index in new:
            exchange.reopen(index)
        return bool(new)

    # -- the usual way --------------------------------------------------------------------------

    def _in_order(self, first: int) -> Order:
        """Return the indexes, and the connections, in the order in which a request is written."""
        order = self._orders.get(first)
        if order is None:
            every = (*range(first, self._size), *range(first))
            indexes = tuple(index for index in every if index in self._recvs)
            have = [(index, self.connections[index]) for index in indexes]
            ends = [(index, each, each.socket.send, each.epoch) for index, each in have]
            order = self._orders[first] = indexes, ends
        return order

    def _write_to_all(self, exchange: Exchange) -> bool:
        """Write the request to each connection that has room; return whether each has taken it."""
        packed, nonce = exchange.packed, exchange.nonce
        size, late, full, taken = len(packed), [], [], True
        head = packed[: -len(NO_EPOCH)] if exchange.command is GRANT else b""
        indexes, order = self._in_order(exchange.request.first)
        for index, connection, send, epoch in order:
            backlog = connection.backlog + size
            # Nearly every connection has room, and a call costs more than to compare.
            if backlog > BACKLOG and not has_room(connection, exchange, size):
                exchange.not_sent(index, None)
                full.append(index)
                continue
            owed = connection.owed
            if owed and (len(owed) > 1 or owed[0].nonce != nonce):
                late.append(index)
            owed.append(exchange)  # first: a reply to what was not noted would count for another
            connection.backlog = backlog
            data = head + epoch if head else packed
            try:
                whole = send(data) == len(data)
            except OSError:
                whole = False
            if not whole:
                connection.close(TAKES_NO_MORE)
                taken = False
        exchange.since = time.monotonic()  # this thread may have waited for the interpreter
        if exchange.command is not EXTEND:  # any node may tell an extension of free names
            full += late
        if full:
            indexes = tuple(index for index in indexes if index not in full)
        exchange.prompt = indexes
        for index in self._left_out:
            exchange.unreachable(index)
        return taken

    def _hear_usual(self, exchange: Exchange) -> bool:
        """Read until usual replies of a majority have decided; return whether they have.

        False: something is unusual, or no majority has replied within a part of the node timeout.

        Each waking costs as much as many a reply. If k more replies are needed, any n − k + 1 of
        the n silent nodes contain one of them; so this sleeps until one of those has replied that
        were written to last. An undo waits a moment for every prompt node; it sleeps until the node
        replies that was written to last: by then the others have usually replied. An extension
        waits as well, for nodes that may say that names are free.
        """
        missing, start = exchange.prompt or (), exchange.start
        size, majority, heard = len(missing), exchange.majority, 0
        soon = SOON * self._timeout
        undoing, extending = exchange.undoing, exchange.command is EXTEND
        least = LEAST_LINGER if undoing else LEAST_WORTH if extending else 0.0
        wanted, sleep = (size, LEAST_LINGER) if undoing else (majority, soon)
        while missing and wanted <= len(missing) and sleep > 0:
            if self._poll_of(missing[wanted - 1 :]).poll(sleep * 1000):
                found = self._read_usual(exchange, missing)
                if found is None:
                    return False
                missing = found
            heard = size - len(missing)
            if heard < majority:
                wanted, sleep = majority - heard, start + soon - time.monotonic()
            elif not least:
                return True
            else:
                now = time.monotonic()
                if not exchange.lingering:
                    exchange.lingers_until = now + max(now - start, least)
                    exchange.lingering = True
                wanted, sleep = len(missing), exchange.lingers_until - now
        return heard >= majority

    def _poll_of(self, indexes: tuple[int, ...]) -> Poll:
        """Return what polls these for something to read."""
        poll = self._polls.get(indexes)
        if poll is None:
            poll = new_poll()
            for index in indexes:
                poll.register(self.connections[index].fileno, select.POLLIN)
            if len(self._polls) < MOST_POLLS:
                self._polls[indexes] = poll
        return poll

    def _read_usual(self, exchange: Exchange, missing: Sequence[int]) -> tuple[int, ...] | None:
        """Read what has come from these nodes; return the indexes of those still missing.

        None: a node has not said YES, or has kept only some leases.
        """
        votes, nodes, command = exchange.votes, exchange.nodes, exchange.command
        now = time.monotonic()
        connections, recvs, usual, late = self.connections, self._recvs, exchange.usual or None, []
        size = ROOM + len(exchange.usual)
        for index in missing:
            try:
                data = recvs[index](size)
            except OSError:  # nothing has come; or the next one to read it is told why
                late.append(index)
                continue
            connection = connections[index]
            owed, usual = connection.owed, usual or exchange.learn(data, 0) or None
            if data == usual and len(owed) == 1 and not connection.incomplete:
                owed.popleft()
                connection.backlog, connection.heard, connection.answered = 0, now, now
                if command is GRANT:
                    votes[index] = Vote(nodes[index].label, YES, exchange.number)
                elif command is EXTEND:
                    votes[index] = exchange.usual_vote(index)
                else:
                    votes[index] = nodes[index].agreed
                continue
            connection.take_in(data)
            if (vote := votes[index]) is None:  # it was an earlier reply, or a part of this one
                late.append(index)
            elif vote.answer is not YES or command is EXTEND:
                return None
        return tuple(late)

    def _go_on(self, exchange: Exchange) -> None:
        """Go on in the general way with an exchange that was written in the usual one."""
        for index, connection in tuple(self.connections.items()):
            if connection.fault:
                self.drop(index)
        exchange.unheard = self._unheard(exchange)
        self._listening = ListeningTime(self._timeout, exchange.since)
        self._listening.waited_for(SOON * self._timeout, exchange.since)

    def _unheard(self, exchange: Exchange) -> dict[int, Connection]:
        votes = exchange.votes
        return {index: each for index, each in self.connections.items() if votes[index] is None}

    # -- the general way ------------------------------------------------------------------------

    def _write(self, exchange: Exchange) -> None:
        """Write the request to every connection at once; nothing waits between two of them."""
        now, votes = time.monotonic(), exchange.votes
        exchange.prompt = exchange.prompt or ()
        have = self.connections
        mine = {index: have[index] for index in exchange.asked if index in have}
        for index, pending in exchange.ask(mine, now).items():
            connection = mine[index]
            owed = connection.owed
            if not owed or (len(owed) == 1 and owed[0].nonce == exchange.nonce):
                exchange.prompt += (index,)
            if not connection.send(pending) and votes[index] is None:
                exchange.not_sent(index, connection.fault)
                continue
            if votes[index] is None:
                exchange.unheard[index] = connection
                if connection.unsent:
                    self._unsent.add(connection.fileno)
                    self._poll.modify(connection.fileno, select.POLLIN | select.POLLOUT)

    def _listen(self, exchange: Exchange) -> None:
        """Read replies as they arrive until it is enough, or too late."""
        listening = self._listening
        # While every node is still to answer, nothing is clear.
        verdict = LISTEN if len(exchange.unheard) == self._size else exchange.verdict()
        while verdict is not OVER and (part := exchange.next_wait(listening)) > 0:
            start = time.monotonic()
            # Where TLS must read before it can send, the socket is ready to send all the time.
            for fileno, _ in self._ready(exchange, part):
                self._read(fileno)
            listening.waited_for(part, start)
            verdict = exchange.verdict() if exchange.unheard else OVER

    def _ready(self, exchange: Exchange, seconds: float) -> list[tuple[int, int]]:
        """Return the connections with something to read, once that may be enough.

        It sleeps until one of the nodes that were written to last has something to read; see
        ``_hear_usual``.
        """
        unheard = exchange.unheard
        if exchange.lingering and exchange.undoing:
            awaited = [index for index in unheard if index in (exchange.prompt or ())]
            needed = len(awaited)
        else:
            awaited, needed = list(unheard), exchange.votes_to_quorum
        last = awaited[max(0, needed - 1) :]
        if len(last) == len(self.connections) or self._unsent:
            return self._poll.poll(seconds * 1000)
        some = new_poll()
        for index in last:
            some.register(unheard[index].fileno, select.POLLIN)
        some.poll(seconds * 1000)
        return self._poll.poll(0)

    def _read(self, fileno: int) -> None:
        index = self._indexes[fileno]
        connection = self.connections[index]
        connection.read()
        if fileno in self._unsent and not (connection.unsent or connection.fault):
            self._unsent.discard(fileno)
            self._poll.modify(fileno, select.POLLIN)
        if connection.fault:
            self.drop(index)

    # -- afterwards -----------------------------------------------------------------------------

    def _end(self, exchange: Exchange) -> None:
        """Note which nodes are well, which are silent, and which owe a reply."""
        self._forgo(exchange)
        # Before the last look: this thread may not run after it, and would take that for silence.
        now = time.monotonic()
        self._send_no_more()
        if exchange.unheard:
            self._read_all()  # a reply may have come while this thread was waking up
        for index, connection in tuple(self.connections.items()):
            if connection.unsent and not connection.flush():
                connection.close(TAKES_NO_MORE)
            if connection.fault:
                self.drop(index)
                continue
            self._part_if_silent(index, now)
            if index in self.connections:
                self._nodes[index].replies()
        self.owing = any(map(OWED, self.connections.values()))

    def _send_no_more(self) -> None:
        """Poll for what can be read: some sockets are ready to send all the time (``_listen``)."""
        for fileno in self._unsent:
            self._poll.modify(fileno, select.POLLIN)
        self._unsent.clear()

    def _forgo(self, exchange: Exchange) -> None:
        """Wait for no connection any more; a node that was silent is not waited for again."""
        for index, attempt in self._attempts.items():
            if exchange.is_silent(self._listening.silence(attempt.heard)):
                self._nodes[index].suspect(attempt)
            self._nodes[index].forgo(attempt)
        self._attempts = {}

    def tear(self, exchange: Exchange) -> None:
        """Note that an interruption of an exchange may have put the streams out of step."""
        self._interrupted = exchange
        self.torn = time.monotonic()
        self._send_no_more()
        self._forgo(exchange)

    @property
    def is_undoing(self) -> bool:
        """Whether the reply to an undo is missing that is still of interest."""
        if not self.owing:
            return False
        now = time.monotonic()
        return any(undoing_until(each.owed) > now for each in tuple(self.connections.values()))

    def close(self) -> None:
        """Close all connections of a torn link; undos without a reply go to the nodes."""
        for index in tuple(self.connections):
            self.drop(index).close(INTERRUPTED)

    def give_up(self) -> None:
        """Close a torn link that no undo has taken; what it was to undo goes to the nodes."""
        self.close()
        exchange, self._interrupted = self._interrupted, None
        if exchange is not None and not exchange.over:
            exchange.keep_unanswered()

    def dissolve(self) -> None:
        """Give each node its connection, to serve others."""
        now = time.monotonic()
        for index in tuple(self.connections):
            self._nodes[index].give(self.drop(index), now)
