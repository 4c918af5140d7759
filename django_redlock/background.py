"""Threads of our own, started so that an interruption cannot tear them.

``threading.Thread.start`` waits for the thread to say that it runs; an exception that a signal
handler raises in that wait leaves a thread that never runs its function (and prints a
traceback). ``_thread.start_new_thread`` is one step: it started, or it did not. Such threads
end with the process, without a word, as daemon threads do.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("django_redlock")


def start_thread(function: Callable[..., object], *args: Any) -> None:
    """Run ``function`` in a thread of its own.

    Raises:
        RuntimeError: no thread can be had, e.g. while the interpreter shuts down.
    """
    _thread.start_new_thread(function, args)


class Crew:
    """Jobs that must not hold up who orders them, done in the order in which they were ordered.

    A kind has threads for as long as it has jobs, and no longer.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._jobs: dict[object, deque[Callable[[], object]]] = {}
        self._workers: dict[object, int] = {}

    def do(self, kind: object, job: Callable[[], object], *, most: int = 1) -> None:
        """Have ``job`` done, when at most so many of its kind are being done."""
        with self._lock:
            self._jobs.setdefault(kind, deque()).append(job)
            workers = self._workers.get(kind, 0)
            if workers >= most:
                return
            self._workers[kind] = workers + 1
        try:
            start_thread(self._work, kind)
        except RuntimeError:  # out of threads, or the interpreter shuts down: late beats never
            self._work(kind)

    def _work(self, kind: object) -> None:
        while job := self._next(kind):
            try:
                job()
            except BaseException:  # an exit, too: here it ends no program, only later jobs
                logger.exception("a job in the background failed")

    def _next(self, kind: object) -> Callable[[], object] | None:
        with self._lock:
            jobs = self._jobs.get(kind)
            if jobs:
                return jobs.popleft()
            self._jobs.pop(kind, None)
            self._workers[kind] -= 1
            if not self._workers[kind]:
                del self._workers[kind]
            return None
