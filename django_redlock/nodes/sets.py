"""Connections to the nodes that are well, which one thread uses as one: the usual way of a request.

A request is written to all connections of a set, then one poll waits for the replies, and each is
compared with the bytes of the usual one (``Round.usual``). While the set is lent, no other thread
may write to its connections (``Connection.in_set``), so they need no locks. Where anything is out
of the ordinary, ``threads.PollDriver`` goes on with the same round over the same connections.

* When a request ends and nothing is left to do on any of its connections, ``form`` makes a set of
  them.
* Each connection keeps what it owes (``Connection.owed``). A set whose last nodes have not replied
  to a grant is kept for the undo of that grant, which goes behind it, and then serves others; a
  node that owes a reply is written to, and not waited for. The set ends with a connection that is
  lost, and with a reply that is overdue.
* A forked child forgets all sets, as it does all connections.
* An interruption ends a set; the undo that follows goes behind the grant.
* A set has one owner: who takes it out of ``_free`` or ``_owing`` has it.
* Where more threads ask than there are sets, the others go the general way, and make more sets.
* A caller that finds no idle connection in a node, as an event loop may, gets one out of a set,
  which ends (``take``).
* A node that is known to be down is left out; when it is back, the set ends.
* TLS goes the general way: its layer may have data that poll does not see.
* So does a request to some of the nodes only, one that has no usual reply, and each request while
  somebody watches the nodes.
"""

from __future__ import annotations

import math
import select
import time
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from django_redlock import events
from django_redlock.core.protocol import TAKING, UNDO, Request, Vote
from django_redlock.core.quorum import majority_of

from .background import WorkerThreads, new_poll
from .connection import BACKLOG, NO_EPOCH
from .faults import TAKES_NO_MORE
from .node import SETTLE_EVERY, SPARE
from .round import EXTEND, GRANT, HEAL, LEAST_LINGER, LEAST_WORTH, YES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .background import Poll
    from .connection import Connection
    from .node import Node
    from .round import Round

    Ends: TypeAlias = tuple[int, Connection, Callable[[bytes], int], bytes]
    Order: TypeAlias = tuple[tuple[int, ...], Sequence[Ends]]


LARGEST: Final = 8192  # bytes of a request that every socket takes at once when it has no other
MOST_POLLS: Final = 64
ROOM: Final = 256  # bytes to read beside the usual reply: so small a buffer is quickly allocated
SOON: Final = 1 / 4  # of the node timeout, in which a majority replies when all is well
# For ``map``: a loop costs more, and each lock looks at all nodes.
OWED: Final = attrgetter("owed")
KEPT: Final = attrgetter("undos.kept")
DUPLICATE: Final = attrgetter("duplicate_of")


