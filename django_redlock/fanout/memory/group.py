"""A group of nodes in memory."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, ClassVar, Final

from django_redlock.concurrency.forking import reset_in_child
from django_redlock.core.protocol import Answer, Request, Vote
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.fanout.queue import Waiters
from django_redlock.transport.node import NodeStatus
from django_redlock.transport.wire.replies import ANOTHER, vote

from .node import MemoryNode
from .places import MemoryPlaces

if TYPE_CHECKING:
    from collections.abc import Sequence

DOWN: Final = because(ReasonCode.DOWN)


class MemoryNodes:
    """A group of nodes in memory, for all threads of one process."""

    _by_name: ClassVar[dict[str, MemoryNode]] = {}

    def __init__(self, nodes: Sequence[MemoryNode], labels: Sequence[str] = ()) -> None:
        self.nodes = tuple(nodes)
        self.labels = tuple(labels) or tuple(f"memory:{i}" for i in range(len(nodes)))
        self.down: set[int] = set()
        self._lock = threading.RLock()
        self._places = MemoryPlaces(self.nodes, self._lock)
        self._waiters = Waiters(self._places, 0.0)
        self.queue, self.aqueue = self._waiters.queue, self._waiters.aqueue
        reset_in_child(self)

    def reset(self) -> None:
        """Forget the waiters, as a forked child must; what is stored stays."""
        self._lock = threading.RLock()
        self._places.reset(self._lock)
        self._waiters.reset()

    @classmethod
    def named(cls, urls: Sequence[str]) -> MemoryNodes:
        """The nodes of these ``memory://NAME`` URLs; the same name is the same node."""
        return cls([cls._by_name.setdefault(url, MemoryNode()) for url in urls], urls)

    def ask(self, ask: Request) -> list[Vote]:
        """Put a request to the nodes and return one vote for each, in order."""
        with self._lock:
            return [self._vote(i, ask) for i in range(len(self.nodes))]

    def aask(self, ask: Request) -> asyncio.Future[list[Vote]]:
        """The same for a task."""
        answered: asyncio.Future[list[Vote]] = asyncio.get_running_loop().create_future()
        answered.set_result(self.ask(ask))
        return answered

    def _vote(self, i: int, ask: Request) -> Vote:
        label = self.labels[i]
        if ask.to is not None and i not in ask.to:
            return Vote(label, Answer.UNKNOWN, sent=False)
        if i in self.down:
            return Vote(label, Answer.UNKNOWN, reason=DOWN, sent=False)
        answer = self.nodes[i].eval(ask, ask.each[i] if ask.each else None)
        found = vote(ask, label, ask.nonce.encode(), answer)
        return found or Vote(label, Answer.UNKNOWN, reason=ANOTHER)

    def states(self) -> list[NodeStatus]:
        """What is known of each node."""
        return [
            NodeStatus(
                label,
                voting=i not in self.down,
                reason=DOWN if i in self.down else None,
                software="memory",
                role="master",
                guard_left=0.0,
            )
            for i, label in enumerate(self.labels)
        ]

    def close(self) -> None:
        """Nothing to close."""


__all__ = ["MemoryNode", "MemoryNodes"]
