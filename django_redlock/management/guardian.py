"""The process that starts a command, and ends it in time: before its lease can be over.

``child`` starts this file by its path, as the leader of a process group of its own, and gives it
two pipes: one with orders, on which it hears how long the lease lasts, and one for the result. The
command is its child, in the same group, and there is no moment at which the command runs and nobody
watches.

What the command starts may leave the group: ``timeout`` does, and each job of a shell. On Linux the
guardian finds it there: a process whose parent has ended becomes a child of the guardian. On other
systems it reaches the group only.

It does not trust its parent to be alive: no news is bad news. When the last deadline that it has
heard of comes near, it ends the command; when the orders end, because the parent was killed, it
ends it at once. It imports the standard library only, so it starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

LATE, FAILED = "late", "failed"  # instead of an exit status
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
EMPTY = 2.0  # seconds for killed processes to disappear
PR_SET_CHILD_SUBREAPER = 36  # of Linux, <sys/prctl.h>


def now() -> float:
    """Return the time on the clock of leases; see ``core.policy.boottime``."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def started_by(pid: int) -> list[int]:
    """Return the processes that this one has started, and those that they have started: on Linux.

    Also those that have ended and nobody has waited for.
    """
    found = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for each in map(int, children.read_text().split()):
                found += [each, *started_by(each)]
    return found


def send(number: int, pids: list[int]) -> None:
    """Send a signal to each of them that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def adopt() -> None:
    """Become the parent of what this process has started when its own parent ends: on Linux."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Guardian:
    """A command, and until when it may run.

    Args:
        orders: a descriptor; each line is ``[term, kill]``, two moments on the clock of leases.
        result: a descriptor; an exit status, or why there is none, is written to it.
    """

    def __init__(self, orders: int, result: int) -> None:
        self._orders, self._result = orders, result
        self._signals, self._wake = os.pipe()  # Python writes the number of each signal to it
        self._unread = b""
        self._term, self._kill = 0.0, 0.0
        self._asked = False  # whether SIGTERM was sent
        self._command: subprocess.Popen[bytes] | None = None
        self._status: int | None = None

    def run(self, command: list[str]) -> None:
        """Run the command to its end, or end it."""
        if not self._start(command):
            return
        while not self._has_ended():
            moment = self._kill if self._asked else self._term
            ready, _, _ = select.select(
                [self._orders, self._signals], [], [], max(0.0, moment - now())
            )
            for number in self._heard():
                self._pass_on(number)
            if self._orders in ready:
                self._read()
            if now() >= self._kill:
                self._end()
                self._tell(LATE)
                os.killpg(0, signal.SIGKILL)
            if now() >= self._term and not self._asked:
                self._asked = True
                os.killpg(0, signal.SIGTERM)  # it comes here, too, and is passed on
        self._end()
        self._tell(LATE if self._asked else self._status)

    def _start(self, command: list[str]) -> bool:
        """Start the command; or tell why not, and return False."""
        self._read(blocking=True)  # nothing is started before the first deadline is known
        for each in (self._signals, self._wake):
            os.set_blocking(each, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        # A handler, unlike SIG_IGN, is not inherited by the command. What is ignored already stays
        # so, as under ``nohup``.
        ignored = {each for each in ENDING if signal.getsignal(each) is signal.SIG_IGN}
        for caught in {signal.SIGCHLD, *ENDING} - ignored:
            signal.signal(caught, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)  # ``child`` has blocked them
        if heard := self._heard():
            self._tell(-heard[0])
            return False
        if now() >= self._term:  # this process stood still, or was slow to start
            self._tell(LATE)
            return False
        adopt()
        try:
            # Descriptors of Python are not inherited, those that came from a shell are: ``<(...)``.
            self._command = subprocess.Popen(command, close_fds=False)  # noqa: S603 - as asked for
        except OSError as error:
            self._tell(FAILED, error.errno, error.strerror)
            return False
        for number in self._heard():  # the group had it when there was no command yet
            os.killpg(0, number)
        return True

    def _has_ended(self) -> bool:
        """Return True if the command has; wait for all that has ended, also what was adopted."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if self._command and ended[0] == self._command.pid:
                    self._status = os.waitstatus_to_exitcode(ended[1])
        return self._status is not None

    def _pass_on(self, number: int) -> None:
        """Send a signal that the group had to what has left the group."""
        group, there = os.getpgrp(), []
        for each in started_by(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(each) != group:
                    there.append(each)
        send(number, there)

    def _end(self) -> None:
        """Kill all that the command has started, until nothing is left."""
        end = now() + EMPTY
        # What is started meanwhile comes to this process when its parent ends.
        while now() < end and (found := started_by(os.getpid())):
            send(signal.SIGKILL, found)
            time.sleep(0.001)
            self._has_ended()

    def _read(self, *, blocking: bool = False) -> None:
        while True:
            more = os.read(self._orders, 4096)
            if not more:  # the parent is gone, and with it the lease's renewal
                self._end()
                os.killpg(0, signal.SIGKILL)
            *lines, self._unread = (self._unread + more).split(b"\n")
            if lines:
                self._term, self._kill = json.loads(lines[-1])
            if lines or not blocking:
                return

    def _heard(self) -> list[int]:
        """Return the numbers of the signals that have come since the last look."""
        try:
            return [each for each in os.read(self._signals, 4096) if each in ENDING]
        except BlockingIOError:
            return []

    def _tell(self, *result: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._result, json.dumps(result).encode())


def main(orders: str, result: str, *command: str) -> None:
    """Run the command.

    Args:
        orders, result: numbers of descriptors.
        command: the program and its arguments.
    """
    for each in (orders, result):
        os.set_inheritable(int(each), False)  # noqa: FBT003 - it takes no keyword
    Guardian(int(orders), int(result)).run(list(command))


if __name__ == "__main__":
    main(*sys.argv[1:])
