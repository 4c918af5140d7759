"""``manage.py redlock_release NAME``: take a lock away from its holder.

With ``--task`` it clears what is left of a task that no worker will see, or that shall run again.
"""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_redlock import conf
from django_redlock.backend import Backend
from django_redlock.core.completion import is_run_name
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.reasons import printable
from django_redlock.inspection import rows
from django_redlock.inspection.revoke import (
    checked_entry,
    held_slots,
    outcome_of,
    refuse,
    taking,
    why_of,
)
from django_redlock.inspection.survey import (
    INDEXES,
    HeldLock,
    LockStatus,
    Report,
    clear_task,
    slots_taken,
    survey,
    voting_or_raise,
)
from django_redlock.management import UNKNOWN
from django_redlock.management.printing import encodable

WILDCARDS: Final = frozenset("*?[")
NO_PATTERN: Final = (
    "nobody holds {0!r}, and names are no patterns here: give the names that "
    "manage.py redlock_status {1} shows"
)

ALL: Final = "all"  # slots
NOT_YET: Final = "not yet done on a majority of the nodes: run this command again"


class Command(BaseCommand):
    """Show who holds names, ask, and take the locks away."""

    help = (
        "Take locks away from their holders, such as workers that hang. The lease ends at the "
        "holder's next renewal, and the name is free when the holder's time is over, so two leases "
        "are never valid at a time. No process is ended. Of work that is done once the record is "
        "removed, and the work may be done again. Exit status: 0 done, 1 nothing was taken "
        "away, 69 too few nodes could be asked, or it is not yet done on a majority: run it again."
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
            "--slot",
            type=_slot,
            metavar="N",
            help="of a lock with a limit, only this slot, as redlock_status and lease.slot number "
            "them, from 0; 'all' takes away all that are held. A NAME whose slots are held needs "
            "it: without, they are listed and nothing is taken away",
        )
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
            raise CommandError(
                "give the names of locks, or --task with the id of a task, and not both"
            )
        of_locks = options["slot"] is not None or any(options[each] for each in alike)
        if by_task and of_locks:
            text = "--fence, --reason, --now and --slot are for locks and go without --task"
            raise CommandError(text)
        if options["slot"] is not None and len(options["names"]) > 1:
            raise CommandError("--slot is of one name: give one")
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
        why = why_of(f"{_user()}@{socket.gethostname()}", options["reason"])
        report = survey(backend, _entries(backend, options["names"], options["slot"]))
        voting_or_raise(report, *options["names"])
        for lock in report.locks:
            if lock.status is LockStatus.FREE:
                _explain_free(backend, lock)
            refuse(lock, options["fence"], now=options["now"])
        for lock in report.locks:
            self._say(shown(rows.lock(lock, report.nodes, report.majority)))
        if options["dry_run"]:
            return
        if not options["yes"]:
            again = all(lock.status is LockStatus.DONE for lock in report.locks)
            self._ask(now=options["now"] and not again, again=again)
        self._take(backend, report.locks, why, now=options["now"])

    def _clear(self, backend: Backend, task_id: str, *, dry: bool, sure: bool) -> None:
        """Show the tasks with this id, ask, and clear them.

        Raises:
            NodesUnavailable: no majority of the nodes votes, and the others know of none.
            CommandError: there is none, it runs, or as of ``handle``.
        """
        report = survey(backend, matching=task_id.__eq__, indexes=tuple(INDEXES))
        found = [
            lock
            for lock in report.locks
            if lock.task_id == task_id and (not lock.is_lock or lock.status is LockStatus.HELD)
        ]
        if not found:
            voting_or_raise(report, task_id)
            raise _no_task(task_id, report)
        for each in found:
            row = rows.lock(each, report.nodes, report.majority)
            where = f",{row['on_nodes']}" if row["on_nodes"] else ""
            self._say(f"{printable(each.task)} {task_id}: {row['is']}{where}")
        runs = [lock for lock in found if lock.status is LockStatus.HELD]
        if runs:  # it may hold the name of its message, besides
            held = [each.name for each in runs if not is_run_name(each.name, each.task)]
            names = printable(" and ".join(held or [runs[0].name]))
            raise CommandError(f"it runs and holds {names}: take that lock away instead")
        if dry:
            return
        if not sure:
            self._ask(now=False)
        replied, size = clear_task(backend, task_id), backend.policy.size
        if replied < backend.policy.majority:
            raise CommandError(NOT_YET, returncode=UNKNOWN)
        self._say(f"cleared, {replied} of {size} nodes have replied")
        if replied < size:
            self._say("The others may still know of it: run this again when they are back.")

    def _ask(self, *, now: bool, again: bool = False) -> None:
        """Ask whether to go on; with ``now`` for a word that nobody types by habit.

        With ``again`` nobody has a lock: work that was done is to be done again.

        Raises:
            CommandError: nobody is there to ask, or the answer is no.
        """
        if not sys.stdin.isatty():
            raise CommandError("there is no terminal to ask: add --yes")
        if now:
            self._say(
                "With --now the name is free at once, and the old holder may work on until its "
                "deadline. Only rows that `fenced` guards are safe."
            )
        word = "now" if now else "yes"
        try:
            question = "Let it be done again?" if again else "Take it away?"
            said = input(f"{question} Type '{word}': ")
        except (EOFError, KeyboardInterrupt):  # Ctrl-D, Ctrl-C
            self._say("")
            said = ""
        if said.strip().lower() != word:
            raise CommandError("nothing was done")

    def _take(self, backend: Backend, locks: Sequence[HeldLock], why: str, *, now: bool) -> None:
        """Take these locks away; one whose holder has let go while somebody was asked stays.

        Raises:
            CommandError: it is not yet done, or no holder has its lock any more.
        """
        results, gone = [], []
        for lock in locks:
            try:
                found = backend.run(taking(backend, lock, why, now=now))
            except LookupError as error:
                gone.append(str(error))
            else:
                self._say(outcome_of(found))
                results.append(found.done)
        if not results:
            raise CommandError("; ".join(gone))
        for text in gone:
            self._say(text)
        if not all(results):
            raise CommandError(NOT_YET, returncode=UNKNOWN)

    def _say(self, text: str) -> None:
        self.stdout.write(encodable(text, self.stdout))


