"""Decide how long a refused run waits in its worker, and when its message comes back.

A message that is sent again costs the broker and two processes some work, and nobody starts it at
the moment of the release. A run that waits in the queue of the lock starts at once, but occupies
its process. So a run waits for a moment first: for up to a second, but in vain for no more than a
fifth of the time, and a moment for each message. Then its message comes back when it has
waited half as long again, so that it is late by half of the holder's time at the most.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Final

from celery import Task
from celery.utils.quorum_queues import detect_quorum_queues

from django_redlock.core.errors import LockTaken, NodesUnavailable

MOST: Final = 1.0  # seconds that a run waits in its worker
LEAST: Final = 0.05  # seconds; about what sending a message again costs
ROOM: Final = 4.0  # times the longest wait that was worth it, and times a short body
RECOVERY: Final = 0.2  # seconds of the budget that come back in each second
LATER: Final = 0.5  # the part of the time waited so far for which a message stays away
LEAST_PAUSE: Final = 0.5  # seconds
LONGEST_PAUSE: Final = 60.0  # seconds
LONGEST_DOUBLING: Final = 10
VISIBILITY_TIMEOUT: Final = 3600.0  # seconds, of a Redis broker that is told nothing else


# -- in the worker --------------------------------------------------------------------------------


class WaitBudget:
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

    def note_grant(self, waited: float) -> None:
        """Learn from a run that got its lock after so many seconds: it was worth it."""
        self._set(min(MOST, max(self.seconds, ROOM * waited)))

    def note_body(self, seconds: float) -> None:
        """Learn from a run that had its lock for so long: if it is short, a release is near."""
        if ROOM * seconds <= MOST:
            self._set(max(self.seconds, ROOM * seconds))

    def note_refusal(self, waited: float) -> None:
        """Take off what a run has waited in vain."""
        self._set(max(0.0, self.seconds - waited))


class RunWait:
    """One run's wait for its lock, and its body in a ``with`` block.

    Args:
        budget: None where the lock's own ``wait`` counts, and nothing is learned.

    Attributes:
        seconds: for which it may wait; None: as the lock says.
    """

    def __init__(self, budget: WaitBudget | None) -> None:
        self._budget = budget
        self._began = time.monotonic()
        self.seconds = None if budget is None else budget.seconds

    def __enter__(self) -> None:
        now = time.monotonic()
        if self._budget is not None:
            self._budget.note_grant(now - self._began)
        self._began = now

    def __exit__(self, *_: object) -> None:
        if self._budget is not None:
            self._budget.note_body(time.monotonic() - self._began)

    def refuse(self) -> float:
        """End the wait without the lock; return the seconds for which it lasted."""
        waited = time.monotonic() - self._began
        if self._budget is not None:
            self._budget.note_refusal(waited)
        return waited


# -- in the queue of the broker -------------------------------------------------------------------


def pause(task: Task, refusal: LockTaken | NodesUnavailable, times: int, waited: float) -> float:
    """Return the seconds until a refused message comes back.

    Args:
        times: how often it has come back before.
        waited: seconds for which it has waited so far.
    """
    # A worker keeps a message with a countdown unacknowledged. If the broker took it for lost
    # meanwhile, each copy would be sent again, and the copies would multiply.
    longest = min(LONGEST_PAUSE, visibility_timeout(task) / 2)
    if isinstance(refusal, NodesUnavailable):
        seconds = pause_in_outage(times, longest)
    else:
        left = refusal.retry_after  # of the holder
        seconds = pause_after(waited, longest if left is None else min(max(left, 0.1), longest))
    return max(seconds, least_countdown(task))


def least_countdown(task: Task) -> float:
    """Return the shortest countdown that Celery can send, in seconds.

    Where one queue of the application is a quorum queue, RabbitMQ itself delays messages, for whole
    seconds, and Celery raises ValueError for less than one.
    """
    driver = task.app.producer_pool.connections.connection.transport.driver_type
    return 1.0 if detect_quorum_queues(task.app, driver)[0] else 0.0


def pause_after(waited: float, most: float) -> float:
    """Return the seconds, ``most`` at the most, for a message that waits for a holder."""
    seconds = max(LEAST_PAUSE, LATER * waited)
    return random.uniform(0.5, 1.0) * min(seconds, most)  # noqa: S311 - spreads, guards nothing


def pause_in_outage(times: int, most: float) -> float:
    """Return the seconds, ``most`` at the most, for a message that found no majority."""
    seconds = 2.0 ** min(times, LONGEST_DOUBLING)
    return random.uniform(0.5, 1.0) * min(seconds, most)  # noqa: S311 - as above


def visibility_timeout(task: Task) -> float:
    """Return the seconds after which the broker takes an unacknowledged message for lost."""
    timeout = (task.app.conf.broker_transport_options or {}).get("visibility_timeout")
    if isinstance(timeout, int | float) and 0 < timeout < math.inf:
        return float(timeout)
    return VISIBILITY_TIMEOUT
