"""The waiters of this process, for each queue: only the first goes to the nodes.

Waiters are held weakly. One that is forgotten, by whatever accident, has left.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, TypeAlias

from django_redlock.core.protocol import Waiter
from django_redlock.interruption import first

if TYPE_CHECKING:
    from collections.abc import Callable

Call: TypeAlias = "Callable[[], object]"
Queue: TypeAlias = "dict[weakref.ref[Waiter], Call | None]"  # None: knows that it is the first


class LocalQueue:
    """The queues of one process, for threads and tasks alike.

    Attributes:
        queues: those that have a waiter, by name.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget them all, as a forked child must."""
        self._changing = threading.RLock()  # re-entrant: collecting garbage may get here, too
        self.queues: dict[str, Queue] = {}

    def join(self, ticket: Waiter, call: Call) -> bool:
        """Join the queue; return whether as the first. Else ``call`` is called when that is so."""
        forgotten = functools.partial(self._remove, ticket.queue)
        with self._changing:
            self._forget_gone(ticket.queue)
            queue = self.queues.setdefault(ticket.queue, {})
            alone = not queue
            queue[weakref.ref(ticket, forgotten)] = None if alone else call
            return alone

    def is_first(self, ticket: Waiter) -> bool:
        """Return whether it is the first."""
        with self._changing:
            self._forget_gone(ticket.queue)
            return first(self.queues.get(ticket.queue, ())) == weakref.ref(ticket)

    def leave(self, ticket: Waiter) -> None:
        """Leave the queue, and call the one that is first then.

        May be called again, where an interruption came between the two.
        """
        self._remove(ticket.queue, weakref.ref(ticket))

    def _forget_gone(self, name: str) -> None:
        """Drop the first ones that are forgotten: an interruption kept them from leaving."""
        while (oldest := first(self.queues.get(name, ()))) and oldest() is None:
            self._remove(name, oldest)

    def _remove(self, name: str, reference: weakref.ref[Waiter]) -> None:
        with self._changing:
            queue = self.queues.get(name, {})
            queue.pop(reference, None)
            self._call_first(queue)
            if not queue:
                self.queues.pop(name, None)

    def _call_first(self, queue: Queue) -> None:
        """Call the first, unless it knows; those that are gone leave the queue."""
        while found := first(queue.items()):
            waiter, call = found
            if call is None:
                return
            if _called(call):
                if waiter in queue:  # else it left while it was called
                    queue[waiter] = None
                return
            queue.pop(waiter, None)


def _called(call: Call) -> bool:
    try:
        call()
    except RuntimeError:  # its event loop has been closed
        return False
    return True