def _slot(text: str) -> int | str:
    try:
        return text if text == ALL else int(text)
    except ValueError:
        msg = f"{text!r} is no slot: write its number, as redlock_status shows it, or 'all'"
        raise ArgumentTypeError(msg) from None


def _entries(backend: Backend, names: Sequence[str], slot: int | str | None) -> list[str]:
    """Return the names of the locks on the nodes.

    Raises:
        ValueError: it is the number of no slot.
        LookupError: no slot is held.
    """
    if slot is None:
        return list(names)
    if slot != ALL:
        return [checked_entry(names[0], slot)]
    found = [lock.entry for lock in slots_taken(backend, names[0])]
    if not found:
        _refuse_plain(backend, names[0])
        raise LookupError(f"nobody holds a slot of {names[0]!r}")
    return found


def _explain_free(backend: Backend, lock: HeldLock) -> None:
    """Refuse a free name by which an operator means a pattern, a slot or a lock with slots.

    Raises:
        LookupError: the name is one of these; the text says what to write.
    """
    if not WILDCARDS.isdisjoint(lock.name):
        raise LookupError(NO_PATTERN.format(lock.name, shlex.quote(lock.name)))
    if lock.slot is None:
        _refuse_slots(lock.name, slots_taken(backend, lock.name))
    else:
        _refuse_plain(backend, lock.name)


def _refuse_plain(backend: Backend, name: str) -> None:
    """Refuse the slots of a name that somebody holds without a limit.

    Raises:
        LookupError: that is so.
    """
    plain = survey(backend, [name]).locks[0]
    if plain.status is LockStatus.HELD:
        who = printable(plain.holder) or "another client"
        raise LookupError(f"{plain.quoted} is held by {who} without a limit: leave --slot out")


def _refuse_slots(name: str, taken: Sequence[HeldLock]) -> None:
    """Refuse to take away a name of which slots are held, and nobody has said which.

    Raises:
        LookupError: that is so.
    """
    if taken:
        raise LookupError(
            f"{held_slots(name, taken)}. --slot {taken[0].slot} takes one away, --slot all takes "
            "away all"
        )


def _no_task(task_id: str, found: Report) -> CommandError:
    """Return the error: the nodes that replied know of no task with this id."""
    text = f"no task with the id {task_id!r} is queued, runs or has a completion record"
    text += f", say {len(found.heard)} of {len(found.nodes)} nodes"
    if found.truncated:
        text += "; more names are kept than were looked at"
    sure = len(found.heard) >= found.majority and not found.truncated
    return CommandError(text, returncode=1 if sure else UNKNOWN)


def shown(row: dict[str, Any]) -> str:
    """Say in one line what ``redlock_status`` has in a row."""
    parts = [f"{row['lock']}: {row['is']}", f"by {row['holder']}", row["on_nodes"].strip()]
    if row["is_done"]:
        when = f"at {row['since']:%Y-%m-%d %H:%M:%S} UTC, {row['held_for']}"
        return ", ".join(filter(None, [*parts, when, f"not again for {row['again_in']}"]))
    if row["fence"]:
        parts.append(f"fence {row['fence']}")
    if row["held_for"]:
        parts.append(f"for {row['held_for']}")
    parts.append(f"{row['seconds_left']} s left" if row["low"] else row["seconds_left"])
    return ", ".join(filter(None, parts))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have a number and no name
        return f"uid {os.getuid()}"
