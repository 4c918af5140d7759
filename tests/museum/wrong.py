"""Ours with a rule switched off, as recipes of the museum: what its cells must show then."""

from __future__ import annotations

from typing import Any

from museum.recipes.fenced import Fenced, FencedRow
from museum.recipes.interface import Place
from museum.recipes.redlock import Ours


class Unguarded(Ours):
    """Without the restart guard."""

    def alias(self) -> dict[str, Any]:
        """Return the settings of the locks."""
        return super().alias() | {"RESTART_GUARD": False}


class Unclaimed(Fenced):
    """With a fence that is compared on writes only."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.store = UnclaimedRow(self)


class UnclaimedRow(FencedRow):
    """The row, compared by the write and not claimed by the read."""

    def read(self) -> int:
        """Only look."""
        return self.look()

    def write(self, value: int) -> bool:
        """Write it where no higher fence has; what was written since the read does not matter."""
        from django.db import connection

        from museum.recipes.tables import Counter

        assert self.client.lease is not None
        fence = self.client.lease.fence
        table = Counter._meta.db_table
        sql = f"UPDATE {table} SET value = %s, fence = %s WHERE id = 1 AND fence <= %s"  # noqa: S608 - a constant
        with connection.cursor() as cursor:
            cursor.execute(sql, (value, fence, fence))
            return bool(cursor.rowcount)
