"""Keep connections to all nodes as sets, to be lent whole while all nodes are well.

A set is only a shorter way to ask. ``BlockingRequest`` is the definition of what is right, and goes
on where something is out of the ordinary (``threads``).

* A set is made of the connections of a request that left none with something to do (``form``).
* A set whose last nodes have not replied is kept for the undo of that grant, which goes behind it,
  and then serves others; a node that owes a reply is written to, and not waited for. The set ends
  with a reply that was not expected, and with one that is overdue.
* A forked child forgets all sets, as it does all connections.
* A signal handler's exception ends a set; the undo that follows goes behind the grant.
* Where more threads ask than there are sets, the others go the general way, and make more sets.
* A caller that finds no idle connection in a pool, as an event loop may, has a set dissolved
  (``spare``).
* A node that is known to be down is left out; when it is back, the set is dissolved.
* TLS goes the general way: its layer may have data that poll does not see.
* So does a request to some of the nodes only, every command that is not in ``BY_SET``, and each
  request while somebody watches the nodes.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from django_redlock import events
from django_redlock.concurrency.threads import WorkerThreads
from django_redlock.core.commands import Claim, Complete
from django_redlock.core.protocol import UNDO, Command, Request
from django_redlock.core.quorum import majority_of
from django_redlock.interruption import first
from django_redlock.transport.connection_set import ConnectionSet
from django_redlock.transport.node import SETTLE_EVERY, SPARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_redlock.transport.connection import Connection
    from django_redlock.transport.exchange import Exchange
    from django_redlock.transport.node import Node

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
