"""Wait, in a thread, for the nodes that are being connected in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_redlock.concurrency.listening import Listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_redlock.fanout.votes import VoteCollector
    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import ConnectAttempt


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
