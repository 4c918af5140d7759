"""Ours, where the lock guards a row of a database that refuses stale holders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .interface import Place
from .redlock import Ours

if TYPE_CHECKING:
    from django_redlock.fencing import FencedRows


class Fenced(Ours):
    """A holder claims the row before it reads, and writes what it has claimed."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.store = FencedRow(self)

    def settings(self) -> dict[str, Any]:
        """Return the project's settings, with a database."""
        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": f"{self.place.store}.sqlite3",
            "OPTIONS": {"timeout": 30},
        }
        return super().settings() | {
            "DATABASES": {"default": database},
            "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
            "INSTALLED_APPS": ["django_redlock"],
        }


class FencedRow:
    """The row, by ``fenced()``."""

    def __init__(self, client: Ours) -> None:
        from .tables import Counter, create

        create()
        self.client = client
        self._rows = Counter.objects.filter(pk=1)
        self._claimed: FencedRows[Counter] | None = None

    def read(self) -> int:
        """Claim the row and read it; a client without a lease only looks."""
        from django_redlock.fencing import fenced

        if self.client.lease is None:
            return self.look()
        self._claimed = fenced(self.client.lease, self._rows)
        return int(self._claimed.get().value)

    def look(self) -> int:
        """Read it without a claim."""
        return int(self._rows.get().value)

    def write(self, value: int) -> bool:
        """Write it; False: a later holder has claimed it."""
        from django_redlock.fencing import StaleFence

        assert self._claimed is not None
        try:
            self._claimed.update(value=value)
        except StaleFence:
            return False
        return True
