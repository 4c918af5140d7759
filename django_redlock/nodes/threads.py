"""Put a thread's request to the nodes: by a set of connections if there is one, or by each.

By a set (``sets``), while all is as usual: one write to each node, one poll, and replies that are
compared by bytes; the usual reply of a majority decides a grant and a release. Everything else is
what ``BlockingRequest`` does. It takes over the request of a set on an unusual reply, where no
majority has replied within a quarter of the node timeout, on a connection that is lost or does not
take the request, and on an interruption.

A ``BlockingRequest`` gathers connections, writes to all, listens, and gives them back. The request
is packed once and written to every node; then the replies are read, in few wakings, until the
collector (``round``) says that it is enough, or the node timeout has passed. A node that has not
replied by then costs nothing: its reply stays owed on its connection, and the next request on that
connection reads it first.

A thread waits for one node timeout after the last write, because its connections are its own. A
task waits until each node has been silent for that long: see ``loops``.
"""

from __future__ import annotations

import select
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from django_redlock.core.commands import freed
from django_redlock.core.protocol import TAKING, UNDO, Answer, Command, Vote
from django_redlock.core.quorum import majority_of
from django_redlock.interruption import forgotten, settle

from .background import Listening
from .connection import Asker
from .faults import TAKES_NO_MORE
from .round import LEAST_LINGER, LINGER, LISTEN, OVER, PATIENCE, ThreadCollector
from .sets import ConnectionSets, Exchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from django_redlock.core.protocol import Request

    from .connection import Connection
    from .node import ConnectAttempt, Node
    from .round import VoteCollector


class Connecting:
    """The connections that one request waits for.

    Args:
        collector: decides which ones, and for how long.
        take: takes a connection to a node that another thread has given back; whether there is.
        have: told of a connection that was opened.
    """

    def __init__(
        self,
        collector: VoteCollector,
        take: Callable[[int], bool],
        have: Callable[[int, Connection], object],
    ) -> None:
        self._collector = collector
        self._take = take
        self._have = have
        self._listening = Listening(collector.timeout)
        self._attempts: dict[int, ConnectAttempt] = {}

    def open(self, places: Iterable[int]) -> None:
        """Begin to connect these nodes, in the background."""
        collector = self._collector
        for place in places:
            node, worth = collector.nodes[place], collector.awaits(place)
            attempt = node.open(collector.start, urgent=collector.urgent)
            if attempt is not None and worth:
                self._attempts[place] = attempt
            elif attempt is not None:
                node.forgo(attempt)

    def wait(self, urgent: Callable[[], bool]) -> None:
        """Wait for nodes as long as the collector does.

        Args:
            urgent: tells whether there are too few connections.
        """
        while True:
            self._collect()
            self._collector.urgent = urgent()
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
        return self._collector.handshake_left(place, self._listening.waited, silent)

    def _collect(self) -> None:
        """Take the connections that have come."""
        for place, attempt in tuple(self._attempts.items()):
            done = attempt.done.is_set()
            if not done and not self._take(place):
                continue
            del self._attempts[place]  # first: an interruption must not leave it to ``end`` as well
            if done and attempt.connection is not None:
                self._have(place, attempt.connection)
            else:
                self._collector.nodes[place].forgo(attempt)

    def end(self) -> None:
        """Wait for no connection any more; a node that was silent is not waited for again."""
        for place, attempt in self._attempts.items():
            node = self._collector.nodes[place]
            if self._collector.is_silent(self._listening.silence(attempt.heard)):
                node.suspect(attempt)
            node.forgo(attempt)
        self._attempts = {}


