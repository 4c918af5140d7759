"""A process whose many threads lock while it forks children that lock; run by test_forks.

Arguments: the alias as JSON, an empty folder, and "careless" if the children shall keep what is the
parent's. Prints one JSON line: how the children ended, and what went wrong in the threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from django.conf import settings

THREADS = 50
NAMES = 10
CHILDREN = 12
PATIENCE = 60  # seconds, in which a child that hangs is certain to


class Threads:
    """Threads that hold a name, and a file that no other holder may find."""

    def __init__(self) -> None:
        self.home = Path(sys.argv[2])
        self.wrong: list[str] = []
        self._enough, self._began = threading.Event(), threading.Semaphore(0)
        self._all = [threading.Thread(target=self._go_on, args=[each]) for each in range(THREADS)]

    def work(self, number: int) -> None:
        """Hold one of the names."""
        from django_redlock import redlock

        name = f"name-{number % NAMES}"
        with redlock(name, wait=PATIENCE):
            (self.home / name).touch(exist_ok=False)
            (self.home / name).unlink()

    def _go_on(self, number: int) -> None:
        try:
            self.work(number)
            self._began.release()
            while not self._enough.is_set():
                self.work(number)
        except Exception as error:  # noqa: BLE001 - told
            self.wrong.append(repr(error))
            self._began.release()

    def begin(self) -> None:
        """Start them, and wait until each has held a name."""
        for each in self._all:
            each.start()
        for _ in self._all:
            self._began.acquire()

    def end(self) -> None:
        """Have them end."""
        self._enough.set()
        for each in self._all:
            each.join()


def fork(threads: Threads, patience: int) -> int:
    """Fork a child that holds each name once; return its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(patience)
            for number in range(NAMES):
                threads.work(number)
            status = 0
        finally:
            os._exit(status)
    return child


def main() -> None:
    """See the module's docstring."""
    settings.configure(REDLOCK={"default": json.loads(sys.argv[1])})
    from django_redlock.nodes import background

    careless, threads = "careless" in sys.argv, Threads()
    threads.begin()
    if careless:
        background._in_child.clear()
    children = [fork(threads, 5 if careless else PATIENCE) for _ in range(CHILDREN)]
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    threads.end()
    left = [each.name for each in threads.home.iterdir()]
    print(json.dumps({"ends": ends, "wrong": threads.wrong, "left": left}))


if __name__ == "__main__":
    main()
