"""Limit how often equal lines are logged."""

from __future__ import annotations

import math
import threading
from time import monotonic
from typing import Final

from django_redlock.concurrency.forking import reset_in_child

EVERY: Final = 60.0  # seconds from one line to the next


class LogThrottle:
    """Admit one of many equal lines in a minute, and count those that are left out."""

    def __init__(self) -> None:
        self._due = -math.inf
        self._left_out = 0
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Make the lock anew, as a forked child must."""
        self._lock = threading.RLock()  # re-entrant: a signal handler may log, too

    def admit(self) -> int | None:
        """Return how many lines were left out before this one; None: leave this one out, too."""
        with self._lock:
            now = monotonic()
            if now < self._due:
                self._left_out += 1
                return None
            self._due = now + EVERY
            left_out, self._left_out = self._left_out, 0
            return left_out
