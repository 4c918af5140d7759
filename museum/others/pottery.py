"""pottery's Redlock."""

from __future__ import annotations

import contextlib
import time

from pottery import ExtendUnlockedLock, Redlock, ReleaseUnlockedLock

from museum.recipes.interface import Hold, Place

from .servers import clients_of


class Pottery:
    """It waits by itself, and tells when asked how long it still has the lock."""

    def __init__(self, place: Place) -> None:
        self.lock = Redlock(
            key=place.name, masters=set(clients_of(place)), auto_release_time=place.ttl
        )

    def acquire(self, wait: float) -> Hold | None:
        """It looks at ``timeout`` before each attempt: 0 would be none at all."""
        had = self.lock.acquire(timeout=wait) if wait else self.lock.acquire(blocking=False)
        return self._hold() if had else None

    def extend(self) -> Hold | None:
        """For its ttl from now on."""
        try:
            self.lock.extend()
        except ExtendUnlockedLock:
            return None
        return self._hold()

    def release(self) -> None:
        """It raises where a majority does not have the lock."""
        with contextlib.suppress(ReleaseUnlockedLock):
            self.lock.release()

    def _hold(self) -> Hold:
        asked = time.monotonic()
        return Hold(asked + self.lock.locked())
