"""The management commands of the package, and a mixin that locks those of a project."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any, ClassVar, Final

from django.core.management.base import BaseCommand, CommandError, OutputWrapper

from django_redlock import redlock
from django_redlock.core.errors import LeaseLost, LockTaken, NodesUnavailable
from django_redlock.leases.lease import Lease

__all__ = ["LockedCommand"]
# Exit statuses, of sysexits.h: EX_TEMPFAIL, EX_UNAVAILABLE, EX_SOFTWARE and EX_NOPERM.
TAKEN, UNKNOWN, LOST, NOT_ENDED = 75, 69, 70, 77
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def age(text: str) -> float:
    """Return the seconds in a text such as 90, 90s, 15m, 1h or 2d."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    try:
        return float(number) * UNITS[unit]
    except ValueError:
        msg = f"{text!r} is no duration: write seconds, as in 90, or with a unit 90s, 15m, 1h, 2d"
        raise ArgumentTypeError(msg) from None


class LockedCommand(BaseCommand):
    """A management command that runs on one server at a time.

    Where it runs already, it prints one line, with ``--verbosity 0`` none, and exits with 0: to
    cron that is no failure::

        class Command(LockedCommand):
            lock_name = "import:{source}"
            lock_options = {"max_hold": 3600}

    Attributes:
        lock_name: the name to lock; fields are filled from the options of the command. None:
            ``command:`` and the name of the module.
        lock_alias: the alias whose nodes decide.
        lock_options: options of the lock; see ``LockTemplate.__call__``.
        lease: the lease, while the command runs: write ``self.lease.fence`` with your data, and
            call ``self.lease.ensure()`` before each step that must not be done twice.
    """

    lock_name: str | None = None
    lock_alias: str = "default"
    lock_options: ClassVar[dict[str, Any]] = {}
    lease: Lease

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command under its lock; nothing of it, its checks included, runs without.

        Raises:
            CommandError: no majority of the nodes could be asked (exit status 69), or the lease
                was lost while the command ran (70).
        """
        name = self.lock_name or f"command:{type(self).__module__.rpartition('.')[2]}"
        template = redlock.using(self.lock_alias, on_lost="raise")
        lock, began = template(name, **self.lock_options).filled(options), False
        try:
            with lock as self.lease:
                began = True
                return super().execute(*args, **options)
        except LockTaken as error:
            if began:  # another lock, which the command takes itself
                raise
            if options.get("verbosity") != 0:
                # As ``execute`` does it, which was not called.
                out = OutputWrapper(given) if (given := options.get("stdout")) else self.stdout
                out.write(f"{error}: nothing is done here")
            return None
        except NodesUnavailable as error:
            if began:
                raise
            raise CommandError(str(error), returncode=UNKNOWN) from error
        except LeaseLost as error:
            raise CommandError(str(error), returncode=LOST) from error
