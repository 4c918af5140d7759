"""A place in the queue of a node in memory."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from django_redlock.core.protocol import Wakeup
from django_redlock.fanout.queue import Place
from django_redlock.interruption import Latch

if TYPE_CHECKING:
    import asyncio
    import threading
    from collections.abc import Callable, Sequence

    from django_redlock.core.protocol import BlockOnNode

    from .node import MemoryNode


class MemoryPlaces:
    """Places in the queues of nodes in memory."""

    def __init__(self, nodes: Sequence[MemoryNode], lock: threading.RLock) -> None:
        self._nodes = nodes
        self._lock = lock

    def reset(self, lock: threading.RLock) -> None:
        """Forget everybody, as a forked child must: its parent's threads are not there to wake."""
        self._lock = lock
        for node in self._nodes:
            node.blocked.clear()

    def open(self, effect: BlockOnNode) -> MemoryPlace:
        """Take a place, for a thread; see ``Places``."""
        return MemoryPlace(self._nodes[effect.place], effect, self._lock)

    def aopen(
        self,
        effect: BlockOnNode,
        loop: asyncio.AbstractEventLoop,  # noqa: ARG002 - others need it
        *,
        wanted: Callable[[], bool],  # noqa: ARG002 - as above
        then: Callable[[MemoryPlace], object],
    ) -> float:
        """Take a place, for a task; see ``Places``."""
        then(self.open(effect))
        return effect.seconds


class MemoryPlace(Place):
    """A waiter's place in a queue of one node, until it is woken or leaves."""

    def __init__(self, node: MemoryNode, effect: BlockOnNode, lock: threading.RLock) -> None:
        super().__init__(effect.place)
        self._node = node
        self._queue = effect.ticket.queue
        self._ticket = weakref.ref(effect.ticket)
        self._lock = lock
        self._wakeup = ""
        self._woken = Latch()
        self._loop: asyncio.AbstractEventLoop | None = None
        with lock:
            node.block(self._queue, self._take)

    def _take(self, wakeup: str) -> bool:
        """Wake the waiter; False if it is gone: a dead waiter would consume the wake-up."""
        if self._ticket() is None:
            return False
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:  # the loop is closed
                return False
        self._wakeup = wakeup
        self._woken.set()
        return True

    def _tell(self) -> None:
        if self.told is not None:
            self.told()

    def outcome(self) -> Wakeup | None:
        """Return the outcome; None while the place is kept."""
        return Wakeup(self._wakeup) if self._wakeup else None

    def wait(self, seconds: float) -> None:
        """Block until it is woken, for at most so long."""
        self._woken.wait(seconds)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``told`` called in an event loop."""
        self._loop = loop

    def withdraw(self, *, looped: bool) -> bool:  # noqa: ARG002 - others need it
        """Leave the queue at once."""
        self.end()
        return False

    def end(self) -> None:
        """Leave the queue."""
        with self._lock:
            self._node.leave(self._queue, self._take)

    abandon = end
