"""Background threads, forked children, and objects of event loops.

**Threads whose start cannot be interrupted.** ``threading.Thread.start`` waits until the thread
runs; an interruption of that wait leaves a thread that never runs its function (and prints a
traceback). ``_thread.start_new_thread`` is one step: it started, or it did not. Such threads end
silently with the process, as daemon threads do.

**Forks.** A child has one thread: the one that forked. A lock that another thread of the parent
held at that moment is held for ever in the child. So each object that outlives a call and has a
lock makes a new one in the child. A server that forks in C, as uWSGI does, calls no hook of Python:
there the first request of the child sees that the process is another one.

**Time in which this process ran.** A node is silent when it gives no sign while a thread listens. A
thread that does not get the processor, or waits for the interpreter's lock, hears nothing: that is
not the node's fault. So a wait is cut into short parts. If a part ends in time, the threads that
connect could run as well; the time by which it ends late does not count.

**One end.** Every thread of the package is one of ``WorkerThreads``. ``end`` asks their jobs to
come to an end, and waits for that.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import math
import os
import select
import sys
import threading
import time
import weakref
from bisect import bisect_right
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar

from django_redlock.interruption import ThreadWakeup, collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Poll: TypeAlias = "select.poll | EventletPoll"


logger = logging.getLogger("django_redlock")


def start_thread(function: Callable[..., object], *args: Any) -> None:
    """Run ``function`` in a thread of its own.

    Raises:
        RuntimeError: no thread can be started, e.g. while the interpreter shuts down.
    """
    _thread.start_new_thread(function, args)


def refuse_native_thread() -> None:
    """Check that this thread runs greenlets, where gevent has patched the process.

    What ``start_thread`` starts would be a greenlet of this thread: one that renews nothing while
    the thread computes. And gevent's locks may hang, or crash the process, between native threads.

    Raises:
        RuntimeError: it is a native thread, as those of gevent's threadpool.
    """
    if _thread.start_new_thread.__module__ != "gevent.thread":
        return
    if not sys.modules["gevent"].get_hub().main_hub:
        msg = (
            "gevent has patched this process, and locks do not work in its native threads: take "
            "the lock in a greenlet, and have only the work done in gevent's threadpool"
        )
        raise RuntimeError(msg)


class EventletPoll:
    """What ``select.poll`` does, where eventlet has removed it.

    ``select.select`` of eventlet is no way to wait for several sockets: where two are ready at
    once, it resumes the greenlet for the second one as well, whatever that waits for by then.
    """

    def __init__(self) -> None:
        eventlet = sys.modules["eventlet"]
        self._poll: select.poll = eventlet.patcher.original("select").poll()
        self._hub = eventlet.hubs.get_hub
        self._events: dict[int, int] = {}

    def register(self, fileno: int, events: int) -> None:
        """Report from now on when this file descriptor is ready for one of these events."""
        self._poll.register(fileno, events)
        self._events[fileno] = events

    modify = register

    def unregister(self, fileno: int) -> None:
        """Report this file descriptor no more."""
        self._poll.unregister(fileno)
        del self._events[fileno]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """Wait until one is ready, for at most so long; return those that are, and for what."""
        if (ready := self._poll.poll(0)) or milliseconds <= 0:
            return ready
        hub, resume = self._hub(), sys.modules["eventlet"].getcurrent().switch
        timers = [hub.schedule_call_global(milliseconds / 1000, resume)]

        def wake(*_: object) -> None:
            if len(timers) == 1:  # else it is awake, or about to be
                timers.append(hub.schedule_call_global(0, resume))

        listeners: list[Any] = []
        try:
            for fileno, events in self._events.items():
                for kind, event in (hub.READ, select.POLLIN), (hub.WRITE, select.POLLOUT):
                    if events & event:
                        listeners.append(hub.add(kind, fileno, wake, wake, wake))
            hub.switch()
        finally:
            for timer in timers:
                timer.cancel()
            timers.clear()
            for listener in listeners:
                hub.remove(listener)
        return self._poll.poll(0)


def new_poll() -> Poll:
    """Return what waits for sockets; a server may have patched ``select`` after the import.

    Raises:
        RuntimeError: it is a system without ``poll``, such as Windows.
    """
    if hasattr(select, "poll"):
        return select.poll()
    if "eventlet" not in sys.modules:
        msg = "django-redlock waits for sockets by select.poll, which Windows lacks: use WSL there"
        raise RuntimeError(msg)
    return EventletPoll()


class WorkerThreads:
    """Run jobs in background threads, in submission order.

    Each kind of job has threads while it has jobs. The threads count themselves, so that an
    interruption of the thread that submits a job loses at most that job.

    Attributes:
        until: ``time.monotonic`` when all jobs are to be over; infinite unless ``end`` waits for
            that. A job that lasts looks at it, and rests by ``pause``.
        wakeups: of jobs that rest.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._jobs: dict[object, deque[Callable[[], object]]] = {}
        self._workers: Counter[object] = Counter()
        self.wakeups: dict[ThreadWakeup, None] = {}
        self.until = math.inf

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
            _at_work[id(self)] = self
            submitted = self._jobs.setdefault(kind, deque())
            is_new = again or job not in submitted
            if is_new:
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
                if is_new:  # else the thread that is about to begin does it, if there is one
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
        if not (self._jobs or self._workers):
            _at_work.pop(id(self), None)
            if self._jobs or self._workers:  # collecting garbage may have submitted a job
                _at_work[id(self)] = self

    def pause(self, seconds: float) -> None:
        """Rest in a job for so many seconds, or until all jobs are to be over soon."""
        wakeup = ThreadWakeup()
        self.wakeups[wakeup] = None
        if self.until == math.inf:
            wakeup.sleep(seconds)
        else:
            time.sleep(min(seconds, SOON))
        self.wakeups.pop(wakeup, None)

    def end_by(self, until: float) -> None:
        """Ask all jobs to be over by this ``time.monotonic``; infinite: no more."""
        self.until = until
        for wakeup in list(self.wakeups):
            wakeup.wake()

    def doing(self) -> list[str]:
        """Return the kinds of the jobs that threads do, or are about to do."""
        with self._lock:
            return [str(kind) for kind in {*self._jobs, *self._workers}]

    def begin_again(self) -> None:
        """Start a thread for each kind that has none: an interruption may have lost its start."""
        with self._lock:
            kinds = [kind for kind in self._jobs if not self._workers[kind]]
        with suppress(RuntimeError):  # no thread can be started
            for kind in kinds:
                start_thread(self._work, kind, 1)


