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
    """Jobs that must not hold up who orders them: those of one kind run one after the other.

    A kind has a thread for as long as it has jobs, and no longer.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._jobs: dict[object, deque[Callable[[], object]]] = {}

    def do(self, kind: object, job: Callable[[], object]) -> None:
        """Have ``job`` done, after all others of its kind."""
        with self._lock:
            jobs = self._jobs.get(kind)
            if jobs is not None:
                jobs.append(job)
                return
            self._jobs[kind] = deque([job])
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
            jobs = self._jobs[kind]
            if jobs:
                return jobs.popleft()
            del self._jobs[kind]
            return None
