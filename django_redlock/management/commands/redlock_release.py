"""``manage.py redlock_release NAME``: take a lock away from its holder.

With ``--task`` it clears what is left of a task that no worker will see, or that shall run again.
"""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import sys
from argparse import ArgumentParser
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext

from django_redlock import conf
from django_redlock.backend import Backend
from django_redlock.core.errors import NodesUnavailable
from django_redlock.inspection import rows
from django_redlock.inspection.revoke import refuse, taking, told, why_of
from django_redlock.inspection.survey import HeldLock, LockStatus, survey, voting_or_raise
from django_redlock.inspection.tasks import TaskList, TaskState, clear_task, list_tasks
from django_redlock.management import UNKNOWN
from django_redlock.management.printing import encodable

WILDCARDS: Final = frozenset("*?[")
NO_PATTERN: Final = (
    "nobody holds {0!r}, and names are no patterns here: give the names that "
    "manage.py redlock_status {1} shows"
)


class Command(BaseCommand):
    """Show who holds names, ask, and take the locks away."""

    help = (
        "Take locks away from their holders, such as workers that hang. The lease ends at the "
        "holder's next renewal, and the name is free when the holder's time is over, so there are "
        "never two holders. Exit status: 0 done, 1 nobody holds it or the holder is another, 69 "
        "too few nodes could be asked, or it is not yet done on a majority: run it again."
    )
    requires_system_checks = ()  # it must run when something is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "names", nargs="*", metavar="NAME", help="the locks, by their whole names: no patterns"
        )
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
            why = gettext("give the names of locks, or --task with the id of a task")
            raise CommandError(why)
        if by_task and any(options[each] for each in alike):
            why = gettext("--fence, --reason and --now are for locks and go without --task")
            raise CommandError(why)
        try:
            backend = conf.backend(options["alias"])
            if by_task:
                self._clear(backend, by_task, dry=options["dry_run"], sure=options["yes"])
            else:
                self._release(backend, options)
        except (ImproperlyConfigured, LookupError, ValueError) as error:
            raise CommandError(rows.said(error)) from None
        except NodesUnavailable as error:
            raise CommandError(rows.said(error), returncode=UNKNOWN) from None

    def _release(self, backend: Backend, options: dict[str, Any]) -> None:
        """Show the holders, ask, and take the locks away.

        Raises:
            LookupError, ValueError, NodesUnavailable: see ``inspection.revoke``.
            CommandError: as of ``handle``.
        """
        why = why_of(f"{_user()}@{socket.gethostname()}", options["reason"])
        report = survey(backend, options["names"])
        voting_or_raise(report, *options["names"])
        for lock in report.locks:
            if lock.kind is LockStatus.FREE and not WILDCARDS.isdisjoint(lock.name):
                raise LookupError(NO_PATTERN.format(lock.name, shlex.quote(lock.name)))
            refuse(lock, options["fence"], now=options["now"])
        for lock in report.locks:
            self._say(shown(rows.lock(lock, report.nodes, report.majority)))
        if options["dry_run"]:
            return
        if not options["yes"]:
            self._ask(now=options["now"])
        results = [self._take(backend, lock, why, now=options["now"]) for lock in report.locks]
        if not all(results):
            why = gettext("not yet done on a majority of the nodes: run this command again")
            raise CommandError(why, returncode=UNKNOWN)

    def _clear(self, backend: Backend, task_id: str, *, dry: bool, sure: bool) -> None:
        """Show the tasks with this id, ask, and clear them.

        Raises:
            NodesUnavailable: no majority of the nodes votes, and the others know of none.
            CommandError: there is none, it runs, or as of ``handle``.
        """
        report = survey(backend, limit=1)
        found = list_tasks(
            backend, report.heard, finished=True, matching=lambda each: each.task_id == task_id
        )
        if not found.tasks:
            voting_or_raise(report, task_id)
            raise _no_task(task_id, found, backend)
        for each in found.tasks:
            row = rows.task(each)
            on = gettext("on %(on)s nodes") % row
            self._say(f"{row['task']} {row['id']}: {row['is']}, {on}")
            if each.state is TaskState.RUNNING:
                why = gettext("it runs and holds %(names)s: take that lock away instead")
                raise CommandError(why % {"names": " ".join(row["names"])})
        if dry:
            return
        if not sure:
            self._ask(now=False)
        replied, size = clear_task(backend, task_id), backend.policy.size
        if replied < backend.policy.majority:
            why = gettext("not yet done on a majority of the nodes: run this command again")
            raise CommandError(why, returncode=UNKNOWN)
        done = gettext("cleared, %(replied)s of %(size)s nodes have replied")
        self._say(done % {"replied": replied, "size": size})
        if replied < size:
            self._say("The others may still know of it: run this again when they are back.")

    def _ask(self, *, now: bool) -> None:
        """Ask whether to go on; with ``now`` for a word that nobody types by habit.

        Raises:
            CommandError: nobody is there to ask, or the answer is no.
        """
        if not sys.stdin.isatty():
            raise CommandError(gettext("there is no terminal to ask: add --yes"))
        if now:
            self._say(
                gettext(
                    "With --now the name is free at once, and the old holder may work on until its "
                    "deadline. Only rows that `fenced` guards are safe."
                )
            )
        word = "now" if now else "yes"  # in every language, as Django's commands ask
        question = gettext("Take it away? Type '%(word)s':") % {"word": word}
        if input(f"{encodable(question, self.stdout)} ").strip().lower() != word:
            raise CommandError(gettext("nothing was done"))

    def _take(self, backend: Backend, lock: HeldLock, why: str, *, now: bool) -> bool:
        """Take one lock away, and say what became of it."""
        found = backend.run(taking(backend, lock, why, now=now))
        self._say(rows.said(told(found)))
        return found.done

    def _say(self, text: str) -> None:
        """Print a line."""
        self.stdout.write(encodable(text, self.stdout))


def _no_task(task_id: str, found: TaskList, backend: Backend) -> CommandError:
    """Return the error: the nodes that replied know of no task with this id."""
    text = f"no task with the id {task_id!r} is queued, runs or has a completion record"
    text += f", say {found.replied} of {backend.policy.size} nodes"
    if found.truncated:
        text += "; more names are kept than were looked at"
    sure = found.replied >= backend.policy.majority and not found.truncated
    return CommandError(text, returncode=1 if sure else UNKNOWN)


def shown(row: dict[str, Any]) -> str:
    """Say in one line what ``redlock_status`` has in a row."""
    parts = [f"{row['lock']}: {row['is']}", gettext("by %(holder)s"), gettext("on %(on)s nodes")]
    if row["fence"]:
        parts.append(gettext("fence %(fence)s"))
    if row["held_for"]:
        parts.append(gettext("for %(held_for)s"))
    parts.append(gettext("%(seconds_left)s s left") if row["low"] else row["seconds_left"])
    return ", ".join([parts[0], *(part % row for part in parts[1:])])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number and no name
        return f"uid {os.getuid()}"