class BlockingRequest:
    """One request on its way.

    Attributes:
        collector: decides what is done.
        mine: the connections that are this thread's alone until given back, by place.
        shared: connections of others, which are written to and never read, by place.
    """

    def __init__(self, nodes: Sequence[Node], request: Request, timeout: float) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.collector = ThreadCollector(nodes, request, timeout)
        self.mine: dict[int, Connection] = {}
        self.shared: dict[int, Connection] = {}
        self.poll = select.poll()
        self._places: dict[int, int] = {}  # by file descriptor
        self._unsent: set[int] = set()  # file descriptors that did not take all at once
        self._connecting: Connecting | None = None
        self._spoiled = False
        self._deadline = self._looked = self._absent = 0.0
        self._longest = self.collector.start + PATIENCE * timeout

    # -- before writing -------------------------------------------------------------------------

    def begin(self) -> None:
        """Write the request to every node that can be asked."""
        self.gather()
        self.write()

    def take_over(self, exchange: Exchange) -> None:
        """Go on with a request that was written by a set of connections, which ends here."""
        collector, lent = self.collector, exchange.lent
        self.mine = dict(lent.connections)
        lent.note_late()
        lent.request = None
        collector.start = exchange.start
        for place, connection in self.mine.items():
            connection.in_set = False
            self._have(place, connection)
        for place in exchange.heard:
            collector.votes[place] = exchange.vote_at(place, self.nodes[place].label)
        for place, pending in collector.owed(self.mine, exchange.start).items():
            connection = self.mine[place]
            if not connection.owed:
                collector.prompt.add(place)
            connection.note(pending)
            collector.unheard[place] = connection
        for place, data in exchange.odd.items():
            self.mine[place].take_in(data)
        for place in exchange.failed:
            self.mine[place].close(TAKES_NO_MORE)
        for place in (*exchange.odd, *exchange.failed):
            self._noted(place)
        for place in lent.left_out:
            collector.unreachable(place)
        if exchange.lingers_until is not None:
            collector.lingering, collector.lingers_until = True, exchange.lingers_until
        self._deadline = exchange.start + self.timeout

    def gather(self) -> None:
        """Get a connection to every node that can have one in time; the others have no vote."""
        collector = self.collector
        missing = [place for place in collector.asked if not self._take(place)]
        while closed := self._close_stale():  # of many idle connections all may be closed
            missing += [place for place in closed if not self._take(place)]
        if missing:
            self._connect(missing)
        if len(self.mine) < len(collector.asked):
            for place in collector.asked:
                if place not in self.mine and place not in self.shared:
                    collector.unreachable(place)

    def _take(self, place: int) -> bool:
        node, collector = self.nodes[place], self.collector
        if place in collector.touched:
            have = partial(self._have, place)
            connection, ours = node.take_behind(collector.request.nonce, collector.start, have)
            if connection is not None and not ours:
                self.shared[place] = connection
        else:
            connection = node.take(collector.start)
            if connection is not None:
                self._have(place, connection)
        return connection is not None

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
            return len(self.mine) + len(self.shared) < self.collector.majority

        self.collector.urgent = urgent()
        self._connecting = Connecting(self.collector, self._take, self._have)
        self._connecting.open(missing)
        self._connecting.wait(urgent)

    def more(self) -> bool:
        """Return whether one more node can be asked, where too few have answered until now."""
        if self._connecting is None or not self.collector.is_short_of_votes():
            return False
        before = frozenset(self.mine)
        self._connecting.wait(lambda: len(self.mine) <= len(before))
        new = self.mine.keys() - before
        for place in new:
            self.collector.reopen(place)
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
        collector, now = self.collector, time.monotonic()
        votes, connections = collector.votes, self.mine
        heals = collector.request.command is Command.HEAL
        if self.shared:
            connections = {**self.mine, **self.shared}
        for place, pending in collector.owed(connections, now).items():
            connection = connections[place]
            prompt, ours = not connection.owed, place in self.mine
            if not connection.send(pending) and votes[place] is None:
                collector.not_sent(place, connection.fault)
                continue
            if heals:  # the holder may release before the reply: behind this, on this connection
                self.nodes[place].expect(connection, collector.request.nonce)
            if votes[place] is None and ours:
                collector.unheard[place] = connection
                if prompt:
                    collector.prompt.add(place)
                if connection.unsent:
                    self._unsent.add(connection.fileno)
                    self.poll.modify(connection.fileno, select.POLLIN | select.POLLOUT)
        # Anew, for connecting may have used it up; and not before the last request is written:
        # a node's silence counts from there, and after the wait its reply must be overdue.
        self._deadline = time.monotonic() + self.timeout

    def listen(self) -> None:
        """Read answers as they arrive until it is enough, or the node timeout is over."""
        collector, end, lingering = self.collector, self._deadline, False
        self._looked = end - self.timeout
        # While every node is still to answer, nothing is clear.
        all_well = len(collector.unheard) == len(collector.votes)
        verdict = LISTEN if all_well else collector.verdict()
        while verdict is not OVER:
            if verdict is LINGER and not lingering:
                end, lingering = min(end, collector.lingers_until), True
            ready = self._ready(end, lingering=lingering)
            for fileno, _ in ready:
                self._read(fileno)
            # Where TLS must read before it can send, the socket is ready to send all the time.
            if not ready or (self._unsent and end <= time.monotonic()):
                end += self._late(end)
                if lingering or end <= time.monotonic():
                    return
            verdict = collector.verdict() if collector.unheard else OVER

    def _ready(self, end: float, *, lingering: bool) -> list[tuple[int, int]]:
        """The connections with something to read, once that may be enough; none: it is too late.

        Each waking costs as much as many a reply. Of any ``needed`` replies one at least comes from
        outside the first ``needed - 1`` nodes. So the sleep lasts until one of the others, which
        were written to last, has something to read.
        """
        collector, unheard = self.collector, self.collector.unheard
        if lingering and collector.undoing:
            awaited = [place for place in unheard if place in collector.prompt]
            needed = len(awaited)
        else:
            awaited, needed = list(unheard), collector.needed - len(self.shared)
        last = awaited[max(0, needed - 1) :]
        now = time.monotonic()
        self._absent += max(0.0, now - self._looked - self.timeout / 4)
        self._looked = max(now, end)
        left = max(0.0, end - now) * 1000
        if len(last) == len(unheard) or self._unsent:
            return self.poll.poll(left)
        some = select.poll()
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
        late = max(0.0, now - self._looked - self.timeout / 4)
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
        self._noted(place)

    def _noted(self, place: int) -> None:
        """Look what has become of a connection that was read."""
        if self.mine[place].fault:
            self._drop(place)
        if self.collector.votes[place] is not None:
            self.collector.unheard.pop(place, None)

    # -- afterwards -----------------------------------------------------------------------------

    def spoil(self) -> None:
        """Mark every connection in use as possibly out of step."""
        self._spoiled = True
        for connection in self.mine.values():
            connection.spoiled = time.monotonic()

    def give_back(self, form: Callable[[Mapping[int, Connection]], bool] | None = None) -> None:
        """Return the connections; remember those on which a grant is unanswered.

        If the request was interrupted, entrust what is to be undone: behind a grant to which the
        reply is late, so after its connection is remembered.

        Args:
            form: makes a set of them, where they can be one. Else each goes to its node.
        """
        if forgotten:
            settle()
        if self._connecting is not None:
            self._connecting.end()
            self._connecting = None  # it refers to this request: no cycle keeps a connection
        if self.collector.unheard and not self._spoiled:
            self._close_stale()  # a late reply may have come by now
        if form is not None and form(self.mine):
            self.mine = {}
            return
        now, collector = time.monotonic(), self.collector
        takes, nonce = collector.request.command in TAKING, collector.request.nonce
        while self.mine:
            place, connection = self.mine.popitem()
            behind = takes or (self._spoiled and collector.is_unanswered(place))
            self.nodes[place].give(connection, nonce if behind else None, now)
        if self._spoiled:
            self.collector.keep_unanswered()


