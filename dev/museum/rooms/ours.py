"""Ours, on the same servers as the others, with the settings that a project would have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from dev.museum import faults
from dev.museum.cell import LOST, TWO, Hold, Lock, Setup

from . import checked_set, counter, permits

if TYPE_CHECKING:
    from django_redlock.fencing import FencedRows
    from django_redlock.leases.lease import Lease

# -- the recipes -----------------------------------------------------------------------------------


class Ours:
    """A lock whose lease is not renewed."""

    def __init__(self, setup: Setup) -> None:
        import django
        from django.conf import settings

        self.setup = setup
        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": setup.database,
            "OPTIONS": {"timeout": 30},
        }
        settings.configure(
            REDLOCK={"default": self.alias()},
            DATABASES={"default": database},
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            INSTALLED_APPS=["django_redlock"],
        )
        django.setup()
        from django_redlock import redlock

        self.lock = redlock(setup.name)
        self.lease: Lease | None = None

    def alias(self) -> dict[str, Any]:
        """Return the settings of the locks."""
        return {
            "NODES": list(self.setup.urls),
            "TTL": self.setup.ttl,
            "MAX_TTL": self.setup.ttl,
            "CLOCK_SKEW": 0.1,
            "NODE_TIMEOUT": self.setup.timeout,
            "RENEW": False,
        }

    def acquire(self, wait: float) -> Hold | None:
        """Wait in the queue of the servers."""
        from django_redlock import LockTaken, NodesUnavailable

        try:
            self.lease = self.lock.acquire(wait=wait)
        except (LockTaken, NodesUnavailable):
            return None
        return self.hold(self.lease)

    def hold(self, lease: Lease) -> Hold:
        """Return what the lease says of itself."""
        return Hold(time.monotonic() + lease.remaining(), lease.fence)

    def release(self) -> None:
        assert self.lease is not None
        self.lease.release()


class OursRenewed(Ours):
    """With the watchdog, as by default, which goes on for one ttl."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from django_redlock import redlock

        self.lock = redlock(setup.name, on_lost=lambda _: setup.lost())

    def alias(self) -> dict[str, Any]:
        return super().alias() | {"RENEW": True, "MAX_HOLD": self.setup.ttl}

    def hold(self, lease: Lease) -> Hold:
        """Return a hold that lasts until it is released, or told to be lost."""
        return Hold(None, lease.fence)


class Fenced(Ours):
    """A holder claims the row before it reads, and writes what it has claimed."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.store = FencedRow(self)


class FencedRow:
    """The row, by ``fenced()``."""

    def __init__(self, client: Ours) -> None:
        from django.db import connection, models

        from django_redlock.fencing import FenceField

        class Counter(models.Model):  # noqa: DJ008 - nobody prints it
            value = models.BigIntegerField(default=0)
            fence = FenceField()

            objects: ClassVar[models.Manager[Any]] = models.Manager()

            class Meta:
                app_label = "museum"
                db_table = "counter"

        if "counter" not in connection.introspection.table_names():
            with connection.schema_editor() as editor:
                editor.create_model(Counter)
        Counter.objects.get_or_create(pk=1)
        self.client, self.rows = client, Counter.objects.filter(pk=1)
        self.claimed: FencedRows[Any] | None = None

    def read(self) -> int:
        """Claim the row and read it."""
        from django_redlock.fencing import fenced

        assert self.client.lease is not None
        self.claimed = fenced(self.client.lease, self.rows)
        return int(self.claimed.get().value)

    def write(self, value: int) -> bool:
        """Write it; False: a later holder has claimed it."""
        from django_redlock.fencing import StaleFence

        assert self.claimed is not None
        try:
            self.claimed.update(value=value)
        except StaleFence:
            return False
        return True


class Limited(Ours):
    """A lock that up to k may hold: k slots, each of which is an ordinary lock."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from django_redlock import redlock

        self.lock = redlock(setup.name, limit=setup.limit)

    def acquire(self, wait: float) -> Hold | None:
        """Stop, where a fault wants it, before the check: it is in one step with the grant."""
        self.setup.point(checked_set.CHECKED)
        return super().acquire(wait)

    def hold(self, lease: Lease) -> Hold:
        """Return its end only: each slot has fences of its own."""
        return super().hold(lease)._replace(fence=None)


# -- what is counted -------------------------------------------------------------------------------


def _lock(key: str, title: str, recipe: type[Ours], servers: int = 3, limit: int = 1) -> Lock:
    return Lock(key, title, recipe, servers=servers, limit=limit, is_guarded=True)


RENEWED = _lock("django-redlock-renewed", "django-redlock, renewed", OursRenewed)
OURS = _lock("django-redlock", "django-redlock", Ours)
FENCED = _lock("django-redlock-fenced", "django-redlock, fenced", Fenced)
LIMITED = _lock("django-redlock-limit", "django-redlock, limit", Limited, servers=5, limit=2)
JUMPS = (
    "The key of a server whose clock jumps is gone before its time, and connections that are older "
    "than the jump do not see it."
)
ONE_VOTE = "A server has one vote for each slot, and no two have a majority for the same one."
LATER_ONE = "Two believe to hold the lock, and the row takes the writes of the later one only."
LIMITED_CELLS = [
    *LIMITED.holds(faults.full, faults.crowd, faults.killed_of_several, permits.given_back_late),
    *LIMITED.holds(counter.each_in_its_order, why=ONE_VOTE),
    *LIMITED.holds(checked_set.both_checked, checked_set.clock_jumps),
]
CELLS = [
    *RENEWED.holds(faults.one_by_one, faults.hangs),
    *OURS.holds(
        *faults.USUAL,
        faults.late_release,
        faults.minority,
        faults.restarted,
        faults.failover_lagging,
    ),
    *OURS.holds(
        faults.lost_reply,
        faults.clock_ahead,
        faults.stopped_acquiring,
        faults.release_on_its_way,
        faults.restarted_one,
    ),
    *OURS.holds(faults.split, faults.server_clock_seen),
    OURS.breaks(faults.paused, LOST, why=faults.LATE_WRITE),
    OURS.breaks(faults.writes_between, LOST, why=faults.LATE_WRITE),
    OURS.breaks(faults.server_clock, TWO, LOST, why=JUMPS),
    *FENCED.holds(
        *faults.USUAL, faults.paused, faults.writes_between, faults.minority, faults.restarted
    ),
    *FENCED.holds(faults.failover_lagging, faults.lost_reply, faults.clock_ahead),
    FENCED.breaks(faults.server_clock, TWO, why=LATER_ONE),
    *LIMITED_CELLS,
]
