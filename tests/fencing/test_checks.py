"""The check of databases that count changed rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from django_redlock.fencing import field
from tests.support.addresses import explained
from tests.support.databases import connected

ELSEWHERE = f"{__name__}.Elsewhere"
COMPRESS, FOUND_ROWS, MULTI_STATEMENTS = 32, 2, 65536
ENGINE = {"mysql": "django.db.backends.mysql", "sqlite": "django.db.backends.sqlite3"}


class Elsewhere:
    """The fenced models are in another database than the one that is looked at."""

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        return db != "other" if app_label in {"fencing", "box_office"} else None


def found(options: dict[str, Any], engine: str = "mysql") -> list[str]:
    """The ids for a database with such options beside the one of the tests."""
    settings = {"ENGINE": ENGINE[engine], "NAME": "nowhere", "OPTIONS": options}
    with connected(settings, "other"):
        reported = field.check_found_rows()
    assert all("'other'" in each.msg and explained(each.hint) for each in reported)
    return [each.id or "" for each in reported]


@pytest.mark.parametrize("flags", [0, COMPRESS, MULTI_STATEMENTS | COMPRESS])
def test_a_database_that_counts_changed_rows_is_told(flags):
    """Whatever else the option asks for: it replaces what Django sets."""
    assert found({"client_flag": flags}) == [field.W011]


@pytest.mark.parametrize(
    "options", [{}, {"client_flag": FOUND_ROWS}, {"client_flag": FOUND_ROWS | COMPRESS}]
)
def test_a_database_that_counts_matched_rows_is_not(options):
    """As Django asks it to, where nobody says otherwise."""
    assert found(options) == []


def test_databases_without_fenced_models_are_not_looked_at():
    """A router says where the tables are."""
    with override_settings(DATABASE_ROUTERS=[ELSEWHERE]):
        assert found({"client_flag": 0}) == []