YES: Final = Answer.YES  # an enum's member costs five times a name
SOON: Final = 1 / 4  # of the node timeout, in which a majority replies when all is well


class Threads:
    """The nodes, for the threads of this process.

    Args:
        timeout: the node timeout, in seconds.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.sets = ConnectionSets(nodes, timeout)
        self._majority = majority_of(len(nodes))
        self._freed = [node.freed for node in nodes]

    def ask(self, request: Request) -> list[Vote]:
        """Put a request to the nodes; return one vote for each, in order."""
        votes = self._ask_set(request)
        if votes is not None:
            return votes
        asking = BlockingRequest(self.nodes, request, self.timeout)
        return self._carry(asking, asking.begin)

    def _carry(self, asking: BlockingRequest, begin: Callable[[], object]) -> list[Vote]:
        try:
            begin()
            asking.listen()
            while asking.more():
                asking.write()
                asking.listen()
            return asking.collector.result()
        except BaseException:  # rule: an interrupted stream serves for undoing, nothing else
            asking.spoil()
            raise
        finally:
            asking.give_back(self.sets.form)

    # -- by a set -------------------------------------------------------------------------------

    def _ask_set(self, request: Request) -> list[Vote] | None:
        """Put a request to the nodes of a set; return None if it was not written."""
        exchange = None
        try:
            lent = self.sets.lend(request)
            if lent is None:
                return None
            exchange = Exchange(lent, request)
            if not exchange.write():
                self.sets.dissolve(lent)
                return None
            if not exchange.failed:
                self._listen(exchange)
                votes = self._votes(exchange)
                if votes is not None:
                    return votes
            self.sets.forget(lent)
            asking = BlockingRequest(self.nodes, request, self.timeout)
            return self._carry(asking, partial(asking.take_over, exchange))
        except BaseException:
            if exchange is None:
                self.sets.reclaim(request)
            elif self.sets.is_still_lent(exchange.lent, request):
                asking = BlockingRequest(self.nodes, request, self.timeout)
                try:
                    asking.take_over(exchange)
                finally:
                    asking.spoil()
                    asking.give_back()
            raise

    def _listen(self, exchange: Exchange) -> None:
        """Read until it is enough, or something is unusual; wait for late ones as a request does.

        A release waits a moment for every prompt node. It sleeps until the node replies that was
        written to last: by then the others have usually replied.
        """
        start, now = exchange.start, exchange.start
        end = start + SOON * self.timeout
        if not exchange.takes:
            exchange.wait(LEAST_LINGER, len(exchange.missing))
        while exchange.missing and not exchange.odd:
            needed = self._majority - len(exchange.heard)
            if needed <= 0:
                if exchange.takes:
                    return
                needed = len(exchange.missing)
                if exchange.lingers_until is None:
                    now = time.monotonic()
                    end = exchange.lingers_until = now + max(now - start, LEAST_LINGER)
            if now >= end or not exchange.wait(end - now, needed):
                return
            now = time.monotonic()

    def _votes(self, exchange: Exchange) -> list[Vote] | None:
        """Return the votes, if the request is decided; the set is given back then."""
        heard, lent = exchange.heard, exchange.lent
        if exchange.odd or len(heard) < self._majority:
            return None
        if forgotten:
            settle()
        votes = self._freed[:]
        if exchange.grants:
            votes = [Vote(node.label, YES, exchange.number) for node in self.nodes]
        if len(heard) < len(lent.connections):
            for place in lent.connections:
                if place not in heard:
                    votes[place] = self.nodes[place].unheard
        for place in exchange.woke:
            votes[place] = freed(self.nodes[place].label, 1)
        for place in lent.left_out:
            votes[place] = self._left_out(place, exchange.request)
        self.sets.give(lent, exchange)
        return votes

    def _left_out(self, place: int, request: Request) -> Vote:
        """Return the vote of a node that is known to be down; it undoes when it is back."""
        node = self.nodes[place]
        if request.command in UNDO and (request.touched is None or place in request.touched):
            node.undo_later(Asker(request, time.monotonic()))
        return Vote(node.label, Answer.UNKNOWN, reason=node.why_unasked, sent=False)
