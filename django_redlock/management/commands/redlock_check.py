"""``manage.py redlock_check``: whether the nodes are what the settings say, and what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand

from django_redlock.inspection.examination import examine_nodes
from django_redlock.management.checking.document import as_json
from django_redlock.management.checking.expected import expected
from django_redlock.management.checking.page import page, worst
from django_redlock.management.status import output
from django_redlock.management.status.page import EXIT

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    """Print what an examination of the nodes finds, as tables or as JSON."""

    help = (
        "Ask the nodes whether they are set up for locks, and say what to do. Exit status: 0 there "
        "is nothing to do, 3 locks work and something is to be done, 4 too few nodes can vote, so "
        "no lock can be taken, 5 a majority will vote by itself, and no lock can be taken yet."
    )
    requires_system_checks = ()  # it must run when something is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        output.add_arguments(parser)

    def handle(self, *_: Any, **options: Any) -> None:
        """Examine the nodes, print what was found, and exit with the status of the worst alias."""
        found = examine_nodes([expected(each) for each in output.backends(options["aliases"])])
        if options["json"]:
            output.write(self.stdout, json.dumps(as_json(found), indent=2) + "\n")
        else:
            printer = output.printer(self.stdout, options)
            for position, each in enumerate(found):
                if position:
                    printer.show([()])
                printer.show(page(each))
            output.write(self.stdout, printer.getvalue())
        code = EXIT[worst(found)]
        if code:
            raise SystemExit(code)
