"""``manage.py redlock_status``: the nodes, and every lock that is held."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_redlock import conf
from django_redlock.inspection.survey import LIMIT
from django_redlock.management.status.document import as_json
from django_redlock.management.status.page import EXIT, page, worst
from django_redlock.management.status.plain import Plain
from django_redlock.management.status.wanted import Wanted

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django_redlock.management.status.coloured import Coloured


class Command(BaseCommand):
    """Print what ``inspection.survey`` finds, as tables or as JSON."""

    help = (
        "Show the nodes and every lock that is held. Exit status: 0 all nodes vote, 3 some do "
        "not, 4 no majority does, so no lock can be taken."
    )
    requires_system_checks = ()  # it must run when something is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="show these locks only, held or free; of a pattern (* ? [a-z], in quotes; a "
            "backslash before one of these means the character) the held ones that match",
        )
        parser.add_argument(
            "--alias",
            action="append",
            dest="aliases",
            metavar="ALIAS",
            help="an alias of REDLOCK; may be repeated (default: all)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument(
            "--limit",
            type=int,
            default=LIMIT,
            metavar="N",
            help="show at most N locks of each alias, besides those that are named "
            "(default: %(default)s)",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Survey the aliases, print, and exit by the worst of them."""
        try:
            aliases = dict.fromkeys(options["aliases"] or conf.aliases())
            backends = [conf.backend(alias) for alias in aliases]
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        if not backends:
            raise CommandError("REDLOCK names no alias: there is nothing to show")
        wanted = Wanted(options["names"])
        try:
            surveys = [wanted.survey(backend, options["limit"]) for backend in backends]
        except ValueError as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            self._write(json.dumps(as_json(surveys), indent=2) + "\n")
        else:
            printer = self._printer(
                no_color=options["no_color"], force_color=options["force_color"]
            )
            for position, each in enumerate(surveys):
                if position:
                    printer.show([()])
                printer.show(page(each, wanted))
            self._write(printer.getvalue())
        code = EXIT[worst(surveys)]
        if code:
            raise SystemExit(code)

    def _write(self, text: str) -> None:
        """Print it all. Who reads only the beginning, as ``head`` does, is no error."""
        try:
            self.stdout.write(text, ending="")
            self.stdout.flush()
        except BrokenPipeError:
            # Or Python finds the rest in the buffer when it ends, and complains.
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), self.stdout.fileno())

    def _printer(self, *, no_color: bool, force_color: bool) -> Plain | Coloured:
        try:
            from django_redlock.management.status.coloured import Coloured
        except ImportError:  # rich is an extra
            return Plain(self.stdout)
        return Coloured(self.stdout, no_color=no_color, force_color=force_color)
