"""``manage.py redlock_release NAME``: take a lock away from its holder.

With ``--task`` it clears what is left of a task that no worker will see, or that shall run again.
"""

from __future__ import annotations

import getpass
import socket
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_redlock import conf
from django_redlock.backend import Backend
from django_redlock.core.errors import NodesUnavailable
from django_redlock.inspection import rows
from django_redlock.inspection.revoke import refuse, taking, told, why_of
from django_redlock.inspection.survey import HeldLock, survey, voting_or_raise
from django_redlock.inspection.tasks import TaskState, clear_task, find_tasks
from django_redlock.management import UNKNOWN


class Command(BaseCommand):
    """Show who holds names, ask, and take the locks away."""

    help = (
        "Take locks away from their holders, such as workers that hang. The lease ends at the "
        "holder's next renewal, and the name is free when the holder's time is over, so there are "
        "never two holders. Exit status: 0 done, 1 nobody holds it or the holder is another, 69 "
        "not yet done on a majority of the nodes: run it again."
    )
    requires_system_checks = ()  # it must run when something is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("names", nargs="*", metavar="NAME", help="the locks")
        parser.add_argument(
            "--task",
            metavar="ID",
            help="instead of locks: remove the mark or the completion record of the task that "
            "redlock_status shows with this id, so that a message is sent, or runs, again",
        )
        parser.add_argument("--alias", default="default", help="an alias of REDLOCK")
        parser.add_argument(
            "--fence",
            type=int,
            metavar="N",
            help="only from the holder that redlock_status shows with this fence",
        )
        parser.add_argument(
            "--reason", default="", metavar="TEXT", help="for the holder's error and its log"
        )
        parser.add_argument(
            "--now",
            action="store_true",
            help="delete the key: the name is free at once, and the old holder may work on until "
            "its deadline. Only rows that `fenced` guards are safe then",
        )
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--dry-run", action="store_true", help="only show who holds them")

    def handle(self, *_: Any, **options: Any) -> None:
        """Show the holders, ask, and take the locks away; or clear a task.

        Raises:
            CommandError: nobody holds a name, the nodes cannot be asked, or it is not yet done.
        """
        by_task, alike = options["task"], ("fence", "reason", "now")
        if bool(options["names"]) == bool(by_task):
            raise CommandError("give the names of locks, or --task with the id of a task")
        if by_task and any(options[each] for each in alike):
            raise CommandError("--fence, --reason and --now are for locks and go without --task")
        try:
            backend = conf.backend(options["alias"])
            if by_task:
                self._clear(backend, by_task, dry=options["dry_run"], sure=options["yes"])
            else:
                self._release(backend, options)
        except (ImproperlyConfigured, LookupError, ValueError) as error:
            raise CommandError(str(error)) from None
        except NodesUnavailable as error:
            raise CommandError(str(error), returncode=UNKNOWN) from None

    def _release(self, backend: Backend, options: dict[str, Any]) -> None:
        """Show the holders, ask, and take the locks away.

        Raises:
            LookupError, ValueError, NodesUnavailable: see ``inspection.revoke``.
            CommandError: as of ``handle``.
        """
        why = why_of(f"{getpass.getuser()}@{socket.gethostname()}", options["reason"])
        report = survey(backend, options["names"])
        voting_or_raise(report, tuple(options["names"]))
        for lock in report.locks:
            refuse(lock, options["fence"], now=options["now"])
        for lock in report.locks:
            self.stdout.write(shown(rows.lock(lock, report.nodes, report.majority)))
        if options["dry_run"]:
            return
        if not options["yes"]:
            self._ask(now=options["now"])
        results = [self._take(backend, lock, why, now=options["now"]) for lock in report.locks]
        if not all(results):
            msg = "not yet done on a majority of the nodes: run this command again"
            raise CommandError(msg, returncode=UNKNOWN)

    def _clear(self, backend: Backend, task_id: str, *, dry: bool, sure: bool) -> None:
        """Show the tasks with this id, ask, and clear them.

        Raises:
            LookupError: there is none, or it runs.
            CommandError: as of ``handle``.
        """
        tasks = find_tasks(backend, task_id)
        for each in tasks:
            row = rows.task(each)
            self.stdout.write(f"{row['task']} {row['id']}: {row['is']}, on {row['on']} nodes")
            if each.state is TaskState.RUNNING:
                locks = " ".join(row["names"]) or "its run"
                msg = f"{row['id']} runs and holds {locks}: take that lock away instead"
                raise LookupError(msg)
        if dry:
            return
        if not sure:
            self._ask(now=False)
        replied, size = clear_task(backend, task_id), backend.policy.size
        if replied < backend.policy.majority:
            msg = f"only {replied} of {size} nodes have replied: run this command again"
            raise CommandError(msg, returncode=UNKNOWN)
        self.stdout.write(f"{task_id}: cleared, {replied} of {size} nodes have replied")

    def _ask(self, *, now: bool) -> None:
        """Ask whether to go on; with ``now`` for a word that nobody types by habit.

        Raises:
            CommandError: nobody is there to ask, or the answer is no.
        """
        if not sys.stdin.isatty():
            raise CommandError("there is no terminal to ask: add --yes")
        if now:
            self.stdout.write(
                "With --now the name is free at once, and the old holder may work on until its "
                "deadline. Only rows that `fenced` guards are safe."
            )
        word = "now" if now else "yes"
        if input(f"Take it away? Type '{word}': ").strip().lower() != word:
            raise CommandError("nothing was done")

    def _take(self, backend: Backend, lock: HeldLock, why: str, *, now: bool) -> bool:
        """Take one lock away, and say what became of it."""
        found = backend.run(taking(backend, lock, why, now=now))
        self.stdout.write(told(found))
        return found.done


def shown(row: dict[str, Any]) -> str:
    """Say in one line what ``redlock_status`` has in a row."""
    parts = [f"{row['lock']}: {row['is']}", f"by {row['holder']}", f"on {row['on']} nodes"]
    if row["fence"]:
        parts.append(f"fence {row['fence']}")
    if row["held_for"]:
        parts.append(f"for {row['held_for']}")
    left = row["seconds_left"]
    parts.append(f"{left} s left" if row["low"] else left)
    return ", ".join(parts)
