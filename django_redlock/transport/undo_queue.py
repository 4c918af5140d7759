"""What is still to be undone at one node, and the thread that sees to it.

A release may find no connection to a node, lose the one that it had, or be answered with an error.
The name would then stay taken at that node until its ttl is over. So what was to be undone is kept
until the node has answered, or has dropped the keys by itself; the next connection that is used
carries it first, and where nobody uses one, a thread in the background does.
"""

from __future__ import annotations

import logging
import math
import select
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from django_redlock.core.protocol import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_redlock.core.protocol import Vote

    from .connection import Connection
    from .pending import Asker, PendingReply

logger = logging.getLogger("django_redlock")

MOST: Final = 65_536  # questions kept for one node …
MOST_BYTES: Final = 32 * 1024 * 1024  # … and about how much memory their names may take
LEAST_PAUSE: Final = 0.05  # seconds before a node that answered with an error is asked again …
MOST_PAUSE: Final = 2.0  # … growing to this
SETTLE_EVERY: Final = 0.25  # seconds after which answers are read that nobody has waited for
PATIENCE: Final = 1.0  # seconds that a node may take for an answer that nobody waits for


class Reached(Protocol):
    """A ``Node``, as far as its queue uses it."""

    label: str

    def settle(self, now: float) -> bool:
        """Read idle connections; whether an answer is missing still."""

    def connection(self, *, at_least: float) -> Connection | None:
        """A connection for the background, or None."""

    def give(self, channel: Connection, nonce: str | None, now: float) -> None:
        """Take it back."""


class UndoQueue:
    """Questions that undo, in the order in which they were asked, one for each nonce.

    Attributes:
        dropped: how many were given up since the queue was last empty, because it was full.
    """

    def __init__(self, node: Reached) -> None:
        self._node = node
        self._lock = threading.RLock()  # re-entrant: a signal handler may lock, too
        self._kept: dict[str, Asker] = {}
        self._bytes = 0
        self._from = -math.inf  # time.monotonic: an error was answered, not to be asked before
        self._pause = 0.0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, asker: Asker) -> None:
        """Keep a question; where there are too many, the oldest is dropped: it ends first."""
        asker.leave()
        with self._lock:
            nonce = asker.ask.nonce
            if nonce not in self._kept:
                self._bytes += _size(asker)
            self._kept[nonce] = asker
            while len(self._kept) > MOST or self._bytes > MOST_BYTES:
                self._remove(next(iter(self._kept.values())))
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
        """Put on a connection what it takes; the rest stays for the next one, or its answers.

        Two may do so at the same time, and send something twice: that harms nobody. No lock is
        held meanwhile, for a connection that breaks comes back here.

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
            return next(iter(self._kept.values()), None)

    def _remove(self, asker: Asker) -> None:
        with self._lock:
            if self._kept.pop(asker.ask.nonce, None) is not None:
                self._bytes -= _size(asker)
            if not self._kept:
                self._tell_dropped()
                self._bytes = self.dropped = 0

    def _tell_dropped(self) -> None:
        if self.dropped:
            logger.warning(
                "%s: %d releases were given up while it could not be asked",
                self._node.label,
                self.dropped,
                extra={"redlock_node": self._node.label},
            )

    def _answered(self, _: int, vote: Vote) -> None:
        """Hear what became of one; an error (it is full, loading, busy …) slows the next down."""
        if vote.answer is not Answer.UNKNOWN:
            self._pause, self._from = 0.0, -math.inf
        else:
            self._pause = min(MOST_PAUSE, max(LEAST_PAUSE, 2 * self._pause))
            self._from = time.monotonic() + self._pause

    # -- in the background ----------------------------------------------------------------------

    def work(self) -> None:
        """See to it that all is undone; run by a thread of its own."""
        while True:
            self._drop_ended(time.monotonic())
            if not self._kept:
                time.sleep(SETTLE_EVERY)
                if not (self._kept or self._node.settle(time.monotonic())):
                    return
                continue
            channel = self._node.connection(at_least=self._from)
            if channel is None:
                time.sleep(LEAST_PAUSE)
                continue
            try:
                self._converse(channel)
            finally:
                self._node.give(channel, None, time.monotonic())

    def _drop_ended(self, now: float) -> None:
        while (asker := self._oldest()) is not None and now >= asker.until:
            self._remove(asker)

    def _converse(self, channel: Connection) -> None:
        """Send and read until there is no more to do, or the node does not answer."""
        poll = select.poll()
        while not channel.fault:
            now = time.monotonic()
            self.send(channel.send, now)
            if not channel.owed or channel.silent_for(now) > PATIENCE:
                return
            poll.register(channel.fileno, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
            poll.poll(PATIENCE * 1000)
            channel.read()


def _size(asker: Asker) -> int:
    """About how many bytes its names take."""
    return 512 + 2 * sum(map(len, asker.ask.keys))
