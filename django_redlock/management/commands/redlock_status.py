"""``manage.py redlock_status``: the nodes, every lock that is held, and the tasks."""

from __future__ import annotations

import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from django.core.management.base import CommandError
from django.utils.translation import gettext

from django_redlock.core.policy import check_seconds
from django_redlock.inspection import LIMIT, rows
from django_redlock.inspection.rows import Span
from django_redlock.inspection.survey import Report, Wanted
from django_redlock.management.printing import NodesCommand, screen

EVERY: Final = 2.0  # seconds
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# What --prometheus goes without: it counts all that there is.
ALONE: Final = {
    "names": "NAME",
    "json": "--json",
    "watch": "--watch",
    "older_than": "--older-than",
    "problems": "--problems",
    "finished": "--finished",
}


def age(text: str) -> float:
    """Return the seconds in a text such as 90, 90s, 15m, 1h or 2d."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    try:
        return float(number) * UNITS[unit]
    except ValueError:
        msg = f"{text!r} is no age: write seconds, as in 90, or with a unit 90s, 15m, 1h, 2d"
        raise ArgumentTypeError(msg) from None


class Command(NodesCommand):
    """Print what a survey finds, as tables, as JSON or for Prometheus."""

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
            type=age,
            metavar="AGE",
            help="show only locks that are held for so many seconds, the oldest first; 15m, 1h and "
            "2d are minutes, hours and days",
        )
        parser.add_argument(
            "--problems",
            action="store_true",
            help="show only nodes, locks and tasks that need attention",
        )
        parser.add_argument(
            "--watch",
            type=float,
            nargs="?",
            const=EVERY,
            metavar="SECONDS",
            help=f"look again every so many seconds (default: {EVERY:g}), until Ctrl-C",
        )
        parser.add_argument(
            "--finished",
            action="store_true",
            help="show also the tasks that have finished and left a completion record",
        )
        parser.add_argument(
            "--prometheus",
            action="store_true",
            help="print gauges for Prometheus, as node_exporter's textfile collector reads them",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Survey the aliases, print them, and exit with the status of the worst."""
        if options["prometheus"]:
            for key, text in ALONE.items():
                if options[key] not in ([], None) and options[key] is not False:  # 0 is given
                    why = gettext("--prometheus counts everything: leave %(option)s out")
                    raise CommandError(why % {"option": text})
        backends = self.backends(options["aliases"])
        try:
            wanted = Wanted(
                options["names"],
                finished=options["finished"],
                older_than=options["older_than"],
                problems=options["problems"],
            )

            def look() -> list[Report]:
                return [wanted.survey(backend, options["limit"]) for backend in backends]

            if options["watch"] is not None:
                self._watch(look, wanted, options)
                return
            found = look()
        except ValueError as error:
            raise CommandError(rows.said(error)) from None
        if options["prometheus"]:
            self.finish(found, rows.exposition(found))
        else:
            self.show(found, lambda each: rows.status(each, wanted), options)

    def _watch(
        self, look: Callable[[], list[Report]], wanted: Wanted, options: dict[str, Any]
    ) -> None:
        every = options["watch"]
        check_seconds("--watch", every)
        if options["json"]:
            raise CommandError(gettext("--watch shows tables: leave --json out"))
        if not self.stdout.isatty():
            raise CommandError(
                gettext(
                    "--watch needs a terminal; a program calls redlock_status --json now and then"
                )
            )
        with screen(self.stdout) as show:
            while True:
                found = look()
                now = f"{datetime.now():%H:%M:%S}"  # noqa: DTZ005 - for people
                head = gettext("%(time)s, every %(seconds)s s; Ctrl-C ends.")
                head %= {"time": now, "seconds": f"{every:g}"}
                blocks = [(Span(head, "quiet"),), ()]
                text = self.text(found, lambda each: rows.status(each, wanted), options, blocks)
                show(text)
                time.sleep(every)
