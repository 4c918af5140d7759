"""redlock-py; it cannot extend."""

from __future__ import annotations

import math
import time

from redlock import Lock, MultipleRedlockException, Redlock

from museum.recipes.interface import Hold, Place

from .servers import clients_of


class RedlockPy:
    """It waits by retries; where it raises because of a server, its user asks again."""

    def __init__(self, place: Place) -> None:
        self.servers, self.place = clients_of(place), place

    def acquire(self, wait: float) -> Hold | None:
        """Ask as often as its delay between two attempts allows."""
        end = time.monotonic() + wait
        while True:
            left = max(0.0, end - time.monotonic())
            tries = max(1, math.ceil(left / Redlock.default_retry_delay))
            self.redlock = Redlock(self.servers, retry_count=tries)
            try:
                lock = self.redlock.lock(self.place.name, int(self.place.ttl * 1000))
            except MultipleRedlockException:
                if time.monotonic() >= end:
                    raise
                time.sleep(Redlock.default_retry_delay)
                continue
            if not lock:
                return None
            self.lock: Lock = lock
            return Hold(time.monotonic() + lock.validity / 1000)

    def release(self) -> None:
        """It never tells whether there was something to release."""
        self.redlock.unlock(self.lock)
