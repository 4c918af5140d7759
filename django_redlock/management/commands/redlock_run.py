"""``manage.py redlock_run NAME -- COMMAND``: run a command on one server only."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_redlock import redlock
from django_redlock.backend import LABEL_BYTES, process_label
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.leases.lease import RENEWALS
from django_redlock.locks.once import OnceRun, checked_keep
from django_redlock.management import TAKEN, UNKNOWN, age

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease
    from django_redlock.management import child

# A lease is renewed when a third of its ttl is over, so two thirds are left then.
LEFT: Final = (RENEWALS - 1) / RENEWALS
LONGEST_PROGRAM: Final = 40  # characters of its name in the owner label
BEHIND: Final = (
    "write the command to run behind --: redlock_run NAME -- COMMAND; in code it is a list: "
    "call_command('redlock_run', NAME, command=[…])"
)


class Command(BaseCommand):
    """Take a lock, run a command while its lease lasts, and release."""

    help = (
        "Run a command while this process holds a lock, so that one server runs it at a time. The "
        "lease is renewed meanwhile; when it cannot be, the command and its process group are "
        "ended before the lease is over. Exit status: the command's; 75 the name is taken, 69 "
        "nobody knows whether the name is taken, 70 the lease was lost and the command was ended, "
        "77 something could not be ended."
    )
    requires_system_checks = ()  # the command has its own
    stealth_options = ("command",)  # call_command("redlock_run", "beat", command=["celery", …])
    _command: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Set aside what follows ``--``: argparse would look for our options in it."""
        if "--" in argv:
            end = argv.index("--")
            argv, self._command = argv[:end], argv[end + 1 :]
        else:
            self._called_from_command_line = True  # as Django does later: no traceback
            parser = self.create_parser(argv[0], argv[1])
            if parser.parse_known_args(argv[2:])[1]:
                parser.exit(2, f"{parser.format_usage()}{BEHIND}\n")
        try:
            super().run_from_argv(argv)
        except KeyboardInterrupt:
            # A shell ends its script when a command died of SIGINT, not when it exited with 130.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.usage = "manage.py redlock_run NAME [options] -- COMMAND [ARGUMENT ...]"
        parser.add_argument("name", metavar="NAME", help="the name to lock")
        parser.add_argument("--alias", default="default", help="an alias of REDLOCK")
        for option, what in {
            "--ttl": "after which the name is free if this process dies (default: the alias's TTL)",
            "--wait": "to wait in line while the name is taken; inf: for ever (default: 0)",
            "--max-hold": "after which the lease is no longer renewed, and the command is ended",
            "--min-hold": "for which the name stays taken, also when the command ends earlier",
            "--grace": "between SIGTERM and SIGKILL when the lease runs out (default: ttl / 3)",
        }.items():
            parser.add_argument(option, type=float, metavar="SECONDS", help=f"seconds {what}")
        parser.add_argument(
            "--limit",
            type=int,
            metavar="N",
            help="let N commands of this name run at a time, 1 to 128 (default: one)",
        )
        parser.add_argument(
            "--once-per",
            type=age,
            metavar="DURATION",
            help="do nothing, and exit with 0, if the command has succeeded on some server in so "
            "many seconds; 15m, 20h and 2d are minutes, hours and days",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Take the lock, run the command and exit with its status.

        Raises:
            CommandError: an option makes no sense, or the lock was not taken.
            KeyboardInterrupt: SIGINT came while it waited, or ended the command.
            SystemExit: with the status of the command, unless that is 0.
        """
        if not hasattr(os, "killpg"):
            needs = "redlock_run needs process groups, which Windows lacks: use WSL there"
            raise CommandError(needs)
        from django_redlock.management import child

        command = options.get("command") or self._command
        if isinstance(command, str):
            raise CommandError("command must be a list: the program and its arguments")
        if not command:
            raise CommandError(BEHIND)
        if threading.current_thread() is not threading.main_thread():
            raise CommandError(
                "redlock_run must be called in the main thread, which receives signals"
            )
        with child.Signals().caught() as signals:
            try:
                wait = 0.0 if options["wait"] is None else options["wait"]
                once = options["once_per"]
                keep = None if once is None else checked_keep(once, "--once-per")
                lock = redlock.using(options["alias"], label=_label(command[0]))(
                    options["name"],
                    ttl=options["ttl"],
                    wait=wait,
                    renew=True,
                    max_hold=math.inf if options["max_hold"] is None else options["max_hold"],
                    min_hold=options["min_hold"],
                    limit=options["limit"],
                )
                with lock if keep is None else lock.once(keep) as held:
                    self._run(held, command, options, signals)
            except LockTaken as error:
                if options["verbosity"] == 0:  # cron mails whatever is printed
                    raise SystemExit(TAKEN) from None
                raise CommandError(str(error), returncode=TAKEN) from None
            except NodesUnavailable as error:
                raise CommandError(str(error), returncode=UNKNOWN) from None
            except (ImproperlyConfigured, TypeError, ValueError) as error:
                raise CommandError(str(error)) from None

    def _run(
        self,
        held: Lease | OnceRun,
        command: Sequence[str],
        options: dict[str, Any],
        signals: child.Signals,
    ) -> None:
        """Run the command, unless it is done.

        Raises:
            SystemExit: with its status, unless that is 0; a command that failed leaves no record.
                With 128 and the number of a signal that asked it to end: nor does one that then
                ended with 0, for its work may be half done.
        """
        from django_redlock.management import child

        if isinstance(held, OnceRun) and held.at is not None:
            if options["verbosity"]:  # cron mails whatever is printed
                at = held.at.isoformat(timespec="seconds")
                self.stdout.write(f"done at {at}: nothing to do")
            return
        lease = held.lease if isinstance(held, OnceRun) else held
        assert lease is not None  # it is fresh
        grace = _grace(options["grace"], lease.grant.ttl)
        if status := child.run(lease, command, grace=grace, signals=signals):
            raise SystemExit(status)
        if isinstance(held, OnceRun) and signals.stop:
            name = signal.Signals(signals.stop).name
            why = f"{name} came while the command ran, so its work is not recorded as done"
            self.stderr.write(f"{options['name']!r}: {why}: the next run does it")
            raise SystemExit(128 + signals.stop)


def _label(program: str) -> str:
    """Return the owner label, ``host:process(program)``; an argument may be a secret."""
    host, _, process = process_label().rpartition(":")
    run = f":{process}({re.sub(r'[^a-zA-Z0-9_.+-]', '_', Path(program).name)[:LONGEST_PROGRAM]})"
    return host.encode()[: LABEL_BYTES - len(run)].decode(errors="ignore") + run


def _grace(seconds: float | None, ttl: float) -> float:
    if seconds is None:
        return ttl / RENEWALS
    if not 0 <= seconds < ttl * LEFT:
        msg = (
            f"--grace must be at least 0 and less than two thirds of the ttl of {ttl:g} s, for a "
            "lease is renewed when a third of it is over"
        )
        raise ValueError(msg)
    return seconds
