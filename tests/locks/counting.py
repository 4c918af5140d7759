"""A process that adds to a counter under a lock; run by test_lost_updates.

Argument: one JSON object with the settings of the alias, the file of the database, the order of
lock and transaction ("inside" or "atomic"), and the number of rounds. It reads the counter from a
second connection, as a site with a replica does; that one sees only what has been committed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django
from django.conf import settings
from django.db import connections, transaction

from django_redlock import redlock

TABLES = """
CREATE TABLE counter (n INTEGER);
CREATE TABLE journal (entry TEXT);
INSERT INTO counter VALUES (0);
PRAGMA journal_mode=WAL;
"""
ENTRIES = 200  # of the journal, which is the rest of what the transaction does


def execute(alias: str, sql: str) -> list[Any]:
    """Run a statement."""
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def add() -> None:
    """Read the counter, and write what comes next."""
    ((n,),) = execute("replica", "SELECT n FROM counter")
    execute("default", f"UPDATE counter SET n = {n + 1}")  # noqa: S608 - a number


def write_journal() -> None:
    """Do the rest of the work."""
    for _ in range(ENTRIES):
        execute("default", "INSERT INTO journal VALUES ('entry')")


def inside() -> None:
    """The broken order: the lock is free before the COMMIT."""
    with transaction.atomic():
        with redlock("counter", wait=120):
            add()
        write_journal()


def atomic() -> None:
    """The right order."""
    with redlock("counter", wait=120).atomic():
        add()
        write_journal()


def main() -> None:
    """Add so many times."""
    told = json.loads(sys.argv[1])
    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": told["file"],
        "OPTIONS": {"timeout": 120},
    }
    settings.configure(
        DATABASES={"default": database, "replica": database}, REDLOCK={"default": told["alias"]}
    )
    django.setup()
    for _ in range(told["rounds"]):
        {"inside": inside, "atomic": atomic}[told["order"]]()


if __name__ == "__main__":
    main()
