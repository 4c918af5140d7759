"""Who waits in this process, for each queue: only the first of a line goes to the nodes.

Tickets are held weakly. Whoever forgets one, by whatever accident, has left the line.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, TypeAlias

from django_redlock.core.protocol import Waiter

if TYPE_CHECKING:
    from collections.abc import Callable

Call: TypeAlias = "Callable[[], object]"
Queue: TypeAlias = "dict[weakref.ref[Waiter], Call | None]"  # None: knows that it is the first


class LocalQueue:
    """The lines of one process, for threads and tasks alike."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget them all, as a forked child must."""
        self._changing = threading.RLock()  # re-entrant: collecting garbage may get here, too
        self._lines: dict[str, Queue] = {}

    def join(self, ticket: Waiter, call: Call) -> bool:
        """Stand in line; whether as the first. Else ``call`` is called when that is so."""
        forgotten = functools.partial(self._remove, ticket.queue)
        with self._changing:
            self._forget_gone(ticket.queue)
            line = self._lines.setdefault(ticket.queue, {})
            first = not line
            line[weakref.ref(ticket, forgotten)] = None if first else call
            return first

    def is_first(self, ticket: Waiter) -> bool:
        """Whether nobody stands before it."""
        with self._changing:
            self._forget_gone(ticket.queue)
            return next(iter(self._lines.get(ticket.queue, ())), None) == weakref.ref(ticket)

    def leave(self, ticket: Waiter) -> None:
        """Leave the line, and call who is first then.

        May be called again, where an interruption came between the two.
        """
        self._remove(ticket.queue, weakref.ref(ticket))

    def _forget_gone(self, queue: str) -> None:
        """Drop the first ones that are forgotten: an interruption kept them from leaving."""
        while (first := next(iter(self._lines.get(queue, ())), None)) and first() is None:
            self._remove(queue, first)

    def _remove(self, queue: str, reference: weakref.ref[Waiter]) -> None:
        with self._changing:
            line = self._lines.get(queue, {})
            line.pop(reference, None)
            self._call_first(line)
            if not line:
                self._lines.pop(queue, None)

    def _call_first(self, line: Queue) -> None:
        """Call the first, unless it knows; those who are gone leave the line."""
        while line:
            first, call = next(iter(line.items()))
            if call is None:
                return
            if _called(call):
                line[first] = None
                return
            del line[first]


def _called(call: Call) -> bool:
    try:
        call()
    except RuntimeError:  # its event loop has been closed
        return False
    return True