def _do(job: Callable[[], object]) -> None:
    try:
        job()
    except BaseException:  # SystemExit, too: it would only end later jobs
        logger.exception("a job in the background failed")


# -- what the garbage collector begins ----------------------------------------------------------

MOST_HANDED: Final = 8  # threads that do it at the same time


class Garbage:
    """Do in the background what the collector has begun in any thread; see ``Collector``."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the jobs, as a forked child must: they are its parent's."""
        self._threads = WorkerThreads()

    def take(self, job: Callable[[], object]) -> bool:
        """Do the job; return False if there is no thread for it."""
        return self._threads.offer("garbage", job, most=MOST_HANDED)


_garbage: Final = Garbage()
collector.hand_over = _garbage.take


# -- their end ------------------------------------------------------------------------------------

CLOSE_TIMEOUT: Final = 5.0  # seconds for which an end is waited for
SOON: Final = 0.005  # seconds between two looks whether jobs are over
_at_work: Final[dict[int, WorkerThreads]] = {}  # those with jobs, by identity


def at_work() -> list[WorkerThreads]:
    """Return the pools of this process that have jobs."""
    return list(_at_work.values())


def end(pools: Iterable[WorkerThreads], seconds: float) -> list[str]:
    """Ask the jobs of these pools to come to an end, and wait for so many seconds at most.

    A job that is submitted meanwhile may end at once; later ones run as ever.

    Returns:
        The kinds of the jobs that are not over by then.
    """
    ending, until = list(pools), time.monotonic() + seconds
    for pool in ending:
        pool.end_by(until)
        pool.begin_again()
    try:
        while (left := _kinds(ending)) and time.monotonic() < until:
            time.sleep(SOON / 5)
    finally:
        for pool in ending:
            pool.end_by(math.inf)
    return left  # seen when the time was over: collecting garbage may submit a job at any moment


def end_all(seconds: float) -> list[str]:
    """Do the same with all pools of the process, also with those that get a job meanwhile."""
    until = time.monotonic() + seconds
    while pools := at_work():
        if (left := until - time.monotonic()) <= 0:
            return _kinds(pools)
        end(pools, left)
    return []


def _kinds(pools: Iterable[WorkerThreads]) -> list[str]:
    return [kind for pool in pools for kind in pool.doing()]


