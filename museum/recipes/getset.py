"""SETNX with a time, and GETSET to take over: how locks got a ttl before SET could give one."""

from __future__ import annotations

import time

from .interface import Hold, Place
from .polling import client_of, poll


class SetnxGetset:
    """The key's value is the time at which the lock ends, by the clock of the client that set it.

    A client that finds a time in the past writes its own with GETSET, which returns the value
    before. It has the lock if that is still the one that it found: nobody was faster.
    """

    def __init__(self, place: Place) -> None:
        self.redis = client_of(place)
        self.key, self.ttl, self.point = place.name, place.ttl, place.point

    def acquire(self, wait: float) -> Hold | None:
        """Create the key, or take it over when its time has passed."""
        return Hold() if poll(self._attempt, wait) else None

    def _attempt(self) -> bool:
        ends = time.time() + self.ttl
        if self.redis.setnx(self.key, ends):
            return True
        found = self.redis.get(self.key)
        if found is None or float(found) > time.time():
            return False
        self.point("between GET and GETSET")
        return bool(self.redis.getset(self.key, ends) == found)

    def release(self) -> None:
        """Delete the key."""
        self.redis.delete(self.key)