class ConnectionSet:
    """Connections to several nodes, lent together.

    Args:
        connections: by place; each owes nothing.
        size: how many nodes there are.

    Attributes:
        owing: whether a reply may be late.
        key: the nonce of the last request to which a reply is late, or "".
        is_undone: whether each grant with a late reply is followed by its undo. The last request
            tells: a set whose grant is not undone takes no other.
        left_out: the places of the nodes without a connection in it.
        look_at: ``time.monotonic`` from which to look whether they are back.
    """

    def __init__(self, connections: Mapping[int, Connection], size: int) -> None:
        self.connections = dict(connections)
        self.owing, self.is_undone, self.key = False, True, ""
        self.look_at = -math.inf
        self.left_out = [place for place in range(size) if place not in connections]
        self._size = size
        self._by_fileno = {each.fileno: each for each in connections.values()}
        self._recvs = {place: each.socket.recv for place, each in connections.items()}
        self._polls: dict[tuple[int, ...], Poll] = {}
        self._poll = self.poll(tuple(connections))
        self._orders: dict[int, Order] = {}  # by the place of the first

    def is_well(self, patience: float) -> bool:
        """Read what has come since the last request; return whether the set can be used.

        Args:
            patience: seconds for which a node may owe a reply. The set is not well with one that
                has for longer, or that owes replies to many bytes.
        """
        connections = self.connections
        now = time.monotonic() if self.owing else 0.0  # before the look, as in ``PollDriver``
        while ready := self._poll.poll(0):  # the end of a connection may be behind a reply
            for fileno, _ in ready:
                connection = self._by_fileno[fileno]
                connection.read()
                if connection.fault:
                    return False
        if self.owing:
            owing = False
            for each in connections.values():
                if each.owed:
                    owing = True
                    if each.silent_for(now) > patience or each.backlog > BACKLOG:
                        return False
            self.owing = owing
        return True

    def poll(self, places: tuple[int, ...]) -> Poll:
        """Return what polls these for something to read."""
        poll = self._polls.get(places)
        if poll is None:
            poll = new_poll()
            for place in places:
                poll.register(self.connections[place].fileno, select.POLLIN)
            if len(self._polls) < MOST_POLLS:
                self._polls[places] = poll
        return poll

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

    # -- a round in the usual way ---------------------------------------------------------------

    def write(self, asking: Round) -> None:
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
        for place in self.left_out:
            asking.unreachable(place)

    def listen(self, asking: Round, timeout: float) -> bool:
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
        least = LEAST_LINGER if asking.undoing else LEAST_WORTH if asking.command is EXTEND else 0.0
        wanted, sleep = (size, LEAST_LINGER) if asking.undoing else (majority, SOON * timeout)
        while missing and wanted <= len(missing) and sleep > 0:
            if self.poll(missing[wanted - 1 :]).poll(sleep * 1000):
                found = self._read(asking, missing)
                if found is None:
                    return False
                missing = found
            heard = size - len(missing)
            if heard < majority:
                wanted, sleep = majority - heard, start + SOON * timeout - time.monotonic()
            elif not least:
                return True
            else:
                now = time.monotonic()
                if not asking.lingering:
                    asking.lingers_until = now + max(now - start, least)
                    asking.lingering = True
                wanted, sleep = len(missing), asking.lingers_until - now
        return heard >= majority

    def _read(self, asking: Round, missing: Sequence[int]) -> tuple[int, ...] | None:
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


LOOK_EVERY: Final = 0.01  # seconds, at nodes that are left out


