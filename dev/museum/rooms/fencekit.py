"""fencekit 0.6.1, unchanged: a fence, on one server, and a row that refuses older fences."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

from redis import Redis

from dev.museum import faults
from dev.museum.cell import FENCES, LOST, TWO, Hold, Lock, Setup


class FenceKit:
    """Its waiting, its fence, and its `fenced_update`. It does not tell until when it is held."""

    def __init__(self, setup: Setup) -> None:
        from fencekit import DistributedLock

        self.locks = DistributedLock(Redis.from_url(setup.urls[0], decode_responses=True))
        self.name, self.ttl = setup.name, timedelta(seconds=setup.ttl)
        self.store = Row(self, setup.database)

    def acquire(self, wait: float) -> Hold | None:
        """With its pause of 50 ms between two tries."""
        from fencekit import LockNotAcquired

        until = timedelta(seconds=wait)
        try:
            self.handle = self.locks.acquire(self.name, ttl=self.ttl, blocking=True, wait=until)
        except LockNotAcquired:
            return None
        return Hold(fence=self.handle.token.value)

    def release(self) -> None:
        """It raises where the lock is another's."""
        from fencekit import LockNotOwned

        with contextlib.suppress(LockNotOwned):
            self.locks.release(self.handle)


class Row:
    """The number in a row with a fence. fencekit compares that in a write, not in a reading."""

    def __init__(self, lock: FenceKit, path: str) -> None:
        import django
        from django.conf import settings

        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": path,
            "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
        }
        settings.configure(DATABASES={"default": database})
        django.setup()
        from django.db import connection, models

        class Counter(models.Model):  # noqa: DJ008 - nobody prints it
            value = models.IntegerField(default=0)
            fence_token = models.BigIntegerField(default=0)

            class Meta:
                app_label = "museum"
                db_table = "counter"

        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS counter (id integer PRIMARY KEY,"
                " value integer NOT NULL, fence_token bigint NOT NULL)"
            )
            cursor.execute("INSERT OR IGNORE INTO counter VALUES (1, 0, 0)")
        self.lock = lock
        self.rows: Any = models.QuerySet(Counter).filter(pk=1)

    def read(self) -> int:
        return int(self.rows.get().value)

    def write(self, value: int) -> bool:
        """Write it, unless the row has a higher fence."""
        from fencekit import fenced_update

        done: Any = fenced_update(self.rows, self.lock.handle.token, updates={"value": value})
        return bool(done)


# -- what is counted -------------------------------------------------------------------------------

LOCK = Lock("fencekit", "fencekit 0.6.1", FenceKit, peer="fencekit")
REFUSED = (
    "It does not tell its user until when the lock is held. The row refuses the late write, because"
    " it has a higher fence: no update is lost."
)
ONLY_READ = (
    f"{faults.HOWEVER_LATE} The row refuses a fence when a higher one has written; here the higher"
    " one has only read."
)
SAME_FENCE = (
    "The counter is where the lock is: a server that starts empty gives the same fence again, and"
    " the row takes both."
)
CELLS = [
    *LOCK.holds(faults.turns),
    *LOCK.holds(faults.late_release, why=faults.COMPARED),
    LOCK.breaks(faults.paused, TWO, why=REFUSED),
    LOCK.breaks(faults.stopped_acquiring, TWO, LOST, FENCES, why=ONLY_READ),
    LOCK.breaks(faults.restarted, TWO, LOST, FENCES, why=SAME_FENCE),
]
