"""Decide how long a refused run waits in its worker, and when its message comes back.

A message that is sent again costs the broker and two processes some work, and nobody starts it at
the moment of the release. A run that waits in the queue of the lock starts at once, but occupies
its process. So a run waits for a moment first: for up to a second, but in vain for no more than a
fifth of the time, and a moment for each message. Then its message comes back when it has
waited half as long again, so that it is late by half of the holder's time at the most.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MOST: Final = 1.0  # seconds that a run waits in its worker
LEAST: Final = 0.05  # seconds; about what sending a message again costs
ROOM: Final = 4.0  # times the longest wait that was worth it, and times a short body
RECOVERY: Final = 0.2  # seconds of patience that come back in each second
LATER: Final = 0.5  # the part of the time waited so far for which a message stays away
LEAST_PAUSE: Final = 0.5  # seconds
LONGEST_DOUBLING: Final = 10


class Patience:
    """For how long the runs of one function wait in this process; several threads may share it.

    What was waited in vain is taken off, and comes back with time.

    Args:
        clock: ``time.monotonic``, or another one in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left, self._since = MOST, clock()  # one after the other: a race costs a moment

    @property
    def seconds(self) -> float:
        """For which the next run waits."""
        regained = RECOVERY * (self._clock() - self._since)
        return min(MOST, max(LEAST, self._left + regained))

    def _set(self, seconds: float) -> None:
        self._left, self._since = seconds, self._clock()

    def was_worth_it(self, waited: float) -> None:
        """Note that a run got its lock after so many seconds."""
        self._set(min(MOST, max(self.seconds, ROOM * waited)))

    def was_held(self, seconds: float) -> None:
        """Note for how long a run had its lock: if that is short, a release is always near."""
        if ROOM * seconds <= MOST:
            self._set(max(self.seconds, ROOM * seconds))

    def was_in_vain(self, waited: float) -> None:
        """Note that a run waited for so many seconds and was refused."""
        self._set(max(0.0, self.seconds - waited))


class Turn:
    """One run's wait for its lock, and its body in a ``with`` block.

    Attributes:
        wait: seconds for which it may wait; None: as the lock says.
    """

    def __init__(self, patience: Patience | None) -> None:
        self._patience = patience
        self._began = time.monotonic()
        self.wait = None if patience is None else patience.seconds

    def _waited(self) -> float:
        return time.monotonic() - self._began

    def __enter__(self) -> None:
        """Note that the run has the lock."""
        if self._patience is not None:
            self._patience.was_worth_it(self._waited())
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._patience is not None:
            self._patience.was_held(self._waited())

    def passed(self) -> float:
        """Note that the run was refused; return the seconds for which it waited."""
        waited = self._waited()
        if self._patience is not None:
            self._patience.was_in_vain(waited)
        return waited


def pause_after(waited: float, most: float) -> float:
    """Return the seconds until a message comes back whose key is held.

    Args:
        waited: seconds for which it has waited so far.
        most: seconds, the longest pause.
    """
    pause = max(LEAST_PAUSE, LATER * waited)
    return random.uniform(0.5, 1.0) * min(pause, most)  # noqa: S311 - spreads, guards nothing


def pause_in_outage(times: int, most: float) -> float:
    """Return the seconds until a message comes back that found no majority, ``times`` before."""
    pause = 2.0 ** min(times, LONGEST_DOUBLING)
    return random.uniform(0.5, 1.0) * min(pause, most)  # noqa: S311 - as above
