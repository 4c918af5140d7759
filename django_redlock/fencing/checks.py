"""System check of the databases that fenced rows are in. It reads settings and asks no database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core import checks
from django.db import connections, router

from django_redlock.core.reasons import CHECKS

from .field import fences_of

if TYPE_CHECKING:
    from collections.abc import Iterator

W011: Final = "django_redlock.W011"
FOUND_ROWS: Final = 2  # CLIENT.FOUND_ROWS of MySQLdb and PyMySQL: matched rows count


@checks.register
def check_found_rows(**_: Any) -> list[checks.CheckMessage]:
    """Report W011 for a MySQL or MariaDB that counts changed rows, where a fenced model may be."""
    return [
        checks.Warning(
            f"DATABASES[{alias!r}]['OPTIONS']['client_flag'] lacks CLIENT.FOUND_ROWS: an update of "
            "fenced rows that changes nothing counts none, and raises StaleFence.",
            hint="Remove client_flag: Django sets FOUND_ROWS. Or write CLIENT.FOUND_ROWS | …. "
            f"See {CHECKS}w011",
            id=W011,
        )
        for alias in _fenced_databases()
        if _counts_changed_rows(alias)
    ]


def _fenced_databases() -> Iterator[str]:
    """Yield the databases that the tables of fenced models may be in."""
    models = [model for model in apps.get_models() if fences_of(model)]
    for alias in connections:
        if any(router.allow_migrate_model(alias, model) for model in models):
            yield alias


def _counts_changed_rows(alias: str) -> bool:
    connection = connections[alias]
    if connection.vendor != "mysql":
        return False
    flags = connection.settings_dict["OPTIONS"].get("client_flag")
    return flags is not None and not int(flags) & FOUND_ROWS
