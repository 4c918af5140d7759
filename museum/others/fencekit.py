"""fencekit: a lock with a fence, on one server, and a row of Django that refuses older fences."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import django
from django.conf import settings
from fencekit import (
    DistributedLock,
    LockHandle,
    LockNotAcquired,
    LockNotOwned,
    fenced_update,
)
from redis import Redis

from museum.recipes.interface import Hold, Place


class FenceKit:
    """Its waiting, its fence, and its `fenced_update`. It does not tell until when it is held."""

    def __init__(self, place: Place) -> None:
        self.locks = DistributedLock(Redis.from_url(place.urls[0], decode_responses=True))
        self.name, self.ttl = place.name, timedelta(seconds=place.ttl)
        self.handle: LockHandle | None = None
        self.store = Row(self, f"{place.store}.sqlite3")

    def acquire(self, wait: float) -> Hold | None:
        """With its pause of 50 ms between two tries."""
        try:
            self.handle = self.locks.acquire(
                self.name, ttl=self.ttl, blocking=True, wait=timedelta(seconds=wait)
            )
        except LockNotAcquired:
            return None
        return Hold(fence=self.handle.token.value)

    def extend(self) -> Hold | None:
        """For its ttl from now on."""
        assert self.handle is not None
        try:
            self.locks.extend(self.handle, ttl=self.ttl)
        except LockNotOwned:
            return None
        return Hold(fence=self.handle.token.value)

    def release(self) -> None:
        """It raises where the lock is another's."""
        assert self.handle is not None
        with contextlib.suppress(LockNotOwned):
            self.locks.release(self.handle)


class Row:
    """The number in a row with a fence. fencekit compares that in a write, not in a reading."""

    def __init__(self, lock: FenceKit, path: str) -> None:
        self._lock = lock
        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": path,
            "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
        }
        settings.configure(DATABASES={"default": database})
        django.setup()
        from django.db import connection, models

        class Guarded(models.Model):  # noqa: DJ008 - nobody prints it
            value = models.IntegerField(default=0)
            fence_token = models.BigIntegerField(default=0)

            class Meta:
                app_label = "museum"
                db_table = "guarded"

        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS guarded (id integer PRIMARY KEY,"
                " value integer NOT NULL, fence_token bigint NOT NULL)"
            )
            cursor.execute("INSERT OR IGNORE INTO guarded VALUES (1, 0, 0)")
        self._rows: Any = models.QuerySet(Guarded).filter(pk=1)

    def read(self) -> int:
        """Return the number."""
        return int(self._rows.get().value)

    def write(self, value: int) -> bool:
        """Write it, unless the row has a higher fence."""
        assert self._lock.handle is not None
        token = self._lock.handle.token
        done: bool = fenced_update(self._rows, token, updates={"value": value})
        return done
