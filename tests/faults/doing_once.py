"""Do the work of many names once, beside others who do the same; a program for ``test_once``.

Each line of the file is one event, appended in one step: what happened, the name, the process id.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

import django
from django.conf import settings


class Log:
    """The file that all processes append to."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, event: str, name: str) -> None:
        """Append one line; a line is written whole or not at all."""
        os.write(self._file, f"{event} {name} {os.getpid()}\n".encode())


def record_first() -> None:
    """Break the package: the work is recorded before the body."""
    from django_redlock.locks.once import OnceLock

    begin = OnceLock._begin

    def hasty(self: OnceLock, block: Any) -> Any:
        run = begin(self, block)
        if run.lease is not None:
            run.lease.backend.run(self.record(run.lease))
        return run

    OnceLock._begin = hasty  # type: ignore[method-assign]


def main(path: str, names: int, broken: bool, alias: dict[str, Any]) -> None:
    """Go through all names until the work of each is done."""
    settings.configure(REDLOCK={"default": alias}, INSTALLED_APPS=["django_redlock"])
    django.setup()
    from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock

    if broken:
        record_first()
    log, open_ = Log(path), [f"name:{number}" for number in range(names)]
    while open_:
        random.shuffle(open_)
        for name in tuple(open_):
            try:
                with redlock(name, on_lost="raise").once(keep=3600) as run:
                    if run.fresh:
                        log.note("begins", name)
                        time.sleep(random.uniform(0.0, 0.2))
                        log.note("done", name)
            except (LeaseLost, LockTaken, NodesUnavailable):
                continue  # where this machine stalls, a lease may be lost: then there is no record
            log.note("recorded" if run.fresh else "met", name)
            open_.remove(name)
        time.sleep(0.05 * bool(open_))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
