"""A group of nodes in memory, and standing in their queues."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, ClassVar

from django_redlock.concurrency.forking import reset_in_child
from django_redlock.concurrency.latches import Latch
from django_redlock.core.protocol import (
    Answer,
    BlockOnNode,
    JoinQueue,
    LeaveQueue,
    Request,
    Vote,
    Waiter,
    Wakeup,
)
from django_redlock.fanout.local_queue import LocalQueue
from django_redlock.transport.node import NodeStatus
from django_redlock.transport.wire.replies import asked, vote

from .node import MemoryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _Place:
    """Somebody's place in a queue."""

    def __init__(self, node: MemoryNode, ticket: Waiter) -> None:
        self.node = node
        self._ticket = weakref.ref(ticket)
        self.wakeup = ""
        self.tell: Callable[[], object] = bool

    def take(self, wakeup: str) -> bool:
        """Be woken, unless whoever stood here is gone."""
        if self._ticket() is None:
            return False
        self.wakeup = wakeup
        self.tell()
        return True


class MemoryStanding:
    """Who stands where, for the threads and the tasks of this process."""

    def __init__(self, nodes: Sequence[MemoryNode], lock: threading.RLock) -> None:
        self._nodes = nodes
        self._lock = lock
        self._lines = LocalQueue()
        self._places: weakref.WeakKeyDictionary[Waiter, _Place] = weakref.WeakKeyDictionary()

    def reset(self, lock: threading.RLock) -> None:
        """Forget everybody, as a forked child must: its parent's threads are not there to wake."""
        self._lock = lock
        self._lines.reset()
        self._places = weakref.WeakKeyDictionary()
        for node in self._nodes:
            node.standing.clear()

    def queue(self, effect: JoinQueue | BlockOnNode | LeaveQueue) -> bool | Wakeup | str:
        """Wait in line, stand or leave, by blocking."""
        done = Latch()
        done.wait(self._begin(effect, done.set))
        return self._end(type(effect), effect.ticket)

    def aqueue(
        self, effect: JoinQueue | BlockOnNode | LeaveQueue
    ) -> asyncio.Future[bool | Wakeup | str]:
        """The same for a task."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool | Wakeup | str] = loop.create_future()
        # Weakly, so that a task which is dropped has left.
        kind, waiting, standing = type(effect), weakref.ref(future), weakref.ref(effect.ticket)

        def finish() -> None:
            future, ticket = waiting(), standing()
            if future is not None and ticket is not None and not future.done():
                future.set_result(self._end(kind, ticket))

        seconds = self._begin(effect, lambda: loop.call_soon_threadsafe(finish))
        if seconds <= 0:
            finish()
        elif seconds < threading.TIMEOUT_MAX:
            timer = loop.call_later(seconds, finish)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def _begin(
        self, effect: JoinQueue | BlockOnNode | LeaveQueue, tell: Callable[[], object]
    ) -> float:
        """Begin, and have ``tell`` called; for how many seconds it is worth waiting for that."""
        ticket = effect.ticket
        if isinstance(effect, JoinQueue):
            return 0.0 if self._lines.join(ticket, tell) else effect.seconds
        if not isinstance(effect, BlockOnNode):
            self._lines.leave(ticket)
            return 0.0
        with self._lock:
            place, node = self._places.get(ticket), self._nodes[effect.place]
            if place is None or place.node is not node:
                self._forget(ticket)
                place = self._places[ticket] = _Place(node, ticket)
                node.stand(ticket.queue, place.take)
            place.tell = tell
            return 0.0 if place.wakeup else effect.seconds

    def _end(self, kind: type[object], ticket: Waiter) -> bool | Wakeup | str:
        if kind is JoinQueue:
            return self._lines.is_first(ticket)
        with self._lock:
            if kind is LeaveQueue:
                return self._forget(ticket)
            wakeup = self._places[ticket].wakeup
        if wakeup:
            self._lines.leave(ticket)
        return Wakeup(wakeup)

    def _forget(self, ticket: Waiter) -> str:
        place = self._places.pop(ticket, None)
        if place is None:
            return ""
        place.node.leave(ticket.queue, place.take)
        return place.wakeup


class MemoryNodes:
    """A group of nodes in memory, for all threads of one process."""

    _by_name: ClassVar[dict[str, MemoryNode]] = {}

    def __init__(self, nodes: Sequence[MemoryNode], labels: Sequence[str] = ()) -> None:
        self.nodes = tuple(nodes)
        self.labels = tuple(labels) or tuple(f"memory:{i}" for i in range(len(nodes)))
        self.down: set[int] = set()
        self._lock = threading.RLock()
        self._waiters = MemoryStanding(self.nodes, self._lock)
        self.queue, self.aqueue = self._waiters.queue, self._waiters.aqueue
        reset_in_child(self)

    def reset(self) -> None:
        """Forget who waits, as a forked child must; what is stored stays."""
        self._lock = threading.RLock()
        self._waiters.reset(self._lock)

    @classmethod
    def named(cls, urls: Sequence[str]) -> MemoryNodes:
        """The nodes of these ``memory://NAME`` URLs; the same name is the same node."""
        return cls([cls._by_name.setdefault(url, MemoryNode()) for url in urls], urls)

    def ask(self, ask: Request) -> list[Vote]:
        """Put a question to the nodes and return one vote for each, in order."""
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
            return Vote(label, Answer.UNKNOWN, why="down", sent=False)
        answer = self.nodes[i].eval(ask, ask.each[i] if ask.each else None)
        found = vote(label, ask.command, ask.nonce.encode(), answer, asked(ask))
        return found or Vote(label, Answer.UNKNOWN, why="answered another question")

    def states(self) -> list[NodeStatus]:
        """What is known of each node."""
        return [
            NodeStatus(
                label,
                voting=i not in self.down,
                why="down" if i in self.down else "",
                software="memory",
                role="master",
                guard_left=0.0,
            )
            for i, label in enumerate(self.labels)
        ]

    def close(self) -> None:
        """Nothing to close."""


__all__ = ["MemoryNode", "MemoryNodes"]
