"""The connections of this process to one node: checked out, checked in, set aside while they hang.

A connection belongs to one caller at a time; between calls it lies in ``_free``. One with an
overdue answer is set ``_stalled``: while a node has one it is *silent*, gets no new requests, and
costs nothing. When the answers arrive after all, the node is back. A connection on which a grant is
unanswered is remembered by the grant's nonce (``_owing``), so that the undo can stand behind it.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from django_redlock.concurrency.threads import WorkerThreads

from .pending import nobody
from .undo_queue import UndoQueue

if TYPE_CHECKING:
    from .connection import Connection
    from .pending import Asker

SPARE: Final = 64  # idle channels kept per node
UNDOS_FIRST: Final = 32_768  # bytes that may go before a question, which is to be taken, too
LONGEST_SPOILED: Final = 1.0  # seconds for which an undo may still come after an interruption


class Pool:
    """The connections to one node. All methods may be called by any thread.

    Attributes:
        label: ``host:port/db``.
        timeout: seconds that the node may take to answer.
        trouble: why it is not to be waited for, or "".
        unconnected: its trouble while it is only slow to be connected.
        undos: what is still to be undone there.
    """

    def __init__(self, label: str, timeout: float) -> None:
        self.label = label
        self.timeout = timeout
        self.unconnected = f"no connection within {timeout:g} s"

    def reset(self) -> None:
        """Forget every socket, as a forked child must; they are closed without a farewell."""
        self._lock = threading.RLock()  # re-entrant: a signal handler may lock, too
        self._free: list[Connection] = []
        self._stalled: list[Connection] = []
        self._owing: dict[str, Connection] = {}
        self._lent: weakref.WeakSet[Connection] = weakref.WeakSet()  # to event loops
        self.undos = UndoQueue(self)
        self._crew = WorkerThreads()
        self.down_reason = ""

    def connection(self, *, at_least: float) -> Connection | None:
        """A channel for the background; see ``Node.connection``."""
        raise NotImplementedError

    def close(self) -> None:
        """Close every connection that nobody is using."""
        with self._lock:
            idle = [*self._free, *self._stalled, *self._owing.values()]
            self._free, self._stalled, self._owing = [], [], {}
        for channel in idle:
            channel.undone = None
            channel.close("closed")

    @property
    def down(self) -> bool:
        """Whether it is known to be down; else it may be this machine that is slow to connect."""
        return self.down_reason not in ("", self.unconnected)

    # -- checking out and in ---------------------------------------------------------------------

    def take(self, now: float) -> Connection | None:
        """A channel for a new question, or None: see ``down_reason``, or open one.

        What is still to be undone goes first: it may be our own key that is in the way.
        """
        channel = self._take(now)
        if channel is not None and self.undos:
            self.undos.send(channel.send, now, most=UNDOS_FIRST)
        return channel

    def _take(self, now: float) -> Connection | None:
        with self._lock:
            if self._stalled:
                self._look_aside(now)
            while self._free and not self._stalled:
                channel = self._free.pop()
                if not (channel.owed or channel.guarded or channel.fault):
                    return channel
                if channel.silent_for(now) > self.timeout:
                    channel.read()
                if channel.fault:
                    continue
                if channel.silent_for(now) > self.timeout:
                    self._stalled.append(channel)
                    self.down_reason = "no answer"
                elif channel.guarded and now >= channel.votes_from:
                    channel.close("the restart guard is over: look again")
                else:
                    return channel
        return None

    def take_behind(self, nonce: str, now: float) -> tuple[Connection | None, bool]:
        """A channel to undo ``nonce`` on, and whether it is the caller's alone.

        Behind the grant, if that is still unanswered: overtaking it would undo nothing.
        """
        with self._lock:
            channel = self._owing.pop(nonce, None)
            if channel is not None and not channel.fault and _owes(channel, nonce):
                for shelf in (self._free, self._stalled):
                    if channel in shelf:
                        shelf.remove(channel)
                        return channel, True
                return channel, bool(channel.spoiled)
            channel = self._lent_owing(nonce)
            if channel is not None:
                return channel, False
            channel = self.take(now)
            if channel is None and self._stalled:
                channel = self._stalled.pop()  # it comes back there: see give()
            return channel, True

    def elsewhere(self, nonce: str, mine: Connection | None) -> Connection | None:
        """Another channel than a loop's own, to undo ``nonce`` behind its unanswered grant."""
        if nonce not in self._owing and len(self._lent) <= (mine is not None):
            return None
        with self._lock:
            channel = self._owing.pop(nonce, None)
            if channel is not None and not (channel.fault or channel.spoiled or channel is mine):
                return channel if _owes(channel, nonce) else None
            return self._lent_owing(nonce, mine)

    def _lent_owing(self, nonce: str, mine: Connection | None = None) -> Connection | None:
        if not self._lent:  # looking through it is slow
            return None
        for channel in self._lent:
            if channel is not mine and not channel.fault and _owes(channel, nonce):
                return channel
        return None

    def check_out(self, channel: Connection) -> None:
        """Note that an event loop has the channel."""
        with self._lock:
            self._lent.add(channel)

    def check_in(self, channel: Connection) -> None:
        """Note that it has it no more."""
        with self._lock:
            self._lent.discard(channel)

    def give(self, channel: Connection, nonce: str | None, now: float) -> None:
        """Take a channel back; ``nonce``: a grant that it may still owe an answer for."""
        owes = nonce is not None and bool(channel.owed) and _owes(channel, nonce)
        if channel.spoiled and not owes:
            channel.close("interrupted")
        if channel.unsent and not (channel.fault or channel.flush()):
            channel.close("takes no more data")
        if channel.fault:
            return
        if channel.owed and channel.undoing_until() > now:
            self._crew.offer("undo", self.undos.work, again=False)
        with self._lock:
            if owes and nonce is not None:
                self._remember(nonce, channel)
            if channel.spoiled:
                return
            if channel.silent_for(now) > self.timeout:
                self._stalled.append(channel)
                self.down_reason = self.down_reason or "no answer"
                return
            if not self._stalled:
                self.down_reason = ""  # it answers, whatever became of further connections
            self._keep(channel)

    def _keep(self, channel: Connection) -> None:
        if len(self._free) < SPARE:
            self._free.append(channel)
        else:
            channel.close("more connections than needed")

    def _remember(self, nonce: str, channel: Connection) -> None:
        if channel.spoiled:
            self._close_spoiled()
        if len(self._owing) >= 4 * SPARE:
            self._owing = {
                nonce: channel
                for nonce, channel in self._owing.items()
                if not channel.fault and _owes(channel, nonce)
            }
        self._owing[nonce] = channel

    def _close_spoiled(self) -> None:
        """Close what was kept for an undo that did not come: it was interrupted, too."""
        latest = time.monotonic() - LONGEST_SPOILED
        for nonce, channel in tuple(self._owing.items()):
            if channel.spoiled and channel.spoiled < latest:
                del self._owing[nonce]
                channel.close("interrupted")

    def _look_aside(self, now: float) -> None:
        for channel in tuple(self._stalled):
            channel.read()
            if channel.fault or not channel.owed:
                self._stalled.remove(channel)
                if not channel.fault:
                    self._free.append(channel)
                self.down_reason = ""
        if self._stalled:
            silent = max(channel.silent_for(now) for channel in self._stalled)
            self.down_reason = f"no answer for {silent:.2f} s"

    def settle(self, now: float) -> bool:
        """Read the idle connections; whether an answer to something that undoes is missing still.

        That answer may be an error, or never come since the connection is broken: then it is
        to be undone once more, though nobody may ever use the connection again.
        """
        with self._lock:
            self._look_aside(now)
            for channel in tuple(self._free):
                if channel.owed:
                    channel.read()
                if channel.fault:
                    self._free.remove(channel)
            idle = (*self._free, *self._stalled)
        return any(channel.owed and channel.undoing_until() > now for channel in idle)

    def undo_later(self, asker: Asker) -> None:
        """Have something undone that the node has not answered, as soon as it can be asked."""
        nonce = asker.ask.nonce
        channel = self._owing.pop(nonce, None)
        if channel is not None and not channel.fault and _owes(channel, nonce):
            sent = channel.send(asker.again(nobody, time.monotonic()))
            if channel.spoiled:
                channel.close("interrupted")
            elif sent:
                return
        self.undos.add(asker)
        self._crew.offer("undo", self.undos.work, again=False)


def _owes(channel: Connection, nonce: str) -> bool:
    return channel.owes(nonce.encode())