class ConnectionSets:
    """The sets of one group of nodes. All methods may be called by any thread."""

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self._nodes, self._timeout = nodes, timeout
        self._size, self._majority = len(nodes), majority_of(len(nodes))
        self.reset()

    def reset(self) -> None:
        """Forget them all, as a forked child must."""
        self._free: list[ConnectionSet] = []
        self._owing: dict[str, ConnectionSet] = {}  # by ``ConnectionSet.key``
        self.threads = WorkerThreads()

    # -- lending --------------------------------------------------------------------------------

    def lend(self, asking: Round) -> ConnectionSet | None:
        """Return a set for this round, or None: it goes the general way."""
        request, nonce = asking.request, asking.request.nonce
        usual = (
            (asking.usual or asking.begins)
            and len(asking.packed) <= LARGEST
            and (request.to is None or len(request.to) == self._size)
            and not (request.thorough or events.node_watchers)
        )
        if asking.undoing or asking.command is HEAL:  # a heal goes nowhere beside a late grant
            if nonce in self._owing:
                if usual:
                    return self._behind(request)
                self.give_up(nonce)
            for node in self._nodes:
                if (node.unanswered or node.lent) and node.has_unanswered(nonce):
                    return None
        if not usual:
            return None
        try:
            lent = self._free.pop()
        except IndexError:
            return self._last() if self._owing else None
        return self._usable(lent)

    def give_up(self, nonce: str) -> None:
        """Dissolve the set that owes replies to this grant, so that its undo goes behind it."""
        lent = self._owing.pop(nonce, None)
        if lent is not None:
            self.dissolve(lent)

    def _behind(self, request: Request) -> ConnectionSet | None:
        """Return the set that owes replies to the grant that is undone."""
        lent = self._owing.pop(request.nonce, None)
        return None if lent is None else self._usable(lent)

    def _last(self) -> ConnectionSet | None:
        """Return a set that has late replies to undone grants, or that has none any more.

        One with a late reply to a grant that is not undone ends, for its undo must come next.
        """
        try:
            lent = self._owing.popitem()[1]
        except KeyError:
            return None
        return self._usable(lent, undone=True)

    def _usable(self, lent: ConnectionSet, *, undone: bool = False) -> ConnectionSet | None:
        """Return a set, or dissolve it if it is not usable.

        It is if each connection is well, and its node has nothing to undo before.

        Args:
            undone: whether each grant with a late reply must be undone.
        """
        if lent.is_well(self._timeout) and not (undone and lent.owing and not lent.is_undone):
            nodes = self._nodes
            if lent.left_out:
                nodes = [nodes[place] for place in lent.connections]
            if not (
                any(map(KEPT, nodes))
                or any(map(DUPLICATE, nodes))
                or (lent.left_out and self._is_back(lent))
            ):
                return lent
        self.dissolve(lent)
        return None

    def _is_back(self, lent: ConnectionSet) -> bool:
        """Return whether a node that was left out can be asked again; try to connect it, too."""
        now = time.monotonic()
        if now < lent.look_at:
            return False
        lent.look_at = now + LOOK_EVERY
        for place in lent.left_out:
            node = self._nodes[place]
            attempt = node.open(now, urgent=False)
            if attempt is not None:
                node.forgo(attempt)
            if node.is_back():
                return True
        return False

    def take(self, node: Node, now: float) -> Connection | None:
        """Return a connection as ``Node.take`` does, out of a set if no other is idle."""
        self.spare(node)
        return node.take(now)

    def spare(self, node: Node) -> None:
        """Give the connections of one set to the pools, if the node has none that is idle."""
        if node.is_bare:
            try:
                self.dissolve(self._free.pop())
            except IndexError:
                self._dissolve_owing()

    # -- taking back ----------------------------------------------------------------------------

    def form(self, connections: Mapping[int, Connection]) -> bool:
        """Make a set of a request's connections; return False where they go to the pools."""
        if len(connections) < self._majority or len(self._free) >= SPARE:
            return False
        for place, node in enumerate(self._nodes):
            if place not in connections and not node.down_reason:
                return False
        for each in connections.values():
            if not each.join_set():
                return False
        self._free.append(ConnectionSet(connections, self._size))
        return True

    def give(self, lent: ConnectionSet, request: Request) -> None:
        """Take a set back after a request, to which some nodes may not have replied yet."""
        lent.owing = any(map(OWED, lent.connections.values()))
        if lent.owing:
            lent.is_undone, lent.key = request.command not in TAKING, request.nonce
            self._owing[lent.key] = lent
            if request.command in UNDO:
                self.threads.offer("late", self._attend, again=False)
            if len(self._owing) > SPARE:
                self._dissolve_owing()
        elif len(self._free) < SPARE:
            lent.key = ""
            self._free.append(lent)
        else:
            self.dissolve(lent)

    def _attend(self) -> None:
        """Dissolve sets with overdue replies, so that undos are sent again; runs in a thread."""
        while any(lent.owing for lent in tuple(self._owing.values())):
            self.threads.pause(SETTLE_EVERY)
            if self.threads.until < math.inf:
                return
            for nonce in tuple(self._owing):
                lent = self._owing.pop(nonce, None)
                if lent is None:
                    continue
                if lent.is_well(self._timeout):
                    self._owing[nonce] = lent
                else:
                    self.dissolve(lent)

    def _dissolve_owing(self) -> None:
        """Dissolve the set that has owed replies for the longest."""
        for nonce in tuple(self._owing)[:1]:
            self.give_up(nonce)

    def close(self) -> None:
        """Give the connections of all sets to the pools."""
        while self._free:
            self.dissolve(self._free.pop())
        for nonce in tuple(self._owing):
            self.give_up(nonce)

    def dissolve(self, lent: ConnectionSet) -> None:
        """Give the connections of a set that is in no list to the pools."""
        now, nonce, connections = time.monotonic(), lent.key or None, lent.connections
        while connections:
            place, connection = connections.popitem()
            self._nodes[place].give(connection, nonce, now)
