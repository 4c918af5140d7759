"""Limit how many requests of one process wait for a lock: each may keep a worker busy.

A request beyond the limit tries once, without waiting; a name that is free it gets. Turns are
counted by weak references, so one that an interruption left behind is forgotten with its request.
"""

from __future__ import annotations

import threading
import weakref
from typing import Final

from django_redlock.concurrency.forking import reset_in_child


class Turn:
    """How long a request waits for its lock.

    Attributes:
        wait: seconds.
        crowded: whether it would wait longer, and too many do.
        over: whether it waits no longer; set by its owner.
    """

    __slots__ = ("__weakref__", "crowded", "over", "wait")

    def __init__(self, wait: float, *, crowded: bool = False) -> None:
        self.wait = wait
        self.crowded = crowded
        self.over = False


class WaitingRequests:
    """The requests of this process that may be waiting, by alias."""

    def __init__(self) -> None:
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget the parent's requests, as a forked child must."""
        self._lock = threading.RLock()  # re-entrant: a signal handler may serve a request, too
        self._turns: dict[str, list[weakref.ref[Turn]]] = {}

    def turn(self, alias: str, wait: float, most: int | None) -> Turn:
        """Return the turn of a request.

        Args:
            alias: the alias of its lock.
            wait: seconds that it would wait.
            most: how many requests may wait; None: any number.
        """
        turn = Turn(wait)
        if wait <= 0 or most is None:
            return turn
        with self._lock:
            turns = [each for each in self._turns.get(alias, ()) if _is_waiting(each())]
            if len(turns) >= most:
                return Turn(0, crowded=True)
            self._turns[alias] = [*turns, weakref.ref(turn)]
        return turn


def _is_waiting(turn: Turn | None) -> bool:
    return turn is not None and not turn.over


waiting: Final = WaitingRequests()
