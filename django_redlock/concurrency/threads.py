"""Run jobs in background threads whose start cannot be interrupted.

``threading.Thread.start`` waits until the thread runs; an exception that a signal handler raises
in that wait leaves a thread that never runs its function (and prints a traceback).
``_thread.start_new_thread`` is one step: it started, or it did not. Such threads end silently with
the process, as daemon threads do.
"""

from __future__ import annotations

import _thread
import logging
import sys
import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("django_redlock")


def start_thread(function: Callable[..., object], *args: Any) -> None:
    """Run ``function`` in a thread of its own.

    Raises:
        RuntimeError: no thread can be started, e.g. while the interpreter shuts down.
    """
    _thread.start_new_thread(function, args)


class WorkerThreads:
    """Run jobs in background threads, in submission order.

    Each kind of job has threads while it has jobs. The threads count themselves, so that an
    interruption of the thread that submits a job loses at most that job.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._jobs: dict[object, deque[Callable[[], object]]] = {}
        self._workers: Counter[object] = Counter()

    def do(self, kind: object, job: Callable[[], object], *, most: int = 1) -> None:
        """Run ``job`` in the background, or here if there is no thread for it.

        Args:
            kind: jobs of one kind begin one after the other,
            most: … in so many threads.
        """
        if not self.offer(kind, job, most=most):
            _do(job)  # late beats never

    def offer(
        self, kind: object, job: Callable[[], object], *, most: int = 1, again: bool = True
    ) -> bool:
        """Run ``job`` in the background; return False if there is no thread for it.

        There is none while the interpreter shuts down, or when the process may have no more.
        Without ``again``, a job that is already submitted and has not begun is not submitted twice.
        """
        if sys.is_finalizing():  # a thread would be started, by Python 3.11, and never run
            return False
        with self._lock:
            submitted = self._jobs.setdefault(kind, deque())
            if again or job not in submitted:
                submitted.append(job)
            if self._workers[kind] >= most:
                return True
        try:
            start_thread(self._work, kind, most)
        except RuntimeError:
            with self._lock:
                jobs = self._jobs.get(kind)
                if self._workers[kind] or not jobs or job not in jobs:
                    return True  # a working thread will do it, or has begun it
                jobs.remove(job)
                self._tidy_up(kind)
                return False
        return True

    def _work(self, kind: object, most: int) -> None:
        with self._lock:
            if self._workers[kind] >= most:
                return
            self._workers[kind] += 1
        while job := self._next(kind):
            _do(job)

    def _next(self, kind: object) -> Callable[[], object] | None:
        with self._lock:
            jobs = self._jobs.get(kind)
            if jobs:
                return jobs.popleft()
            # First: what the garbage collector runs from here on may submit a job, for which a
            # thread must begin.
            self._workers[kind] -= 1
            self._tidy_up(kind)
            return None

    def _tidy_up(self, kind: object) -> None:
        if kind in self._jobs and not self._jobs[kind]:
            del self._jobs[kind]
        if kind in self._workers and not self._workers[kind]:
            self._workers.pop(kind, None)


def _do(job: Callable[[], object]) -> None:
    try:
        job()
    except BaseException:  # SystemExit, too: it would only end later jobs
        logger.exception("a job in the background failed")
