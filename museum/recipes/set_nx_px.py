"""SET NX PX, one command for key and ttl: what Redis' documentation shows for one server."""

from __future__ import annotations

import secrets

from .interface import Hold, Place
from .polling import client_of, milliseconds, poll

UNLOCK = """
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
end
return 0
"""


class SetDel:
    """SET NX PX to lock, DEL to unlock: the key of another client too."""

    def __init__(self, place: Place) -> None:
        self.redis = client_of(place)
        self.key, self.ttl = place.name, milliseconds(place.ttl)

    def acquire(self, wait: float) -> Hold | None:
        """Create the key with its ttl."""
        return Hold() if poll(self._attempt, wait) else None

    def _attempt(self) -> object:
        return self.redis.set(self.key, "locked", nx=True, px=self.ttl)

    def release(self) -> None:
        """Delete the key."""
        self.redis.delete(self.key)


class CompareAndDelete(SetDel):
    """SET NX PX with a random value, and a script that deletes the key only with that value."""

    def _attempt(self) -> object:
        self.value = secrets.token_hex(16)
        return self.redis.set(self.key, self.value, nx=True, px=self.ttl)

    def release(self) -> None:
        """Delete the key if it is still our own."""
        self.redis.eval(UNLOCK, 1, self.key, self.value)
