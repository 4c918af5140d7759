"""``manage.py redlock_clear_idempotency``: delete the records whose time is over."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from django_redlock.idempotency.models import Record
from django_redlock.idempotency.records import Clock, database_of


class Command(BaseCommand):
    """Delete expired records, in batches: run it by cron, as ``clearsessions``."""

    help = "Delete the records of idempotent requests whose time is over."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the database and the size of a batch."""
        parser.add_argument(
            "--database", metavar="ALIAS", help="where the records are; else as the routers say"
        )
        parser.add_argument(
            "--batch",
            type=int,
            default=1000,
            metavar="ROWS",
            help="rows of one DELETE (%(default)s)",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Delete them, and say how many they were.

        Raises:
            CommandError: an option makes no sense.
        """
        database, batch = database_of(options["database"]), options["batch"]
        if database not in connections.settings:
            raise CommandError(f"--database {database!r} is no database: see DATABASES")
        if batch < 1:
            raise CommandError(f"--batch must be at least 1, not {batch}")
        # A repetition of one that is deleted here is a new request, whether or not its row is gone.
        expired = Record.objects.using(database).filter(expires__lte=Clock())
        deleted = 0
        while found := list(expired.order_by("expires").values_list("pk", flat=True)[:batch]):
            deleted += expired.filter(pk__in=found).delete()[0]
        some = "1 record is deleted." if deleted == 1 else f"{deleted} records are deleted."
        self.stdout.write(some if deleted else "No record has expired.")