# -- forks ----------------------------------------------------------------------------------------


class Resettable(Protocol):
    """An object with a lock."""

    def reset(self) -> None:
        """Replace what a forked child must not share with its parent."""


_things: weakref.WeakSet[Resettable] = weakref.WeakSet()
_in_child: Final[list[Callable[[], object]]] = []
_beginning: Final[dict[int, threading.RLock]] = {}  # by process id: a parent's may be held
_process = os.getpid()  # the one whose state this is


def call_in_child(function: Callable[[], object]) -> None:
    """Call ``function`` in every child that is forked from now on; it may be called twice."""
    _in_child.append(function)


def notice_fork() -> None:
    """Forget what is the parent's, if this is a forked child that has not done so yet.

    What sends a request or takes a lock of the package calls this first.
    """
    if os.getpid() != _process:
        _begin_in_child()


def _begin_in_child() -> None:
    global _process  # noqa: PLW0603 - the state of this module
    process = os.getpid()
    with _beginning.setdefault(process, threading.RLock()):
        if _process != process:
            for function in _in_child:
                function()
            _process = process  # last: until then other threads wait


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def reset_in_child(thing: Resettable) -> None:
    """Call ``thing.reset`` in every child that is forked while ``thing`` is alive."""
    _things.add(thing)


def _reset() -> None:
    for thing in tuple(_things):
        thing.reset()


call_in_child(_at_work.clear)
call_in_child(_garbage.reset)
call_in_child(collector.reset)
call_in_child(_reset)


T = TypeVar("T")


# Returns the event loop that runs in this thread, or None; the public one raises, slowly.
running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop  # noqa: SLF001


def _nothing() -> None:
    pass


class PerLoop(Generic[T]):
    """One object per event loop, made at the first use.

    Weak both ways: a loop keeps its object alive by waiting for it, and the object does not keep
    the loop alive.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[T]] = (
            weakref.WeakKeyDictionary()
        )
        # The loop that asked last, nearly always the only one, and its object.
        self._last: tuple[Callable[[], object], Callable[[], T | None]] = (_nothing, _nothing)

    def of(self, loop: asyncio.AbstractEventLoop) -> T:
        """Return the object of ``loop``, which runs in this thread."""
        last, latest = self._last
        if last() is loop and (made := latest()) is not None:
            return made
        reference = self._made.get(loop)
        made = reference() if reference else None
        if made is None:
            made = self._make()
            self._made[loop] = weakref.ref(made)
        self._last = weakref.ref(loop), weakref.ref(made)
        return made

    def made(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Return the loops that have an object, each with its object."""
        found = []
        for reference in self._made.keyrefs():  # a list: other threads may add to it
            loop = reference()
            latest = self._made.get(loop) if loop is not None else None
            made = latest() if latest is not None else None
            if loop is not None and made is not None:
                found.append((loop, made))
        return found


PARTS: Final = 8  # of a timeout


class ListeningTime:
    """Measure the time for which one request has listened.

    Args:
        timeout: seconds, of which one part is an eighth.
        start: ``time.monotonic`` when it began.

    Attributes:
        waited: seconds of all waits, without those by which they ended late.
        late: seconds by which the last wait ended late.
    """

    def __init__(self, timeout: float, start: float) -> None:
        self.waited = self.late = 0.0
        self._listened = 0.0  # a wait that ended late counts for so much less
        self._part = timeout / PARTS
        self._times = [start]
        self._marks = [0.0]  # ``_listened`` at each of these times

    def part(self, seconds: float) -> float:
        """Return for how many seconds to wait next, where so many are left.

        It is not much less than a part: any thread ends a very short wait late.
        """
        return min(max(seconds, self._part / PARTS), self._part)

    def waited_for(self, part: float, start: float) -> None:
        """Count one wait that began at ``start``.

        Args:
            part: seconds for which it was to last at the most.
        """
        now = time.monotonic()
        waited = min(part, now - start)
        self.late = max(0.0, now - start - part)
        self.waited += waited
        self._listened += max(0.0, waited - self.late)
        self._times.append(now)
        self._marks.append(self._listened)

    def silence(self, since: float | None) -> float:
        """Return the seconds of listening since a node's last sign.

        Args:
            since: ``time.monotonic`` of the sign; None while none can be expected.
        """
        if since is None:
            return 0.0
        mark = bisect_right(self._times, since) - 1
        listened = self._listened - self._marks[max(0, mark)]
        return min(listened, max(0.0, self._times[-1] - since))
