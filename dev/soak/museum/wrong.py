"""Ours with a rule switched off, as recipes of the museum."""

from __future__ import annotations

import os
from typing import Any

from dev.museum.cell import Setup
from dev.museum.rooms.ours import Fenced, FencedRow, Limited, Ours


class Unguarded(Ours):
    """Without the restart guard."""

    def alias(self) -> dict[str, Any]:
        """Return the settings of the locks."""
        return super().alias() | {"RESTART_GUARD": False}


class NoCommonSlots(Limited):
    """With slots of its own for each client, as where a permit is a lock of a random name."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from django_redlock import redlock

        self.lock = redlock(f"{setup.name} {os.getpid()}", limit=setup.limit)


class OneSlotGone(Limited):
    """With one slot less, as after a leak."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        from django_redlock import redlock

        self.lock = redlock(setup.name, limit=setup.limit - 1)


class Unclaimed(Fenced):
    """With a fence that is compared on writes only."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.store = UnclaimedRow(self)


class UnclaimedRow(FencedRow):
    """The row, compared by the write and not claimed by the read."""

    def read(self) -> int:
        """Only look."""
        return int(self.rows.get().value)

    def write(self, value: int) -> bool:
        """Write it where no higher fence has; what was written since the read does not matter."""
        from django.db import connection

        assert self.client.lease is not None
        fence = self.client.lease.fence
        sql = "UPDATE counter SET value = %s, fence = %s WHERE id = 1 AND fence <= %s"
        with connection.cursor() as cursor:
            cursor.execute(sql, (value, fence, fence))
            return bool(cursor.rowcount)
