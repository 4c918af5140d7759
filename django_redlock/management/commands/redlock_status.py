"""``manage.py redlock_status``: the nodes, every lock that is held, and the tasks."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_redlock.inspection import LIMIT, rows
from django_redlock.inspection.survey import Wanted
from django_redlock.management.printing import NodesCommand


class Command(NodesCommand):
    """Print what a survey finds, as tables or as JSON."""

    help = (
        "Show the nodes, every lock that is held, and the tasks that wait and run. Exit status: 0 "
        "all nodes vote, 3 some do not, 4 no majority does, so no lock can be taken."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="show these locks only, held or free; of a pattern (* ? [a-z], in quotes; a "
            "backslash before one of these means the character) the held ones that match; and "
            "the tasks with this name, id or lock",
        )
        super().add_arguments(parser)
        parser.add_argument(
            "--limit",
            type=int,
            default=LIMIT,
            metavar="N",
            help="show at most N locks and N tasks of each alias, besides locks that are named "
            "(default: %(default)s)",
        )
        parser.add_argument(
            "--older-than",
            type=float,
            metavar="SECONDS",
            help="show only locks that are held for so long, the oldest first",
        )
        parser.add_argument(
            "--finished",
            action="store_true",
            help="show also the tasks that have finished and left a completion record",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Survey the aliases, print them, and exit with the status of the worst."""
        backends = self.backends(options["aliases"])
        try:
            names, finished = options["names"], options["finished"]
            wanted = Wanted(names, finished=finished, older_than=options["older_than"])
            found = [wanted.survey(backend, options["limit"]) for backend in backends]
        except ValueError as error:
            raise CommandError(str(error)) from None
        self.show(found, lambda each: rows.status(each, wanted), options)
