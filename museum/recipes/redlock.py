"""Ours, on the same servers as the others."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from .interface import Hold, Place

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease


class Ours:
    """django_redlock with the settings that a project would have; a lease is not renewed."""

    def __init__(self, place: Place) -> None:
        import django
        from django.conf import settings

        self.place = place
        settings.configure(**self.settings())
        django.setup()
        logging.getLogger("django_redlock").addHandler(logging.NullHandler())  # the history tells
        from django_redlock import redlock

        self._lock = redlock.using(**self.options())(place.name)
        self.lease: Lease | None = None

    def settings(self) -> dict[str, Any]:
        """Return the project's settings."""
        return {"REDLOCK": {"default": self.alias()}}

    def alias(self) -> dict[str, Any]:
        """Return those of the locks."""
        return {
            "NODES": list(self.place.urls),
            "TTL": self.place.ttl,
            "MAX_TTL": self.place.ttl,
            "CLOCK_SKEW": 0.1,
            "NODE_TIMEOUT": self.place.timeout,
            "RENEW": False,
        }

    def options(self) -> dict[str, Any]:
        """Return those of the lock."""
        return {}

    def acquire(self, wait: float) -> Hold | None:
        """Wait in the queue of the servers."""
        from django_redlock import LockTaken, NodesUnavailable

        try:
            self.lease = self._lock.acquire(wait=wait)
        except (LockTaken, NodesUnavailable):
            return None
        return self.hold(self.lease)

    def extend(self) -> Hold | None:
        """Prolong the lease."""
        from django_redlock import LeaseLost

        assert self.lease is not None
        try:
            self.lease.extend()
        except LeaseLost:
            return None
        return self.hold(self.lease)

    def release(self) -> None:
        """Release it."""
        assert self.lease is not None
        self.lease.release()

    def hold(self, lease: Lease) -> Hold:
        """Return what the lease says of itself."""
        return Hold(time.monotonic() + lease.remaining(), lease.fence)


class OursRenewed(Ours):
    """With the watchdog, as by default, which goes on for one ttl."""

    def alias(self) -> dict[str, Any]:
        """Return the settings of the locks."""
        return super().alias() | {"RENEW": True, "MAX_HOLD": self.place.ttl}

    def options(self) -> dict[str, Any]:
        """Return those of the lock."""
        return {"on_lost": lambda _: self.place.lost()}

    def hold(self, lease: Lease) -> Hold:
        """Return a hold that lasts until it is released, or told to be lost."""
        return Hold(None, lease.fence)
