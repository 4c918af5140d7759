"""``manage.py redlock_status``: the nodes, every lock that is held, and the tasks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from django_redlock.inspection.survey import LIMIT
from django_redlock.management.status import output
from django_redlock.management.status.document import as_json
from django_redlock.management.status.page import EXIT, page, worst
from django_redlock.management.status.wanted import Wanted

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Print what ``inspection.survey`` finds, as tables or as JSON."""

    help = (
        "Show the nodes, every lock that is held, and the tasks that wait and run. Exit status: 0 "
        "all nodes vote, 3 some do not, 4 no majority does, so no lock can be taken."
    )
    requires_system_checks = ()  # it must run when something is wrong

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
        output.add_arguments(parser)
        parser.add_argument(
            "--limit",
            type=int,
            default=LIMIT,
            metavar="N",
            help="show at most N locks and N tasks of each alias, besides locks that are named "
            "(default: %(default)s)",
        )

        parser.add_argument(
            "--finished",
            action="store_true",
            help="show also the tasks that have finished and left a completion record",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Survey the aliases, print them, and exit with the status of the worst."""
        backends = output.backends(options["aliases"])
        try:
            wanted = Wanted(options["names"], finished=options["finished"])
            surveys = [wanted.survey(backend, options["limit"]) for backend in backends]
        except ValueError as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            output.write(self.stdout, json.dumps(as_json(surveys), indent=2) + "\n")
        else:
            printer = output.printer(self.stdout, options)
            for position, each in enumerate(surveys):
                if position:
                    printer.show([()])
                printer.show(page(each, wanted))
            output.write(self.stdout, printer.getvalue())
        code = EXIT[worst(surveys)]
        if code:
            raise SystemExit(code)
