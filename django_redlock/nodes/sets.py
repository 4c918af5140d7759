"""Connections to the nodes that are well, which one thread uses as one.

A set is only a shorter way to ask. A request is written to all its connections, and each reply is
compared byte for byte with the one that nearly every request gets. A set keeps no account of each
connection meanwhile, so no other thread may write to one (``Connection.in_set``).
``BlockingRequest`` (``threads``) is the definition of what is right, and goes on where something is
out of the ordinary.

* When a request ends and nothing is left to do on any of its connections, ``form`` makes a set of
  them.
* A node may owe replies to earlier requests of the set. Each of them is expected as bytes, too. A
  set whose last nodes have not replied is kept for the undo of that grant, which goes behind it,
  and then serves others; a node that owes a reply is written to, and not waited for. The set ends
  with a reply that was not expected, and with one that is overdue.
* A forked child forgets all sets, as it does all connections.
* A signal handler's exception ends a set; the undo that follows goes behind the grant.
* Where more threads ask than there are sets, the others go the general way, and make more sets.
* A caller that finds no idle connection in a node, as an event loop may, has a set dissolved
  (``spare``).
* A node that is known to be down is left out; when it is back, the set is dissolved.
* TLS goes the general way: its layer may have data that poll does not see.
* So does a request to some of the nodes only, every command that is not in ``BY_SET``, and each
  request while somebody watches the nodes.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock import events
from django_redlock.core.commands import YES, Claim, Complete, freed, number_in, waking_reply
from django_redlock.core.protocol import UNDO, Command, Request, Vote
from django_redlock.core.quorum import majority_of
from django_redlock.interruption import first

from .background import WorkerThreads
from .connection import BACKLOG, NO_EPOCH, Asker, PendingReply, nobody, pack
from .node import SETTLE_EVERY, SPARE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from .connection import Connection
    from .node import Node


READ_SIZE: Final = 65536
LARGEST: Final = 8192  # bytes of a request that every socket takes at once when it has no other
# An enum's member costs five times a name.
GRANT: Final = Command.GRANT
MARK: Final = Command.MARK


class Exchange:
    """One request by a set, and what the nodes reply.

    Attributes:
        start: ``time.monotonic`` when it began.
        size: bytes of the request.
        grants, takes: whether it takes a lock; or that, or marks a queued task.
        failed: the places of the nodes whose connection did not take it.
        heard: the places of those with the usual reply, the same from each.
        woke: of these, those where a release woke a waiter.
        number: what a grant has there.
        odd: what else has come, by place.
        lingers_until: ``time.monotonic`` until which an undo waits for the last ones, or None.
        missing: the places of those that are waited for, and have not replied.
    """

    __slots__ = (
        "_way",
        "failed",
        "grants",
        "heard",
        "lent",
        "lingers_until",
        "missing",
        "number",
        "odd",
        "request",
        "size",
        "start",
        "takes",
        "usual",
        "woke",
    )
    usual: bytes
    _way: Way

    def __init__(self, lent: ConnectionSet, request: Request) -> None:
        self.start = time.monotonic()
        self.lent = lent
        self.request = request
        self.grants = request.command is GRANT
        self.takes = self.grants or request.command is MARK
        self.size = 0
        self.failed: list[int] = []
        self.heard: list[int] = []
        self.woke: list[int] = []
        self.odd: dict[int, bytes] = {}
        self.number = 0
        self.lingers_until: float | None = None
        self.missing: tuple[int, ...] = ()

    def write(self) -> bool:
        """Write the request to each; return False if it is too long, and nothing was written."""
        request, lent = self.request, self.lent
        packed = pack(request, 0)
        self.size = len(packed)
        if self.size > LARGEST:
            return False
        self.usual = request.usual_reply()
        self._way = way = lent.way(request.first)
        self.missing = way.places
        if lent.late:  # a node that hangs would cost each request a moment
            nonce = request.nonce
            self.missing = tuple(place for place in way.places if lent.is_prompt(place, nonce))
        head = packed[: -len(NO_EPOCH)] if self.grants else b""
        for place, send, epoch in way.sends:
            data = head + epoch if head else packed
            try:
                whole = send(data) == len(data)
            except OSError:
                whole = False
            if not whole:
                self.failed.append(place)
        return True

    def wait(self, seconds: float, needed: int) -> bool:
        """Sleep until a missing node beyond the first ``needed - 1`` has replied; read from all.

        Each waking costs as much as many a reply, see ``BlockingRequest``. Return whether one came.
        """
        if not self.lent.poll(self.missing[needed - 1 :]).poll(seconds * 1000):
            return False
        self.read()
        return True

    def vote_at(self, place: int, label: str) -> Vote:
        """Return the vote of a node that replied as usual."""
        return (
            Vote(label, YES, self.number) if self.grants else freed(label, int(place in self.woke))
        )

    def leave(self) -> None:
        """Let the set expect what the nodes have not replied."""
        self.lent.expect(self.request, self.usual, self.start, self.size, heard=self.heard)

    def read(self) -> None:
        """Read what has come."""
        usual, heard, way, now = self.usual, self.heard, self._way, time.monotonic()
        late = self.lent.late
        missing = []
        for place in self.missing:
            try:
                data = way.recvs[place](READ_SIZE)
            except OSError:  # nothing has come; or the next one to read it is told why
                missing.append(place)
                continue
            way.connections[place].answered = now
            if data and data != usual and place in late:
                data = self.lent.settle(place, data)
                if not data:
                    missing.append(place)
                    continue
            if data == usual:
                heard.append(place)
            elif self.grants and not heard and (number := number_in(data, usual)):
                self.number, self.usual = number, data
                usual = data
                heard.append(place)
            elif not self.grants and data == waking_reply(usual):
                heard.append(place)
                self.woke.append(place)
            else:
                self.odd[place] = data
        self.missing = tuple(missing)


MOST_POLLS: Final = 64


class Way(NamedTuple):
    """The connections in the order in which a request is written to them.

    Attributes:
        places: of the nodes.
        connections: by place.
        sends: ``socket.send`` of each, with the node's epoch.
        recvs: ``socket.recv`` of each, by place.
    """

    places: tuple[int, ...]
    connections: Mapping[int, Connection]
    sends: Sequence[tuple[int, Callable[[bytes], int], bytes]]
    recvs: Mapping[int, Callable[[int], bytes]]


class LateReply(NamedTuple):
    """A request to which some nodes have not replied when that was enough.

    Attributes:
        usual: the bytes of the reply that is expected.
        start: ``time.monotonic`` when it was sent.
        before: bytes that the set had sent before it, of requests with late replies.
    """

    request: Request
    usual: bytes
    start: float
    before: int

    def pending(self) -> PendingReply:
        """Return what a connection notes of it."""
        asker = Asker(self.request, self.start)
        asker.leave()
        nonce = self.request.nonce.encode()
        return PendingReply(self.request.command, nonce, nobody, self.start, asker.packed, asker)


class ConnectionSet:
    """Connections to several nodes, lent together.

    Args:
        connections: by place; each owes nothing.
        size: how many nodes there are.

    Attributes:
        request: the one that uses the set; None if it is idle and replies are late: who finds that
            and writes another request here, without a call in between, has claimed the set.
        late: what each node owes, the oldest first, by place.
        odd: what has come in place of that, by place.
        key: the nonce of the last request to which a reply is late, or "".
        left_out: the places of the nodes without a connection in it.
        look_at: ``time.monotonic`` from which to look whether they are back.
    """

    __slots__ = (
        "_places",
        "_poll",
        "_polls",
        "_sent",
        "_size",
        "_ways",
        "connections",
        "key",
        "late",
        "left_out",
        "look_at",
        "odd",
        "request",
    )

    def __init__(self, connections: Mapping[int, Connection], size: int) -> None:
        self.connections = dict(connections)
        self.request: Request | None = None
        self.late: dict[int, deque[LateReply]] = {}
        self.odd: dict[int, bytes] = {}
        self.key = ""
        self.look_at = -math.inf
        self.left_out = [place for place in range(size) if place not in connections]
        self._size = size
        self._sent = 0  # bytes of requests with late replies, ever
        self._places = {each.fileno: place for place, each in connections.items()}
        self._polls: dict[tuple[int, ...], select.poll] = {}
        self._poll = self.poll(tuple(connections))
        self._ways: dict[int, Way] = {}

    @property
    def is_whole(self) -> bool:
        """Whether no interruption has left the set dissolved in part."""
        return len(self.connections) + len(self.left_out) == self._size

    # -- late replies ---------------------------------------------------------------------------

    def is_well(self, patience: float) -> bool:
        """Read what has come since the last request; return whether all of it was expected.

        Args:
            patience: seconds for which a node may owe a reply. The set is not well with one that
                has for longer, or that owes replies to many bytes.
        """
        if not self.is_whole or self.odd:
            return False
        while ready := self._poll.poll(0):  # the end of a connection may be behind a reply
            for fileno, _ in ready:
                if not self._read_late(self._places[fileno]):
                    return False
        if not self.late:
            return True
        now = time.monotonic()
        for place, late in self.late.items():
            silent = now - max(late[0].start, self.connections[place].answered)
            if silent > patience or self._sent - late[0].before > BACKLOG:
                return False
        return True

    def _read_late(self, place: int) -> bool:
        connection = self.connections[place]
        try:
            data = connection.socket.recv(READ_SIZE)
        except BlockingIOError:
            return True
        except OSError:  # the next one to read it is told why
            return False
        connection.answered = time.monotonic()
        rest = self.settle(place, data)
        if rest or not data:
            self.odd[place] = rest
            return False
        return True

    def settle(self, place: int, data: bytes) -> bytes:
        """Take the late replies that a node has sent; return what comes behind them."""
        late = self.late.get(place)
        while late and data.startswith(late[0].usual):
            data = data[len(late[0].usual) :]
            late.popleft()
        if late is not None and not late:
            del self.late[place]
        return data

    def is_prompt(self, place: int, nonce: str) -> bool:
        """Return whether a node owes nothing, but perhaps the reply to the grant of this nonce."""
        late = self.late.get(place)
        return not late or (len(late) == 1 and late[0].request.nonce == nonce)

    def expect(
        self, request: Request, usual: bytes, start: float, size: int, *, heard: Collection[int]
    ) -> None:
        """Expect a reply from each node that was not heard; see ``LateReply``.

        Args:
            size: bytes of the request.
        """
        late = LateReply(request, usual, start, self._sent)
        self._sent += size
        for place in self.connections:
            if place not in heard:
                self.late.setdefault(place, deque()).append(late)

    def drop(self, request: Request) -> None:
        """Expect no reply to the last request after all: another keeps account of it."""
        for late in self.late.values():
            if late and late[-1].request is request:
                late.pop()

    @property
    def is_undone(self) -> bool:
        """Whether each grant with a late reply is followed by its undo.

        One node tells: a node that owes any reply owes the last one, and a set whose grant is not
        undone takes no other request.
        """
        late = next(iter(self.late.values()), None)
        return late is None or late[-1].request.command in UNDO

    def note_late(self) -> None:
        """Note on each connection what it owes, as if each request had been sent over it alone.

        What an interruption leaves noted twice puts the connection out of step, and ends it; what
        was not noted would be lost.
        """
        for place, late in self.late.items():
            while late:
                self.connections[place].note(late[0].pending())
                late.popleft()
        self.late.clear()
        while self.odd:
            place, data = self.odd.popitem()
            self.connections[place].take_in(data)

    # -- for an exchange ------------------------------------------------------------------------

    def poll(self, places: tuple[int, ...]) -> select.poll:
        """Return what polls these for something to read."""
        poll = self._polls.get(places)
        if poll is None:
            poll = select.poll()
            for place in places:
                poll.register(self.connections[place].fileno, select.POLLIN)
            if len(self._polls) < MOST_POLLS:
                self._polls[places] = poll
        return poll

    def way(self, first: int) -> Way:
        """Return the way of a request that goes to the node at ``first`` at first."""
        way = self._ways.get(first)
        if way is None:
            order = (*range(first, self._size), *range(first))
            ours = {place: self.connections[place] for place in order if place in self.connections}
            self._ways[first] = way = Way(
                tuple(ours),
                ours,
                [(place, each.socket.send, each.epoch) for place, each in ours.items()],
                {place: each.socket.recv for place, each in ours.items()},
            )
        return way


LOOK_EVERY: Final = 0.01  # seconds, at nodes that are left out
BY_SET: Final = frozenset({Command.GRANT, Command.RELEASE, Command.MARK, Command.UNMARK})
NOBODYS: Final = Claim("", bool, "")  # of a set that no request can claim now


def is_record_of_one(request: Request) -> bool:
    """Return True if a completion record for one name is to be written."""
    return isinstance(request, Complete) and request.count == 1


class ConnectionSets:
    """The sets of one group of nodes. All methods may be called by any thread."""

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self._nodes, self._timeout = nodes, timeout
        self._size, self._majority = len(nodes), majority_of(len(nodes))
        self.reset()
        for node in nodes:
            node.spare = self.dissolve_one

    def reset(self) -> None:
        """Forget them all, as a forked child must."""
        self._changing = threading.RLock()  # re-entrant: a signal handler may lock, too
        self._free: list[ConnectionSet] = []
        self._owing: dict[str, ConnectionSet] = {}  # by ``ConnectionSet.key``
        self._workers = WorkerThreads()

    # -- lending --------------------------------------------------------------------------------

    def lend(self, request: Request) -> ConnectionSet | None:
        """Return a set for this request, or None: it goes the general way."""
        command, nonce = request.command, request.nonce
        to_all = request.to is None or len(request.to) == self._size
        usual = to_all and not (request.thorough or events.node_watchers)
        if command in UNDO or command is Command.HEAL:  # a heal goes nowhere beside a late grant
            if nonce in self._owing:
                if usual and command in BY_SET:
                    return self._behind(request)
                self.give_up(nonce)
            for node in self._nodes:
                if (node.unanswered or node.lent) and node.has_unanswered(nonce):
                    return None
        if usual and (command in BY_SET or is_record_of_one(request)):
            return self._any(request)
        return None

    def give_up(self, nonce: str) -> None:
        """Dissolve the set that owes replies to this grant, so that its undo goes behind it."""
        if nonce in self._owing:
            with self._changing:
                lent = self._owing.get(nonce)
                if lent is not None and lent.request is None:
                    lent.request = NOBODYS  # no call since the look: a signal handler may lock, too
                    try:
                        self.dissolve(lent)
                    except BaseException:  # who claims it next dissolves the rest
                        lent.request = None
                        raise

    def reclaim(self, request: Request) -> None:
        """Dissolve the set that was about to be lent for a request that was interrupted."""
        with self._changing:
            for lent in tuple(self._owing.values()):
                if lent.request is request:
                    self.dissolve(lent)

    def _any(self, request: Request) -> ConnectionSet | None:
        """Return a set that owes nothing, or else the last one that owes only what is undone."""
        try:
            lent = self._free.pop()
        except IndexError:
            return self._last(request) if self._owing else None
        lent.request = request
        return self._usable(lent)

    def _behind(self, request: Request) -> ConnectionSet | None:
        """Return the set that owes replies to the grant that is undone."""
        with self._changing:
            lent = self._owing.get(request.nonce)
            if lent is None or lent.request is not None:
                return None
            lent.request = request  # no call since the look, as above
            return self._usable(lent)

    def _last(self, request: Request) -> ConnectionSet | None:
        """Return a set that has late replies to undone grants, or that has none any more.

        One with a late reply to a grant that is not undone ends, for its undo must come next.
        """
        with self._changing:
            for lent in list(self._owing.values())[::-1]:
                if lent.request is None:
                    lent.request = request  # no call since the look, as above
                    return self._usable(lent, undone=True)
            return None

    def _usable(self, lent: ConnectionSet, *, undone: bool = False) -> ConnectionSet | None:
        """Return a set that is claimed, or dissolve it if it is not usable.

        Args:
            undone: whether each grant with a late reply must be undone.
        """
        if self._is_usable(lent) and (lent.is_undone or not undone):
            return lent
        self.dissolve(lent)
        return None

    def _is_usable(self, lent: ConnectionSet) -> bool:
        """Return whether each connection is well, and its node has nothing to undo before."""
        for place in lent.connections:
            node = self._nodes[place]
            if node.undos.kept or node.duplicate_of:
                return False
        return lent.is_well(self._timeout) and not (lent.left_out and self._is_back(lent))

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

    def give(self, lent: ConnectionSet, exchange: Exchange) -> None:
        """Take a set back after an exchange, to which some nodes may not have replied yet."""
        whole = len(exchange.heard) == len(lent.connections)
        if whole and not lent.key:
            self._put(lent)
            return
        with self._changing:
            if not whole:
                exchange.leave()
            if lent.late:
                self._put_owing(lent, exchange.request)
            else:
                self._owing.pop(lent.key, None)
                lent.key = ""
                self._put(lent)

    def _put(self, lent: ConnectionSet) -> None:
        # First, and one step: once it is in the list another thread may have it. An interruption in
        # between forgets the set, to which every node has replied.
        lent.request = NOBODYS
        if len(self._free) < SPARE:
            self._free.append(lent)
        else:
            self.dissolve(lent)

    def _put_owing(self, lent: ConnectionSet, request: Request) -> None:
        key, lent.key = lent.key, request.nonce
        self._owing[lent.key] = lent
        if key and key != lent.key:
            self._owing.pop(key, None)
        if request.command in UNDO:
            self._workers.offer("late", self._attend, again=False)
        if len(self._owing) > SPARE:
            self._dissolve_owing()
        lent.request = None  # last: from here on another thread may have it

    def is_still_lent(self, lent: ConnectionSet, request: Request) -> bool:
        """Return whether an interrupted request has the set."""
        with self._changing:
            if lent.request is not request:
                return False
            self.forget(lent)
            lent.drop(request)
            return True

    def forget(self, lent: ConnectionSet) -> None:
        """Keep a set no more whose connections are taken over."""
        if lent.key:
            self._owing.pop(lent.key, None)

    def _attend(self) -> None:
        """Dissolve sets with overdue replies, so that undos are sent again; runs in a thread."""
        while any(lent.late for lent in tuple(self._owing.values())):
            time.sleep(SETTLE_EVERY)
            for lent in tuple(self._owing.values()):
                with self._changing:
                    if lent.request is None:
                        lent.request = NOBODYS  # no call since the look, as above
                        if lent.is_well(self._timeout):
                            lent.request = None
                        else:
                            self.dissolve(lent)

    def dissolve_one(self) -> None:
        """Give the connections of one set to the pools."""
        try:
            self.dissolve(self._free.pop())
        except IndexError:
            with self._changing:
                self._dissolve_owing()

    def _dissolve_owing(self) -> None:
        """Dissolve the set that has owed replies for the longest."""
        if (nonce := first(self._owing)) is not None:
            self.give_up(nonce)

    def close(self) -> None:
        """Give the connections of all sets to the pools."""
        while self._free:
            self.dissolve_one()
        for nonce in tuple(self._owing):
            self.give_up(nonce)

    def dissolve(self, lent: ConnectionSet) -> None:
        """Give the connections of a set that is claimed, or in no list, to the pools."""
        lent.note_late()
        now, nonce = time.monotonic(), lent.key or None
        while lent.connections:
            place, connection = lent.connections.popitem()
            self._nodes[place].give(connection, nonce, now)
        self.forget(lent)  # last: until then an undo waits for us
