"""A link: connections to the nodes of a group, at most one to each, which one call uses as one.

A call takes a link (``threads``), puts its request to the nodes, and puts the link back. Meanwhile
nobody else touches the link's sockets, so nothing is locked. A request goes one of two ways:

* **The usual way**, where all is well: one write to each node, then one poll waits for the replies,
  and each is compared with the bytes of the usual one (``Round.usual``). A node that is known to be
  down is left out. It ends when a majority has decided; the other nodes owe their replies, which
  the link reads before the next request.
* **The general way**, for everything else: a request to some of the nodes, one that has no usual
  reply or is very long, TLS, whose layer may have data that poll does not see, a restart guard,
  nodes that must be connected, and each request while somebody watches the nodes. So goes on what
  began in the usual way, where a reply is unusual, no majority has replied within a quarter of the
  node timeout, or a connection is lost or does not take the request.

In the general way the call waits for one node timeout after the last write, because the link is its
own. A task waits until each node has been silent for that long: see ``loops``.

A node whose reply is overdue by then is *silent*: its connection goes to the node, which reads it
when a call asks for the node again.
"""

from __future__ import annotations

import math
import select
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from django_redlock import events
from django_redlock.core.protocol import TAKING, Vote

from .background import Listening, new_poll
from .connection import BACKLOG, NO_EPOCH, silence, undoing_until
from .faults import GUARD_OVER, INTERRUPTED, TAKES_NO_MORE
from .node import UNDOS_FIRST
from .round import (
    EXTEND,
    GRANT,
    LEAST_LINGER,
    LEAST_WORTH,
    LINGER,
    LISTEN,
    OVER,
    PATIENCE,
    YES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .background import Poll
    from .connection import Connection
    from .node import ConnectAttempt, Node
    from .round import Round

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


class Link:
    """Connections to several nodes, which one call uses at a time.

    Args:
        number: its own, of all links of a group.
        nodes: all nodes of the group.
        timeout: the node timeout, in seconds.

    Attributes:
        connections: by the place of the node.
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
        self._places: dict[int, int] = {}  # by file descriptor
        self._unsent: set[int] = set()  # file descriptors that did not take all at once
        self._connecting: Connecting | None = None
        self._interrupted: Round | None = None
        self._look_at = -math.inf  # ``time.monotonic`` from which to look at nodes without one
        self._changed()

    def _changed(self) -> None:
        """Forget what was prepared for the connections that there were."""
        every = self.connections
        self._is_plain = bool(every) and not any(e.tls or e.guarded for e in every.values())
        self._left_out = [place for place in range(self._size) if place not in every]
        self._here = [self._nodes[place] for place in every]
        self._recvs = {place: each.socket.recv for place, each in every.items()}
        self._polls: dict[tuple[int, ...], Poll] = {}
        self._orders: dict[int, Order] = {}  # by the place of the first

    def have(self, place: int, connection: Connection) -> None:
        """Take a connection, which is this link's alone from now on."""
        self.connections[place] = connection
        self._poll.register(connection.fileno, select.POLLIN)
        self._places[connection.fileno] = place
        self._changed()

    def drop(self, place: int) -> Connection:
        """Have a connection no more."""
        connection = self.connections.pop(place)
        if self._places.get(connection.fileno) == place:  # else it was closed, and a new one has it
            self._poll.unregister(connection.fileno)
            self._unsent.discard(connection.fileno)
            del self._places[connection.fileno]
        self._changed()
        return connection

    def carry(self, asking: Round) -> list[Vote]:
        """Put a round to the nodes; return the votes."""
        asking.link = self.number
        if self._is_usual(asking):
            self._write_to_all(asking)
            if self._hear_usual(asking):
                self.owing = any(map(OWED, self.connections.values()))
                if self.owing and asking.command in TAKING:
                    asking.unheard = self._unheard(asking)
                return asking.result()
            self._go_on(asking)
        else:
            self._gather(asking)
            self._write(asking)
        self._listen(asking)
        while self._more(asking):
            self._write(asking)
            self._listen(asking)
        self._end(asking)
        return asking.result()

    # -- before writing -------------------------------------------------------------------------

    def _is_usual(self, asking: Round) -> bool:
        """Return whether the request goes the usual way, once what has come is read."""
        self.settle()
        request = asking.request
        return (
            self._is_plain
            and len(self.connections) >= asking.majority  # else it waits for nodes to be connected
            and bool(asking.usual or asking.begins)
            and len(asking.packed) <= LARGEST
            and (request.to is None or len(request.to) == self._size)
            and not (request.thorough or events.node_watchers or self.torn)
            and not (any(map(KEPT, self._here)) or any(map(DUPLICATE, self._here)))
            and not (self._left_out and (self._is_wanting() or self._is_behind(asking)))
            and not (self.owing and any(e.backlog > BACKLOG for e in self.connections.values()))
        )

    def settle(self) -> None:
        """Read what has come since the last request, and part with what cannot be used any more.

        A node is silent whose reply is overdue.
        """
        now = time.monotonic() if self.owing else 0.0  # before the look: see ``_end``
        self._read_all()
        if self.owing:
            self.owing = False
            for place, each in tuple(self.connections.items()):
                if each.owed:
                    self.owing = True
                    if each.silent_for(now) > self._nodes[place].timeout:
                        self._part_if_silent(place, now)
        if not self._is_plain:
            for place, each in tuple(self.connections.items()):
                if each.guarded and time.monotonic() >= each.votes_from:
                    self.drop(place).close(GUARD_OVER)

    def _read_all(self) -> None:
        """Read to the end: behind a last reply there may be the end of the connection."""
        while ready := self._poll.poll(0):
            for fileno, _ in ready:
                self._read(fileno)

    def _part_if_silent(self, place: int, now: float) -> None:
        node = self._nodes[place]
        if silence(self.connections[place], now, node.timeout) > node.timeout:
            node.stall(self.drop(place), now)

    def _is_wanting(self) -> bool:
        """Return whether a node without a connection can have one; try to connect it, too."""
        nodes = [self._nodes[place] for place in self._left_out]
        if any(not node.down_reason for node in nodes):
            return True
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY
        for node in nodes:
            attempt = node.open(now, urgent=False)
            if attempt is not None:
                node.forgo(attempt)
            if node.is_back():
                return True
        return False

    def _is_behind(self, asking: Round) -> bool:
        """Return whether a silent node has what is undone: the undo goes into its kernel, too."""
        places = [place for place in self._left_out if place in asking.touched]
        return any(self._nodes[place].is_behind(asking.nonce) for place in places)

    def _gather(self, asking: Round) -> None:
        """Get a connection to every node that can have one in time; the others have no vote."""
        for place, connection in self.connections.items():
            if (undos := self._nodes[place].undos).kept:
                undos.send(connection.send, asking.start, most=UNDOS_FIRST)
        asked = [place for place in asking.asked if asking.votes[place] is None]
        while True:
            wanted = [place for place in asked if place not in self.connections]
            found = [place for place in wanted if self._take(asking, place)]
            if not found:
                break
            self._read_all()  # of many idle connections all may be closed
        if wanted:
            self._connect(asking, wanted)
        for place in asked:
            if place not in self.connections:
                asking.unreachable(place)

    def _take(self, asking: Round, place: int) -> bool:
        node = self._nodes[place]
        connection = node.take(asking.start)
        if connection is None and place in asking.touched:  # a hung node has it in its kernel
            connection = node.take_behind(asking.request.nonce)
        if connection is not None:
            self.have(place, connection)
        return connection is not None

    def _connect(self, asking: Round, wanted: list[int]) -> None:
        def urgent() -> bool:
            return len(self.connections) < asking.majority

        asking.urgent = urgent()
        self._connecting = Connecting(asking, self._take, self.have)
        self._connecting.open(wanted)
        self._connecting.wait(urgent)

    def _more(self, asking: Round) -> bool:
        """Return whether one more node can be asked, where too few have answered until now."""
        if self._connecting is None:
            return False
        for fileno, _ in self._poll.poll(0):  # it came while this thread was waking up
            self._read(fileno)
        if not asking.is_short_of_votes():
            return False
        before = frozenset(self.connections)
        self._connecting.wait(lambda: len(self.connections) <= len(before))
        new = self.connections.keys() - before
        for place in new:
            asking.reopen(place)
        return bool(new)

    # -- the usual way --------------------------------------------------------------------------

    def _in_order(self, first: int) -> Order:
        """Return the places, and the connections, in the order in which a request is written."""
        order = self._orders.get(first)
        if order is None:
            every = (*range(first, self._size), *range(first))
            places = tuple(place for place in every if place in self._recvs)
            have = [(place, self.connections[place]) for place in places]
            ends = [(place, each, each.socket.send, each.epoch) for place, each in have]
            order = self._orders[first] = places, ends
        return order

    def _write_to_all(self, asking: Round) -> None:
        """Write the request to each connection."""
        packed, nonce = asking.packed, asking.nonce
        size, late = len(packed), []
        head = packed[: -len(NO_EPOCH)] if asking.command is GRANT else b""
        places, order = self._in_order(asking.request.first)
        for place, connection, send, epoch in order:
            owed = connection.owed
            if owed and (len(owed) > 1 or owed[0].nonce != nonce):
                late.append(place)
            owed.append(asking)  # first: a reply to what was not noted would count for another
            connection.backlog += size
            data = head + epoch if head else packed
            try:
                whole = send(data) == len(data)
            except OSError:
                whole = False
            if not whole:
                connection.close(TAKES_NO_MORE)
        asking.since = time.monotonic()  # this thread may have waited for the interpreter meanwhile
        if late and asking.command is not EXTEND:  # any node may tell an extension of free names
            places = tuple(place for place in places if place not in late)
        asking.prompt = places
        for place in self._left_out:
            asking.unreachable(place)

    def _hear_usual(self, asking: Round) -> bool:
        """Read until usual replies of a majority have decided; return whether they have.

        False: something is unusual, or no majority has replied within a part of the node timeout.

        Each waking costs as much as many a reply. If k more replies are needed, any n − k + 1 of
        the n silent nodes contain one of them; so this sleeps until one of those has replied that
        were written to last. An undo waits a moment for every prompt node; it sleeps until the node
        replies that was written to last: by then the others have usually replied. An extension
        waits as well, for nodes that may say that names are free.
        """
        if asking.votes.count(None) != len(self.connections):
            return False  # a connection has not taken it
        missing, start = asking.prompt or (), asking.start
        size, majority, heard = len(missing), asking.majority, 0
        soon = SOON * self._timeout
        least = LEAST_LINGER if asking.undoing else LEAST_WORTH if asking.command is EXTEND else 0.0
        wanted, sleep = (size, LEAST_LINGER) if asking.undoing else (majority, soon)
        while missing and wanted <= len(missing) and sleep > 0:
            if self._poll_of(missing[wanted - 1 :]).poll(sleep * 1000):
                found = self._read_usual(asking, missing)
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
                if not asking.lingering:
                    asking.lingers_until = now + max(now - start, least)
                    asking.lingering = True
                wanted, sleep = len(missing), asking.lingers_until - now
        return heard >= majority

    def _poll_of(self, places: tuple[int, ...]) -> Poll:
        """Return what polls these for something to read."""
        poll = self._polls.get(places)
        if poll is None:
            poll = new_poll()
            for place in places:
                poll.register(self.connections[place].fileno, select.POLLIN)
            if len(self._polls) < MOST_POLLS:
                self._polls[places] = poll
        return poll

    def _read_usual(self, asking: Round, missing: Sequence[int]) -> tuple[int, ...] | None:
        """Read what has come from these nodes; return the places of those still missing.

        None: a node has not said YES, or has kept only some leases.
        """
        votes, nodes, command, now = asking.votes, asking.nodes, asking.command, time.monotonic()
        connections, recvs, usual, late = self.connections, self._recvs, asking.usual or None, []
        size = ROOM + len(asking.usual)
        for place in missing:
            try:
                data = recvs[place](size)
            except OSError:  # nothing has come; or the next one to read it is told why
                late.append(place)
                continue
            connection = connections[place]
            owed, usual = connection.owed, usual or asking.learn(data, 0) or None
            if data == usual and len(owed) == 1 and not connection.incomplete:
                owed.popleft()
                connection.backlog, connection.heard, connection.answered = 0, now, now
                if command is GRANT:
                    votes[place] = Vote(nodes[place].label, YES, asking.number)
                elif command is EXTEND:
                    votes[place] = asking.usual_vote(place)
                else:
                    votes[place] = nodes[place].freed
                continue
            connection.take_in(data)
            if (vote := votes[place]) is None:  # it was an earlier reply, or a part of this one
                late.append(place)
            elif vote.answer is not YES or command is EXTEND:
                return None
        return tuple(late)

    def _go_on(self, asking: Round) -> None:
        """Go on in the general way with a round that was written in the usual one."""
        for place, connection in tuple(self.connections.items()):
            if connection.fault:
                self.drop(place)
        asking.unheard = self._unheard(asking)
        self._wait_from(asking, asking.since)

    def _wait_from(self, asking: Round, since: float) -> None:
        self._deadline = since + self._timeout
        self._longest = asking.start + PATIENCE * self._timeout + asking.request.patience
        self._absent = 0.0

    def _unheard(self, asking: Round) -> dict[int, Connection]:
        votes = asking.votes
        return {place: each for place, each in self.connections.items() if votes[place] is None}

    # -- the general way ------------------------------------------------------------------------

    def _write(self, asking: Round) -> None:
        """Write the request to every connection at once; nothing waits between two of them."""
        now, votes = time.monotonic(), asking.votes
        asking.prompt = asking.prompt or ()
        mine = {place: each for place, each in self.connections.items() if place in asking.asked}
        for place, pending in asking.ask(mine, now).items():
            connection = mine[place]
            owed = connection.owed
            if not owed or (len(owed) == 1 and owed[0].nonce == asking.nonce):
                asking.prompt += (place,)
            if not connection.send(pending) and votes[place] is None:
                asking.not_sent(place, connection.fault)
                continue
            if votes[place] is None:
                asking.unheard[place] = connection
                if connection.unsent:
                    self._unsent.add(connection.fileno)
                    self._poll.modify(connection.fileno, select.POLLIN | select.POLLOUT)
        # Anew, for connecting may have used it up; and not before the last request is written:
        # a node's silence counts from there, and after the wait its reply must be overdue.
        self._wait_from(asking, time.monotonic())

    def _listen(self, asking: Round) -> None:
        """Read answers as they arrive until it is enough, or the node timeout is over."""
        end, lingering = self._deadline, False
        self._looked = end - self._timeout
        # While every node is still to answer, nothing is clear.
        all_well = len(asking.unheard) == len(asking.votes)
        verdict = LISTEN if all_well else asking.verdict()
        while verdict is not OVER:
            if verdict is LINGER and not lingering:
                end, lingering = min(end, asking.lingers_until), True
            ready = self._ready(asking, end, lingering=lingering)
            for fileno, _ in ready:
                self._read(fileno)
            # Where TLS must read before it can send, the socket is ready to send all the time.
            if not ready or (self._unsent and end <= time.monotonic()):
                end += self._late(end)
                if lingering or end <= time.monotonic():
                    return
            verdict = asking.verdict() if asking.unheard else OVER

    def _ready(self, asking: Round, end: float, *, lingering: bool) -> list[tuple[int, int]]:
        """The connections with something to read, once that may be enough; none: it is too late.

        It sleeps until one of the nodes that were written to last has something to read; see
        ``_hear_usual``.
        """
        unheard = asking.unheard
        if lingering and asking.undoing:
            awaited = [place for place in unheard if place in (asking.prompt or ())]
            needed = len(awaited)
        else:
            awaited, needed = list(unheard), asking.votes_to_quorum
        last = awaited[max(0, needed - 1) :]
        now = time.monotonic()
        self._absent += max(0.0, now - self._looked - self._timeout / 4)
        self._looked = max(now, end)
        left = max(0.0, end - now) * 1000
        if len(last) == len(self.connections) or self._unsent:
            return self._poll.poll(left)
        some = new_poll()
        for place in last:
            some.register(unheard[place].fileno, select.POLLIN)
        some.poll(left)
        return self._poll.poll(0)

    def _late(self, end: float) -> float:
        """Return the seconds for which this thread did not run, and could hear no node.

        A thread that wakes up late from the last sleep looks for one more node timeout: if the
        whole machine was paused, so were nodes on it, and they need time to answer.
        """
        now = time.monotonic()
        late = now - self._looked
        if late <= self._timeout / 4:
            late = 0.0
        absent = self._absent + late
        self._absent, self._looked = 0.0, now
        self._longest += absent
        return min(absent + (self._timeout if late else 0.0), self._longest - end)

    def _read(self, fileno: int) -> None:
        place = self._places[fileno]
        connection = self.connections[place]
        connection.read()
        if fileno in self._unsent and not (connection.unsent or connection.fault):
            self._unsent.discard(fileno)
            self._poll.modify(fileno, select.POLLIN)
        if connection.fault:
            self.drop(place)

    # -- afterwards -----------------------------------------------------------------------------

    def _end(self, asking: Round) -> None:
        """Note which nodes are well, which are silent, and which owe a reply."""
        self._forgo()
        # Before the last look: this thread may not run after it, and would take that for silence.
        now = time.monotonic()
        self._send_no_more()
        if asking.unheard:
            self._read_all()  # a reply may have come while this thread was waking up
        for place, connection in tuple(self.connections.items()):
            if connection.unsent and not connection.flush():
                connection.close(TAKES_NO_MORE)
            if connection.fault:
                self.drop(place)
                continue
            self._part_if_silent(place, now)
            if place in self.connections:
                self._nodes[place].replies()
        self.owing = any(map(OWED, self.connections.values()))

    def _send_no_more(self) -> None:
        """Poll for what can be read: some sockets are ready to send all the time (``_listen``)."""
        for fileno in self._unsent:
            self._poll.modify(fileno, select.POLLIN)
        self._unsent.clear()

    def _forgo(self) -> None:
        if self._connecting is not None:
            self._connecting.end()
            self._connecting = None  # it refers to the request: no cycle keeps a connection

    def tear(self, asking: Round) -> None:
        """Note that an interruption of a round may have put the streams out of step."""
        self._interrupted = asking
        self.torn = time.monotonic()
        self._send_no_more()
        self._forgo()

    @property
    def is_undoing(self) -> bool:
        """Whether the reply to an undo is missing that is still of interest."""
        if not self.owing:
            return False
        now = time.monotonic()
        return any(undoing_until(each.owed) > now for each in tuple(self.connections.values()))

    def close(self) -> None:
        """Close all connections of a torn link; undos without a reply go to the nodes."""
        for place in tuple(self.connections):
            self.drop(place).close(INTERRUPTED)

    def give_up(self) -> None:
        """Close a torn link that no undo has taken; what it was to undo goes to the nodes."""
        self.close()
        asking, self._interrupted = self._interrupted, None
        if asking is not None and not asking.over:
            asking.keep_unanswered()

    def dissolve(self) -> None:
        """Give each node its connection, to serve others."""
        now = time.monotonic()
        for place in tuple(self.connections):
            self._nodes[place].give(self.drop(place), now)


class Connecting:
    """The connections that one request waits for.

    Args:
        asking: decides which ones, and for how long.
        take: takes an idle connection to a node; whether there is one.
        have: told of a connection that was opened.
    """

    def __init__(
        self,
        asking: Round,
        take: Callable[[Round, int], bool],
        have: Callable[[int, Connection], object],
    ) -> None:
        self._asking = asking
        self._take = take
        self._have = have
        self._listening = Listening(asking.timeout)
        self._attempts: dict[int, ConnectAttempt] = {}

    def open(self, places: Iterable[int]) -> None:
        """Begin to connect these nodes, in the background."""
        asking = self._asking
        for place in places:
            node, worth = asking.nodes[place], asking.awaits(place)
            attempt = node.open(asking.start, urgent=worth)
            if attempt is not None and worth:
                self._attempts[place] = attempt
            elif attempt is not None:
                node.forgo(attempt)

    def wait(self, urgent: Callable[[], bool]) -> None:
        """Wait for nodes as long as the round does.

        Args:
            urgent: tells whether there are too few connections.
        """
        while True:
            self._collect()
            self._asking.urgent = urgent()
            left, place = max(
                ((self._left(place), place) for place in self._attempts), default=(0.0, -1)
            )
            if left <= 0:
                return
            part, start = self._listening.part(left), time.monotonic()
            if not self._attempts[place].done.wait(part):
                self._listening.waited_for(part, start)

    def _left(self, place: int) -> float:
        silent = self._listening.silence(self._attempts[place].heard)
        return self._asking.handshake_left(place, self._listening.waited, silent)

    def _collect(self) -> None:
        """Take the connections that have come."""
        for place, attempt in tuple(self._attempts.items()):
            done = attempt.done.is_set()
            if not done and not self._take(self._asking, place):
                continue
            del self._attempts[place]
            if done and (connection := attempt.take()) is not None:
                self._have(place, connection)
            else:
                self._asking.nodes[place].forgo(attempt)

    def end(self) -> None:
        """Wait for no connection any more; a node that was silent is not waited for again."""
        for place, attempt in self._attempts.items():
            node = self._asking.nodes[place]
            if self._asking.is_silent(self._listening.silence(attempt.heard)):
                node.suspect(attempt)
            node.forgo(attempt)
        self._attempts = {}
