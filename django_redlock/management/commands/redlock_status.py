"""``manage.py redlock_status``: the nodes, every lock that is held, and the tasks."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.core.management.base import CommandError

from django_redlock.backend import Backend
from django_redlock.core.policy import check_seconds
from django_redlock.core.reasons import printable
from django_redlock.inspection import LIMIT, rows
from django_redlock.inspection.survey import Report, Wanted
from django_redlock.management import age
from django_redlock.management.printing import Lines, NodesCommand, write

EVERY: Final = 2.0  # seconds
CLEAR: Final = "\x1b[H\x1b[2J"  # of a terminal
# What --prometheus goes without: it counts all that there is.
ALONE: Final = {
    "names": "NAME",
    "json": "--json",
    "watch": "--watch",
    "older_than": "--older-than",
    "problems": "--problems",
    "finished": "--finished",
}


class Command(NodesCommand):
    """Print what a survey finds, as tables, as JSON or for Prometheus."""

    help = (
        "Show the nodes, every lock that is held, and the tasks that wait. Exit status: 0 "
        "all nodes vote, 3 some do not vote and locks work, 4 no majority votes, so no lock can be "
        "taken."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="show these locks only, held or free; of a pattern (* ? [a-z], in quotes) the "
            "held ones that match; and the tasks with this name or id",
        )
        super().add_arguments(parser)
        parser.add_argument(
            "--limit",
            type=int,
            default=LIMIT,
            metavar="N",
            help="show at most N locks, N records of once, N queued and N finished tasks of each "
            "alias, besides locks that are named (default: %(default)s)",
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
                    raise CommandError(f"--prometheus counts everything: leave {text} out")
        backends = self.backends(options["aliases"])
        try:
            wanted = Wanted(
                options["names"],
                finished=options["finished"],
                once=not options["prometheus"],
                older_than=options["older_than"],
                problems=options["problems"],
            )
            if options["watch"] is not None:
                self._watch(backends, wanted, options)
                return
            found = [wanted.survey(backend, options["limit"]) for backend in backends]
        except ValueError as error:
            raise CommandError(str(error)) from None
        if options["prometheus"]:
            self.finish(found, rows.exposition(found))
        else:
            self.show(found, partial(self._lines, wanted), options)

    def _lines(self, wanted: Wanted, found: Report) -> Lines:
        nodes = found.unwell if wanted.problems else found.nodes
        lines = self.table(rows.STATUS_COLUMNS, list(map(rows.node, nodes)))
        for advice in found.advice:
            lines += [printable(str(advice)), ""]
        locks = [rows.lock(each, found.nodes, found.majority) for each in found.locks]
        left_out = rows.OF_SEVERAL if len(found.nodes) == 1 else ()
        columns = [each for each in rows.LOCK_COLUMNS if each not in left_out]
        return [*lines, *self.table(columns, locks), *rows.notes(found, wanted)]

    def _watch(self, backends: list[Backend], wanted: Wanted, options: dict[str, Any]) -> None:
        every = options["watch"]
        check_seconds("--watch", every)
        if options["json"]:
            raise CommandError("--watch shows tables: leave --json out")
        if not self.stdout.isatty():
            raise CommandError("--watch needs a terminal; a program calls redlock_status --json")
        with suppress(KeyboardInterrupt):
            while True:
                found = [wanted.survey(backend, options["limit"]) for backend in backends]
                now = f"{datetime.now():%H:%M:%S}"  # noqa: DTZ005 - for people
                text = self.text(found, partial(self._lines, wanted))
                write(self.stdout, f"{CLEAR}{now}, every {every:g} s; Ctrl-C ends.\n\n{text}")
                time.sleep(every)
