"""Connections to the nodes that are well, which one thread uses as one.

A request is written to all of them, and each reply is compared byte for byte with the one that
nearly every request gets. A set keeps no account of each connection meanwhile, so no other thread
may write to one (``Connection.in_set``). ``fanout.blocking.sets`` lends sets to threads, and
dissolves them into their connections.

A node may owe replies to earlier requests of the set. Each of them is expected as bytes, too; with
any other the set ends.
"""

from __future__ import annotations

import math
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.protocol import UNDO

from .connection import BACKLOG
from .pending import Asker, PendingReply, nobody

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from django_redlock.core.protocol import Request

    from .connection import Connection

READ_SIZE: Final = 65536
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

        A node owes the last request if it owes any, and only an undone grant is followed by others.
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
