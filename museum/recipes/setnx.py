"""SETNX, the first lock with Redis: the client that creates the key has the lock."""

from __future__ import annotations

import math

from .interface import Hold, Place
from .polling import client_of, poll


class SetnxDel:
    """SETNX to lock, DEL to unlock. Nothing ends the lock of a client that died."""

    def __init__(self, place: Place) -> None:
        self.redis = client_of(place)
        self.key = place.name

    def acquire(self, wait: float) -> Hold | None:
        """Create the key."""
        return Hold() if poll(lambda: self.redis.setnx(self.key, 1), wait) else None

    def release(self) -> None:
        """Delete the key."""
        self.redis.delete(self.key)


class SetnxExpire(SetnxDel):
    """SETNX, and then EXPIRE, so that the lock of a client that died ends by itself."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.point, self.seconds = place.point, math.ceil(place.ttl)

    def acquire(self, wait: float) -> Hold | None:
        """Create the key, and then say when it ends: two commands."""
        if not poll(lambda: self.redis.setnx(self.key, 1), wait):
            return None
        self.point("between SETNX and EXPIRE")
        self.redis.expire(self.key, self.seconds)
        return Hold()
