"""Put a thread's request to the nodes: the driver that polls.

The usual way is a set of connections (``sets``): one write to each node, one poll, and replies that
are compared by bytes. ``PollDriver`` does everything else: it goes on with the same round on an
unusual reply, where no majority has replied within a quarter of the node timeout, on a connection
that is lost or does not take the request, and after an interruption.

Without a set it gathers connections, writes to all, listens, and gives them back. The request is
packed once and written to every node; then the replies are read, in few wakings, until the round
says that it is enough, or the node timeout has passed. A node that has not replied by then costs
nothing: its reply stays owed on its connection, and the next request on that connection reads it
first.

A thread waits for one node timeout after the last write, because its connections are its own. A
task waits until each node has been silent for that long: see ``loops``.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from django_redlock.core.protocol import TAKING, Command

from .background import Listening, new_poll
from .round import LINGER, LISTEN, OVER, PATIENCE, Round
from .sets import ConnectionSets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django_redlock.core.protocol import Request, Vote

    from .connection import Connection
    from .node import ConnectAttempt, Node
    from .sets import ConnectionSet


class Connecting:
    """The connections that one request waits for.

    Args:
        asking: decides which ones, and for how long.
        take: takes a connection to a node that another thread has given back; whether there is.
        have: told of a connection that was opened.
    """

    def __init__(
        self,
        asking: Round,
        take: Callable[[int], bool],
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
            if not done and not self._take(place):
                continue
            del self._attempts[place]
            if done and attempt.connection is not None:
                self._have(place, attempt.connection)
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


class PollDriver:
    """One round on its way, driven by the thread that asks.

    Attributes:
        mine: the connections that are this thread's alone until given back, by place.
        shared: connections of others, which are written to and never read, by place.
    """

    def __init__(self, asking: Round, sets: ConnectionSets) -> None:
        self.asking = asking
        self.nodes, self.timeout = asking.nodes, asking.timeout
        self.mine: dict[int, Connection] = {}
        self.shared: dict[int, Connection] = {}
        self.poll = new_poll()
        self._sets = sets
        self._places: dict[int, int] = {}  # by file descriptor
        self._unsent: set[int] = set()  # file descriptors that did not take all at once
        self._connecting: Connecting | None = None
        self._spoiled = False
        self._looked = self._absent = 0.0
        self._deadline = asking.since + self.timeout
        self._longest = asking.start + PATIENCE * self.timeout + asking.request.patience

    def carry(self, lent: ConnectionSet | None) -> list[Vote]:
        """Put the round to the nodes, or go on with what a set has written; return the votes."""
        try:
            if lent is None:
                self.gather()
                self.write()
            else:
                self.take_over(lent)
            self.listen()
            while self.more():
                self.write()
                self.listen()
            return self.asking.result()
        except BaseException:  # rule: an interrupted stream serves for undoing, nothing else
            self._spoil()
            raise
        finally:
            self._give_back()

    def abandon(self, lent: ConnectionSet) -> None:
        """Give back the connections of a set whose round was interrupted, to be undone."""
        try:
            self.take_over(lent)
        finally:
            self._spoil()
            self._give_back()

    # -- before writing -------------------------------------------------------------------------

    def take_over(self, lent: ConnectionSet) -> None:
        """Go on with a round that was written by a set of connections, which ends here."""
        asking = self.asking
        self.mine = dict(lent.connections)
        for place, connection in tuple(self.mine.items()):
            connection.in_set = False
            if connection.fault:
                del self.mine[place]
                continue
            self._have(place, connection)
            if asking.votes[place] is None:
                asking.unheard[place] = connection

    def gather(self) -> None:
        """Get a connection to every node that can have one in time; the others have no vote."""
        asking = self.asking
        missing = [place for place in asking.asked if not self._take(place)]
        while closed := self._close_stale():  # of many idle connections all may be closed
            missing += [place for place in closed if not self._take(place)]
        if missing:
            self._connect(missing)
        if len(self.mine) < len(asking.asked):
            for place in asking.asked:
                if place not in self.mine and place not in self.shared:
                    asking.unreachable(place)

    def _take(self, place: int) -> bool:
        node, asking = self.nodes[place], self.asking
        if place in asking.touched:
            self._sets.spare(node)
            connection, ours = node.take_behind(asking.request.nonce, asking.start)
        else:
            connection, ours = self._sets.take(node, asking.start), True
        if connection is None:
            return False
        if ours:
            self._have(place, connection)
        else:
            self.shared[place] = connection
        return True

    def _close_stale(self) -> list[int]:
        """Settle what arrived since the last call; return the nodes that closed their connection.

        To the end: behind a last answer there may be the end of the connection.
        """
        closed = []
        while ready := self.poll.poll(0):
            for fileno, _ in ready:
                place = self._places[fileno]
                self._read(fileno)
                if place not in self.mine:
                    closed.append(place)
        return closed

    def _connect(self, missing: list[int]) -> None:
        def urgent() -> bool:
            return len(self.mine) + len(self.shared) < self.asking.majority

        self.asking.urgent = urgent()
        self._connecting = Connecting(self.asking, self._take, self._have)
        self._connecting.open(missing)
        self._connecting.wait(urgent)

    def more(self) -> bool:
        """Return whether one more node can be asked, where too few have answered until now."""
        if self._connecting is None or not self.asking.is_short_of_votes():
            return False
        before = frozenset(self.mine)
        self._connecting.wait(lambda: len(self.mine) <= len(before))
        new = self.mine.keys() - before
        for place in new:
            self.asking.reopen(place)
        return bool(new)

    def _have(self, place: int, connection: Connection) -> None:
        self.mine[place] = connection
        self.poll.register(connection.fileno, select.POLLIN)
        self._places[connection.fileno] = place

    def _drop(self, place: int) -> None:
        connection = self.mine.pop(place)
        self.poll.unregister(connection.fileno)
        self._unsent.discard(connection.fileno)
        del self._places[connection.fileno]

    # -- writing and reading --------------------------------------------------------------------

    def write(self) -> None:
        """Write the request to every connection at once; nothing waits between two of them."""
        asking, now = self.asking, time.monotonic()
        votes, connections = asking.votes, self.mine
        heals = asking.command is Command.HEAL
        if self.shared:
            connections = {**self.mine, **self.shared}
        asking.prompt = asking.prompt or ()
        for place, pending in asking.ask(connections, now).items():
            connection = connections[place]
            owed, ours = connection.owed, place in self.mine
            if ours and (not owed or (len(owed) == 1 and owed[0].nonce == asking.nonce)):
                asking.prompt += (place,)
            if not connection.send(pending) and votes[place] is None:
                asking.not_sent(place, connection.fault)
                continue
            if heals:  # the holder may release before the reply: behind this, on this connection
                self.nodes[place].expect(connection, asking.request.nonce)
            if votes[place] is None and ours:
                asking.unheard[place] = connection
                if connection.unsent:
                    self._unsent.add(connection.fileno)
                    self.poll.modify(connection.fileno, select.POLLIN | select.POLLOUT)
        # Anew, for connecting may have used it up; and not before the last request is written:
        # a node's silence counts from there, and after the wait its reply must be overdue.
        self._deadline = time.monotonic() + self.timeout

    def listen(self) -> None:
        """Read answers as they arrive until it is enough, or the node timeout is over."""
        asking, end, lingering = self.asking, self._deadline, False
        self._looked = end - self.timeout
        # While every node is still to answer, nothing is clear.
        all_well = len(asking.unheard) == len(asking.votes)
        verdict = LISTEN if all_well else asking.verdict()
        while verdict is not OVER:
            if verdict is LINGER and not lingering:
                end, lingering = min(end, asking.lingers_until), True
            ready = self._ready(end, lingering=lingering)
            for fileno, _ in ready:
                self._read(fileno)
            # Where TLS must read before it can send, the socket is ready to send all the time.
            if not ready or (self._unsent and end <= time.monotonic()):
                end += self._late(end)
                if lingering or end <= time.monotonic():
                    for fileno, _ in self.poll.poll(0):  # it came while this thread was waking up
                        self._read(fileno)
                    return
            verdict = asking.verdict() if asking.unheard else OVER

    def _ready(self, end: float, *, lingering: bool) -> list[tuple[int, int]]:
        """The connections with something to read, once that may be enough; none: it is too late.

        It sleeps until one of the nodes that were written to last has something to read; see
        ``ConnectionSet.listen``.
        """
        asking, unheard = self.asking, self.asking.unheard
        if lingering and asking.undoing:
            awaited = [place for place in unheard if place in (asking.prompt or ())]
            needed = len(awaited)
        else:
            awaited, needed = list(unheard), asking.votes_to_quorum - len(self.shared)
        last = awaited[max(0, needed - 1) :]
        now = time.monotonic()
        self._absent += max(0.0, now - self._looked - self.timeout / 4)
        self._looked = max(now, end)
        left = max(0.0, end - now) * 1000
        if len(last) == len(unheard) or self._unsent:
            return self.poll.poll(left)
        some = new_poll()
        for place in last:
            some.register(unheard[place].fileno, select.POLLIN)
        some.poll(left)
        return self.poll.poll(0)

    def _late(self, end: float) -> float:
        """Return the seconds for which this thread did not run, and could hear no node.

        A thread that wakes up late from the last sleep looks for one more node timeout: if the
        whole machine was paused, so were nodes on it, and they need time to answer.
        """
        now = time.monotonic()
        late = now - self._looked
        if late <= self.timeout / 4:
            late = 0.0
        absent = self._absent + late
        self._absent, self._looked = 0.0, now
        self._longest += absent
        return min(absent + (self.timeout if late else 0.0), self._longest - end)

    def _read(self, fileno: int) -> None:
        place = self._places[fileno]
        connection = self.mine[place]
        connection.read()
        if fileno in self._unsent and not (connection.unsent or connection.fault):
            self._unsent.discard(fileno)
            self.poll.modify(fileno, select.POLLIN)
        if connection.fault:
            self._drop(place)

    # -- afterwards -----------------------------------------------------------------------------

    def _spoil(self) -> None:
        """Mark every connection in use as possibly out of step."""
        self._spoiled = True
        for connection in self.mine.values():
            connection.spoiled = time.monotonic()

    def _give_back(self) -> None:
        """Return the connections; remember those on which a grant is unanswered.

        If the request was interrupted, entrust what is to be undone: behind a grant to which the
        reply is late, so after its connection is remembered.
        """
        if self._connecting is not None:
            self._connecting.end()
            self._connecting = None  # it refers to this request: no cycle keeps a connection
        # Before the last look: this thread may not run after it, and would take that for silence.
        now, asking = time.monotonic(), self.asking
        if not self._spoiled:
            if asking.unheard:
                self._close_stale()  # a late reply may have come by now
            if self._sets.form(self.mine):
                return
        while self.mine:
            place, connection = self.mine.popitem()
            late = asking.command in TAKING or (self._spoiled and asking.is_unanswered(place))
            self.nodes[place].give(connection, asking.request.nonce if late else None, now)
        if self._spoiled:
            asking.keep_unanswered()


class Threads:
    """The nodes, for the threads of this process.

    Args:
        timeout: the node timeout, in seconds.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.sets = ConnectionSets(nodes, timeout)

    def ask(self, request: Request) -> list[Vote]:
        """Put a request to the nodes; return one vote for each, in order."""
        asking = Round(self.nodes, request, self.timeout)
        lent = self.sets.lend(asking)
        if lent is None:
            return PollDriver(asking, self.sets).carry(None)
        try:
            lent.write(asking)
            decided = lent.listen(asking, self.timeout)
        except BaseException:  # rule: as in ``PollDriver.carry``
            PollDriver(asking, self.sets).abandon(lent)
            raise
        if not decided:
            return PollDriver(asking, self.sets).carry(lent)
        votes = asking.result()
        self.sets.give(lent, request)
        return votes
