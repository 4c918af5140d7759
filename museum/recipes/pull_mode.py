"""The pull-mode lock: a client asks again and again until its time is over.

It has five parameters: D, for how long a client asks; S, the pause between two tries; TTL; RN, the
name of the resource and so of the key; RV, a random value, the owner's. And, unnamed, a sixth: for
how long a client waits for a reply.
"""

from __future__ import annotations

import secrets
import time

import redis

from .interface import Hold, Place
from .polling import client_of, milliseconds, poll
from .set_nx_px import UNLOCK

S = 0.1  # seconds


class PullMode:
    """A SET whose reply does not come counts as a refusal, though the server may have done it."""

    def __init__(self, place: Place) -> None:
        self.redis = client_of(place)
        self.name, self.ttl, self.point = place.name, place.ttl, place.point

    def acquire(self, wait: float) -> Hold | None:
        """SET RN RV NX PX TTL, every S seconds, for D seconds."""
        self.value = secrets.token_hex(16)
        return self._hold() if poll(self._attempt, wait, S) else None

    def _attempt(self) -> bool:
        try:
            return self._set()
        except redis.TimeoutError:
            return False

    def _set(self) -> bool:
        return bool(self.redis.set(self.name, self.value, nx=True, px=milliseconds(self.ttl)))

    def _hold(self) -> Hold:
        return Hold()

    def release(self) -> None:
        """Delete the key if its value is RV."""
        self.redis.eval(UNLOCK, 1, self.name, self.value)


class PullModeRecognising(PullMode):
    """After a reply that did not come it looks whether the key is its own; TTL counts from then."""

    def _attempt(self) -> bool:
        try:
            return self._set()
        except redis.TimeoutError:
            self.point("after a reply that did not come")
            return bool(self.redis.get(self.name) == self.value.encode())

    def _hold(self) -> Hold:
        return Hold(time.monotonic() + self.ttl)
