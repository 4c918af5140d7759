"""The undos that one node has not carried out, and the thread that sends them again.

A release may find no connection to a node, lose its connection, or get an error as the reply. The
name would then be taken on that node until its ttl is over. So the undo is kept until the node has
replied, or its keys have expired; the next connection that is checked out carries it first. If none
is, a background thread sends it.
"""

from __future__ import annotations

import logging
import math
import select
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from django_redlock.core.protocol import Answer
from django_redlock.interruption import first

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_redlock.core.protocol import Vote

    from .connection import Connection
    from .pending import Asker, PendingReply

logger = logging.getLogger("django_redlock")

MOST: Final = 65_536  # undos kept for one node …
MOST_BYTES: Final = 32 * 1024 * 1024  # … and about how much memory their names may take
LEAST_PAUSE: Final = 0.05  # seconds before a node that replied with an error is asked again …
MOST_PAUSE: Final = 2.0  # … growing to this
SETTLE_EVERY: Final = 0.25  # seconds after which replies are read for which no caller waits
PATIENCE: Final = 1.0  # seconds that a node may take for a reply for which no caller waits


class Reached(Protocol):
    """What the queue uses of its ``Node``."""

    label: str

    def settle(self, now: float) -> bool:
        """Read idle connections; return whether a reply is still missing."""

    def connection(self, *, at_least: float) -> Connection | None:
        """Return a connection for the background, or None."""

    def give(self, connection: Connection, nonce: str | None, now: float) -> None:
        """Take a connection back."""


class UndoQueue:
    """The undos kept for one node, oldest first, one for each nonce.

    Attributes:
        kept: their callers, by nonce.
        dropped: how many were given up since the queue was last empty, because it was full.
    """

    def __init__(self, node: Reached) -> None:
        self._node = node
        self._lock = threading.RLock()  # re-entrant: a signal handler may lock, too
        self.kept: dict[str, Asker] = {}
        self._bytes = 0
        self._from = -math.inf  # time.monotonic before which nothing is sent, after an error
        self._pause = 0.0
        self.dropped = 0

    def add(self, asker: Asker) -> None:
        """Keep an undo; if there are too many, drop the oldest: its keys expire first."""
        asker.leave()
        nonce, size = asker.ask.nonce, _size(asker)
        with self._lock:
            if nonce not in self.kept:
                self._bytes += size
            self.kept[nonce] = asker
            while (len(self.kept) > MOST or self._bytes > MOST_BYTES) and (old := self._oldest()):
                self._remove(old)
                self.dropped += 1
                if self.dropped == 1:
                    logger.warning(
                        "%s: too many releases wait for this node; some names stay taken there "
                        "until their ttl is over",
                        self._node.label,
                        extra={"redlock_node": self._node.label},
                    )

    def send(
        self, put: Callable[[PendingReply], bool], now: float, *, most: float = math.inf
    ) -> None:
        """Send what a connection takes; the rest is kept for the next one.

        Two threads may do so at the same time, and send an undo twice: that does no harm. No lock
        is held meanwhile, for a connection that breaks calls ``add``.

        Args:
            most: bytes.
        """
        while most > 0 and now >= self._from and (asker := self._oldest()) is not None:
            if now < asker.until:
                owed = asker.again(self._answered, now)
                if not put(owed):
                    return
                most -= len(owed.packed)
            self._remove(asker)

    def _oldest(self) -> Asker | None:
        with self._lock:
            return first(self.kept.values())

    def _remove(self, asker: Asker) -> None:
        size, dropped = _size(asker), 0
        with self._lock:
            if self.kept.pop(asker.ask.nonce, None) is not None:
                self._bytes -= size
            if not self.kept:  # no call from here on: a signal handler may add one
                dropped, self._bytes, self.dropped = self.dropped, 0, 0
        if dropped:
            logger.warning(
                "%s: %d releases were given up while it could not be asked",
                self._node.label,
                dropped,
                extra={"redlock_node": self._node.label},
            )

    def _answered(self, _: int, vote: Vote) -> None:
        """Take the vote on an undo; after an error (full, loading, busy …) wait before the next."""
        if vote.answer is not Answer.UNKNOWN:
            self._pause, self._from = 0.0, -math.inf
        else:
            self._pause = min(MOST_PAUSE, max(LEAST_PAUSE, 2 * self._pause))
            self._from = time.monotonic() + self._pause

    # -- in the background ----------------------------------------------------------------------

    def work(self) -> None:
        """Send all undos until they are carried out; runs in a background thread."""
        while True:
            self._drop_ended(time.monotonic())
            if not self.kept:
                time.sleep(SETTLE_EVERY)
                if not (self.kept or self._node.settle(time.monotonic())):
                    return
                continue
            connection = self._node.connection(at_least=self._from)
            if connection is None:
                time.sleep(LEAST_PAUSE)
                continue
            try:
                self._converse(connection)
            finally:
                self._node.give(connection, None, time.monotonic())

    def _drop_ended(self, now: float) -> None:
        while (asker := self._oldest()) is not None and now >= asker.until:
            self._remove(asker)

    def _converse(self, connection: Connection) -> None:
        """Send and read until there is no more to do, or the node does not reply."""
        poll = select.poll()
        while not connection.fault:
            now = time.monotonic()
            self.send(connection.send, now)
            if not connection.owed or connection.silent_for(now) > PATIENCE:
                return
            poll.register(
                connection.fileno, select.POLLIN | (select.POLLOUT if connection.unsent else 0)
            )
            poll.poll(PATIENCE * 1000)
            connection.read()


def _size(asker: Asker) -> int:
    """Return about how many bytes the names of an undo take."""
    return 512 + 2 * sum(map(len, asker.ask.keys))
