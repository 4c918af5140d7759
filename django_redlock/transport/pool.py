"""The connections of this process to one node: in use, idle, or stalled.

A connection is of one caller at a time, or in ``_free``. One with an overdue reply is stalled:
while a node has one, the node is *silent*, gets no new requests, and costs no time. When the reply
arrives after all, the node is back. A connection that owes the reply to a grant is kept by the
grant's nonce in ``unanswered``, so that the undo can be sent behind it.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from django_redlock.concurrency.threads import WorkerThreads
from django_redlock.core.reasons import Reason, ReasonCode, because
from django_redlock.interruption import drain, remove, taken

from .pending import nobody, undoing_until
from .silence import silence
from .undo_queue import UndoQueue
from .wire.faults import CLOSED, GUARD_OVER, INTERRUPTED, SURPLUS, TAKES_NO_MORE, no_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .connection import Connection
    from .pending import Asker

SPARE: Final = 64  # idle connections kept per node
UNDOS_FIRST: Final = 32_768  # bytes of undos sent before a request: both must have room
LONGEST_SPOILED: Final = 1.0  # seconds for which an undo may still come after an interruption


class Pool(ABC):
    """The connections to one node. All methods may be called by any thread.

    Attributes:
        label: ``host:port/db``.
        timeout: seconds that the node may take to reply.
        down_reason: why callers do not wait for the node; None if they do.
        unconnected, unopened: the reason while connecting takes too long; why it failed, or None.
        unanswered: the connections that owe the reply to a grant, by its nonce.
        lent: the connections that event loops have.
        undos: the undos that the node has not carried out.
        spare: called where no connection is idle; may make some so.
    """

    def __init__(self, label: str, timeout: float) -> None:
        self.label = label
        self.timeout = timeout
        self.unconnected = because(ReasonCode.CONNECTING, seconds=timeout)
        self.spare: Callable[[], object] = bool

    def reset(self) -> None:
        """Forget every socket, as a forked child must; nothing is sent on them."""
        self._lock = threading.RLock()  # re-entrant: a signal handler may lock, too
        self._free: list[Connection] = []
        self._stalled: list[Connection] = []
        self.unanswered: dict[str, Connection] = {}
        self.lent: weakref.WeakKeyDictionary[Connection, None] = weakref.WeakKeyDictionary()
        self.undos = UndoQueue(self)
        self._workers = WorkerThreads()
        self.down_reason: Reason | None = None
        self.unopened: Reason | None = None

    @abstractmethod
    def connection(self, *, at_least: float) -> Connection | None:
        """Return a connection for the background; see ``Node.connection``."""

    def close(self) -> None:
        """Close every connection that is not in use."""
        pops = self._free.pop, self._stalled.pop, lambda: self.unanswered.popitem()[1]
        for connection in drain(*pops):
            connection.undone = None
            connection.close(CLOSED)

    @property
    def down(self) -> bool:
        """Tell whether the node is known to be down; this machine may just be slow to connect."""
        return self.down_reason not in (None, self.unconnected)

    @property
    def why_unasked(self) -> Reason:
        """Return why a request went without a connection to the node."""
        return self.down_reason or self.unopened or self.unconnected

    # -- checking out and in ---------------------------------------------------------------------

    def take(self, now: float, *, spare: bool = True) -> Connection | None:
        """Return a connection for a new request, or None: see ``down_reason``, or open one.

        Kept undos are sent first: the key of an earlier attempt may be in the way. With ``spare``
        it may come from a set, if no other is idle.
        """
        if spare and not (self._free or self._stalled):
            self.spare()  # not under our lock: it takes those of other nodes
        connection = self._take(now)
        if connection is not None and self.undos.kept:
            self.undos.send(connection.send, now, most=UNDOS_FIRST)
        return connection

    def _take(self, now: float) -> Connection | None:
        with self._lock:
            if self._stalled:
                self._read_stalled(now)
            while not self._stalled and (connection := taken(self._free.pop)) is not None:
                if not (connection.owed or connection.guarded or connection.fault):
                    return connection
                if (silent := connection.silent_for(now)) > self.timeout:
                    connection.read()
                    silent = silence(connection, now, self.timeout)
                if connection.fault:
                    continue
                if silent > self.timeout:
                    self._stalled.append(connection)
                    self.down_reason = no_answer(silent)
                elif connection.guarded and now >= connection.votes_from:
                    connection.close(GUARD_OVER)
                else:
                    return connection
        return None

    def take_behind(
        self, nonce: str, now: float, have: Callable[[Connection], object]
    ) -> tuple[Connection | None, bool]:
        """Return a connection to undo ``nonce`` on, and whether the caller alone has it.

        It is the one that owes the reply to the grant, if any: an undo that overtakes its grant
        undoes nothing.

        Args:
            have: called with a connection that the caller alone has.
        """
        with self._lock:
            connection = self.unanswered.get(nonce)
            if connection is not None and not connection.fault and _owes(connection, nonce):
                try:
                    ours = self._forget(connection) or bool(connection.spoiled)
                    if ours:
                        have(connection)
                except BaseException:  # a signal handler's: only the next undo may still use it
                    connection.spoiled = time.monotonic()
                    self._forget(connection)
                    raise
                self.unanswered.pop(nonce, None)  # nobody may ever give back one that is not ours
                return connection, ours
            self.unanswered.pop(nonce, None)
            if connection := self._lent_owing(nonce):
                return connection, False
        connection = self.take(now)
        with self._lock:
            if connection is None and self._stalled:
                connection = self._stalled.pop()  # it is stalled again: see give()
        if connection is not None:
            have(connection)
        return connection, True

    def _forget(self, connection: Connection) -> bool:
        return remove(connection, self._free) or remove(connection, self._stalled)

    def has_unanswered(self, nonce: str) -> bool:
        """Return whether a connection here, or of an event loop, owes the reply to this grant."""
        with self._lock:
            connection = self.unanswered.get(nonce)
            owes = connection is not None and not connection.fault and _owes(connection, nonce)
            return owes or self._lent_owing(nonce) is not None

    def is_back(self) -> bool:
        """Return whether a node that was known to be down has a connection again."""
        with self._lock:
            if self._stalled:
                self._read_stalled(time.monotonic())
        return not self.down_reason

    def elsewhere(self, nonce: str, mine: Connection | None) -> Connection | None:
        """Return another connection than a loop's own, to undo ``nonce`` behind its grant, or None.

        There can be one only if the nonce is in ``unanswered``, or another loop has one ``lent``.
        """
        with self._lock:
            connection = self.unanswered.pop(nonce, None)
            if connection is not None and not (
                connection.fault or connection.spoiled or connection is mine
            ):
                return connection if _owes(connection, nonce) else None
            return self._lent_owing(nonce, mine)

    def _lent_owing(self, nonce: str, mine: Connection | None = None) -> Connection | None:
        if not self.lent:  # looking through it is slow
            return None
        for reference in self.lent.keyrefs():  # a list: a signal handler may run an event loop
            each = reference()
            if each and each is not mine and not each.fault and _owes(each, nonce):
                return each
        return None

    def check_out(self, connection: Connection) -> None:
        """Note that an event loop has the connection."""
        with self._lock:
            self.lent[connection] = None

    def check_in(self, connection: Connection) -> None:
        """Note that no event loop has the connection any more."""
        with self._lock:
            self.lent.pop(connection, None)

    def expect(self, connection: Connection, nonce: str) -> None:
        """Note that a connection in use has a heal: an undo of another thread must go behind it.

        A grant needs no such note: its caller alone can undo it, and only after ``give``.
        """
        with self._lock:
            self._remember(nonce, connection)

    def give(self, connection: Connection, nonce: str | None, now: float) -> None:
        """Take a connection back, which may still owe the reply to the grant of ``nonce``."""
        connection.in_set = False
        owes = nonce is not None and bool(connection.owed) and _owes(connection, nonce)
        if connection.spoiled and not owes:
            connection.close(INTERRUPTED)
        if connection.unsent and not (connection.fault or connection.flush()):
            connection.close(TAKES_NO_MORE)
        if nonce is not None and not owes and self.unanswered.get(nonce) is connection:
            self.unanswered.pop(nonce, None)  # ``expect`` noted it
        if connection.fault:
            return
        if connection.owed and undoing_until(connection.owed) > now:
            self._workers.offer("undo", self.undos.work, again=False)
        with self._lock:
            if owes and nonce is not None:
                self._remember(nonce, connection)
            if connection.spoiled:
                self._forget(connection)
                return
            if (silent := silence(connection, now, self.timeout)) > self.timeout:
                self._stalled.append(connection)
                self.down_reason = self.down_reason or no_answer(silent)
                return
            if not self._stalled:
                self.down_reason = None  # the node replies, even if another connection failed
            self._keep(connection)

    def _keep(self, connection: Connection) -> None:
        if len(self._free) < SPARE:
            self._free.append(connection)
        else:
            connection.close(SURPLUS)

    def _remember(self, nonce: str, connection: Connection) -> None:
        if connection.spoiled:
            self._close_spoiled()
        if len(self.unanswered) >= 4 * SPARE:
            for other, owing in self.unanswered.copy().items():
                if owing.fault or not _owes(owing, other):
                    self.unanswered.pop(other, None)
        self.unanswered[nonce] = connection

    def _close_spoiled(self) -> None:
        """Close connections kept for an undo that did not come: it was interrupted, too."""
        latest = time.monotonic() - LONGEST_SPOILED
        for nonce, connection in self.unanswered.copy().items():
            if 0 < connection.spoiled < latest:
                self.unanswered.pop(nonce, None)
                connection.close(INTERRUPTED)

    def _read_stalled(self, now: float) -> None:
        """Read each stalled connection; one that owes nothing more is free."""
        for connection in _read_each(self._stalled, tuple(self._stalled)):
            if connection.owed:
                self._stalled.append(connection)
                continue
            if not connection.fault:
                self._free.append(connection)
            self.down_reason = None
        silent = [each.silent_for(now) for each in tuple(self._stalled)]
        why = no_answer(max(silent, default=0.0))
        if self._stalled:  # no call from here on: a signal handler may find that the node is back
            self.down_reason = why

    def settle(self, now: float) -> bool:
        """Read the idle connections; return whether the reply to an undo is still missing.

        That reply may be an error, or never come since the connection is broken: then the undo is
        sent once more, even if no caller uses the connection again.
        """
        with self._lock:
            self._read_stalled(now)
            doubtful = [each for each in self._free if each.owed or each.fault]
            for connection in _read_each(self._free, doubtful):
                if not connection.fault:
                    self._free.insert(0, connection)
            idle = (*self._free, *self._stalled)
        return any(connection.owed and undoing_until(connection.owed) > now for connection in idle)

    def undo_later(self, asker: Asker) -> None:
        """Send an undo that the node has not carried out once more, as soon as possible."""
        nonce = asker.ask.nonce
        connection = self.unanswered.pop(nonce, None)
        if connection is not None and not connection.fault and _owes(connection, nonce):
            sent = connection.send(asker.again(nobody, time.monotonic()))
            if connection.spoiled:
                connection.close(INTERRUPTED)
            elif sent:
                return
        self.undos.add(asker)
        self._workers.offer("undo", self.undos.work, again=False)


def _owes(connection: Connection, nonce: str) -> bool:
    return connection.owes(nonce.encode())


def _read_each(idle: list[Connection], some: Iterable[Connection]) -> Iterator[Connection]:
    """Yield some of the connections of a list, each taken out of it first, and read then."""
    for connection in some:
        try:
            if remove(connection, idle):
                connection.read()
                yield connection
        except BaseException:  # a signal handler's; the connection may be in no list now
            connection.close(INTERRUPTED)
            raise
