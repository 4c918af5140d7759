"""A command that runs only while a lease lasts.

    this process   holds the lease, has it renewed, and starts the command
    guardian       is told how long the lease lasts, and ends the command before that
    the command    in the guardian's process group, with most of what it starts itself

What leaves the process group is out of reach. So is a whole machine that stands still and goes on
later: there the fencing token protects the data.

The name is not released while something of the group runs. What cannot be killed, because it
belongs to another user or hangs in the kernel, is named and waited for.
"""

from __future__ import annotations

import errno
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import Final

from django_redlock.leases.lease import Lease

from . import LOST, NOT_ENDED, guardian

GUARDIAN: Final = (sys.executable, "-I", "-S", guardian.__file__)
LOOKS: Final = 20  # at the lease, in each ttl
LONGEST_LOOK: Final = 0.5  # seconds
MARGIN: Final = 20  # the part of a ttl, of at most half a second, before the deadline for SIGKILL
FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DYING: Final = 10.0  # seconds for killed processes to disappear, before they are named
NOT_FOUND, NOT_RUN = 127, 126  # exit statuses, as a shell has them


class Signals:
    """What a signal does to this process: it ends the waiting, or is left to the command.

    Attributes:
        stop: the number of the signal that asked the command to end; 0: none did.
    """

    def __init__(self) -> None:
        self.for_command = False
        self.stop = 0

    @contextmanager
    def caught(self) -> Iterator[Signals]:
        """Catch SIGTERM, SIGINT and SIGHUP, unless they are ignored, as under ``nohup``."""
        before = {each: signal.getsignal(each) for each in (*FORWARDED, signal.SIGCHLD)}
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for each in FORWARDED:
            if before[each] is not signal.SIG_IGN:
                signal.signal(each, self._handle)
        try:
            yield self
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if not self.for_command:  # leave the queue, or release
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def run(lease: Lease, command: Sequence[str], *, grace: float, signals: Signals) -> int:
    """Run a command to its end while the lease lasts.

    Args:
        lease: held; its renewal is the watchdog's.
        command: the program and its arguments.
        grace: seconds before the deadline at which the group gets SIGTERM.
        signals: where the group is to get those of this process; it has the one that came.

    Returns:
        The exit status: the command's; 128 and the signal's number if a signal ended it; 127 and
        126 as of a shell; 70 if it was ended, or not started, because the lease was over or nobody
        watched; 77 if it, or what it has started, could not be ended.

    Raises:
        KeyboardInterrupt: SIGINT ended the command.
    """
    with closing(Job(lease, grace)) as job:
        try:
            status = job.run(command, signals)
        finally:
            had_terminal = _take_terminal(job.group)
            is_over = job.end()
    if not is_over:
        return NOT_ENDED
    if status is None or lease.lost:
        sys.stderr.write(f"{job.why}\n")
        return LOST
    if status == -signal.SIGINT:
        if had_terminal:  # it told the command's group only, and a script around us is to hear it
            os.killpg(0, signal.SIGINT)
        raise KeyboardInterrupt
    return status if status >= 0 else 128 - status


class Job:
    """A command, and the guardian in whose process group it runs.

    Attributes:
        group: the number of the process group, and of the guardian.
        why: why the command was ended, if it was.
    """

    def __init__(self, lease: Lease, grace: float) -> None:
        self._lease, self._grace = lease, grace
        self._clock = lease.backend.policy.clock
        self._command: subprocess.Popen[bytes] | None = None
        self._ordered: tuple[float, float] | None = None
        self._woken_before = -1
        self._heard: set[int] = set()
        self._lost_at = math.inf  # when the loss of the lease was noticed
        self.why = f"{lease.name!r}: the lease was lost, and the command was ended"
        # When the orders are closed, the guardian ends, wherever this process was interrupted.
        self._orders, self._say = _pipe()
        self._hear, self._signals_in = _pipe()
        self._order()
        # The signals of the group are for the command only, and Ctrl-Z does not stop the guardian.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            ends = self._orders.fileno(), self._signals_in.fileno()
            self._guardian = subprocess.Popen(  # noqa: S603 - our own program
                [*GUARDIAN, *map(str, ends)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=ends,
                process_group=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.group = self._guardian.pid

    def close(self) -> None:
        """Close the pipes."""
        signal.set_wakeup_fd(self._woken_before)
        for each in (self._orders, self._say, self._hear, self._signals_in):
            each.close()

    def run(self, command: Sequence[str], signals: Signals) -> int | None:
        """Run the command, and pass signals on to it.

        Returns:
            Its status as ``subprocess`` has it, or 127 and 126 as of a shell. None: it was asked to
            end, is to be killed or was not started, for its time was over or nobody watches.
        """
        # Python writes the number of each signal to it, also of SIGCHLD: a child ends, or stops.
        self._woken_before = signal.set_wakeup_fd(
            self._signals_in.fileno(), warn_on_full_buffer=False
        )
        if not self._may_begin():
            return None
        if os.isatty(1):  # ``| less`` is in our group, and needs the terminal itself
            _give_terminal(self.group)
        variables = {"NAME": "\n".join(self._lease.names), "FENCE": str(self._lease.fence)}
        if self._lease.slot is not None:
            variables["SLOT"] = str(self._lease.slot)
        signals.for_command = True
        try:
            self._command = subprocess.Popen(  # noqa: S603 - the command is what is asked for
                command,
                close_fds=False,  # the command is to have what a shell has opened for it
                process_group=self.group,
                env=os.environ | {f"REDLOCK_{key}": text for key, text in variables.items()},
            )
        except OSError as error:
            sys.stderr.write(f"{command[0]}: {error.strerror}\n")
            return NOT_FOUND if error.errno == errno.ENOENT else NOT_RUN
        status = self._watch(self._command)
        signals.stop = self._stopped_by()
        return status

    def _may_begin(self) -> bool:
        """Wait until the guardian watches; return False if it does not in time."""
        heard = b""
        while (left := self._order()[0] - self._clock()) > 0 and self._is_watched():
            if guardian.BEGUN in heard:
                return True
            heard = self._listen(left)
        return False

    def _watch(self, command: subprocess.Popen[bytes]) -> int | None:
        """Wait until the command has ended, or is to be killed; return as ``run``."""
        heard, asked, has_left = b"", False, False
        while command.poll() is None:
            stopped = _has_stopped(command.pid)  # and this process with it, for long
            left = self._order()[1] - self._clock()
            if left <= 0 or not self._is_watched():  # the guardian stands still, or was killed
                return None
            if stopped:
                _give_terminal(self.group)
                self._send(signal.SIGCONT)
            if not has_left and self._groups() != {self.group}:
                has_left = True
                why = "nothing ends it when redlock_run is killed; timeout has --foreground"
                self._warn(f"the command has left its process group: {why}")
            heard = self._listen(left)
            asked = asked or guardian.ASKED in heard
            for number in FORWARDED:
                if number in heard:
                    self._pass_on(number)
        return None if asked or guardian.ASKED in self._listen(0) else command.returncode

    def _listen(self, left: float) -> bytes:
        """Return what the guardian has said and which signals have come; wait for it, not long."""
        look = min(self._lease.grant.ttl / LOOKS, LONGEST_LOOK, left)
        select.select([self._hear.fileno()], [], [], look)
        heard = self._hear.read(guardian.PAGE) or b""
        self._heard.update(heard)
        return heard

    def _stopped_by(self) -> int:
        """Return the signal that asked this process or the command's group to end; 0: none did.

        Ctrl-C reaches the group alone. The guardian is in it, and keeps such a signal pending.
        """
        came = self._heard
        with suppress(OSError):  # no /proc
            text = Path(f"/proc/{self.group}/status").read_text(encoding="utf-8")
            pending = int(re.findall(r"ShdPnd:\s*(\w+)", text)[0], 16)
            came |= {number for number in FORWARDED if pending >> (number - 1) & 1}
        heeded = (each for each in FORWARDED if signal.getsignal(each) is not signal.SIG_IGN)
        return next((each for each in heeded if each in came), 0)

    def _is_watched(self) -> bool:
        """Return False if the guardian was killed; it is not reaped, for its number is in use."""
        with suppress(AttributeError):  # no waitid
            if os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                why = "the process that watches the command was killed, and the command was ended"
                self.why = f"{self._lease.name!r}: {why}"
                return False
        return True

    def _order(self) -> tuple[float, float]:
        """Tell the guardian when to send SIGTERM and SIGKILL, if that has changed; return it."""
        grant = self._lease.grant
        term = grant.deadline - self._grace
        kill = grant.deadline - min(0.5, grant.ttl / MARGIN)
        if self._lease.lost:  # somebody else may have the name already
            self._lost_at = min(self._lost_at, self._clock())
            term, kill = min(term, self._lost_at), min(kill, self._lost_at + self._grace)
        if (term, kill) != self._ordered:
            order = guardian.ORDER.pack(term, kill)
            while self._say.write(order) is None:  # the guardian stands still, and its pipe is full
                self._orders.read(guardian.PAGE)  # the oldest orders make room for the newest one
            self._ordered = term, kill
        return term, kill

    def _groups(self) -> set[int]:
        """Return the group, and that of the command if it has left for another one."""
        groups = {self.group}
        if self._command and self._command.returncode is None:  # its number is still its own
            groups.add(os.getpgid(self._command.pid))
        return groups

    def _send(self, number: int) -> None:
        for group in self._groups():
            with suppress(PermissionError):  # callers look at what is still there
                os.killpg(group, number)

    def _pass_on(self, number: int) -> None:
        """Send the command a signal that this process has had."""
        self._send(number)
        self._send(signal.SIGCONT)  # it may be stopped, and is to end
        pids = [pid for pid in _running(self._groups()) if guardian.refuses(pid)]
        if pids:
            name = signal.Signals(number).name
            self._warn(f"no permission to send {name} to {guardian.listed(pids)}")

    def end(self) -> bool:
        """Kill what still runs, and wait until nothing does: the name must not be free before.

        Returns:
            False if something could not be killed; it was named.
        """
        groups = self._groups()
        self._send(signal.SIGKILL)
        self._guardian.wait()
        name_at, named = time.monotonic() + DYING, ""
        while pids := _running(groups):
            if named or time.monotonic() > name_at or any(map(guardian.refuses, pids)):
                before, listed = named, guardian.listed(pids)
                named = "the lease is lost" if self._lease.lost else "the name stays taken"
                named += f", and redlock_run waits for {listed}, which SIGKILL does not end"
                if named != before:
                    self._warn(f"{named}: no permission, or it hangs in the kernel")
            time.sleep(LONGEST_LOOK if named else 0.005)
            if self._command:
                self._command.poll()
        if self._command:
            self._command.wait()
        return not named

    def _warn(self, text: str) -> None:
        sys.stderr.write(f"{self._lease.name!r}: {text}\n")


def _running(groups: Iterable[int]) -> list[int]:
    return [pid for group in groups for pid in guardian.running(group)]


def _pipe() -> tuple[FileIO, FileIO]:
    ends = os.pipe()
    for each in ends:
        os.set_blocking(each, False)
    return FileIO(ends[0], "rb"), FileIO(ends[1], "wb")


def _has_stopped(command: int) -> bool:
    """Return True if the terminal has stopped the command, after the same was done to us.

    Ctrl-Z stops the command, which has the terminal. The shell waits for this process, so it
    stops, too, with the others of its own group. The lines after that run when the shell continues
    it, or at once where there is no shell that could.
    """
    with suppress(AttributeError, ChildProcessError):  # no waitid; it has ended
        stopped = os.waitid(os.P_PID, command, os.WSTOPPED | os.WNOHANG)
        # SIGSTOP comes from no terminal, and may be for the command only.
        if stopped and stopped.si_status in {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}:
            if stopped.si_status == signal.SIGTSTP or not _have_terminal():
                os.killpg(0, stopped.si_status)
            return True  # else it asks for the terminal, which it is now given
    return False


def _have_terminal() -> bool:
    """Return True if this process's group is the one that may read from the terminal."""
    with suppress(OSError):  # there is none
        return os.tcgetpgrp(0) == os.getpgrp()
    return False


def _give_terminal(group: int) -> None:
    """Let the command have the terminal, if this process has it, as a shell does for a job."""
    with suppress(OSError):  # the terminal hangs up, or the guardian was killed
        if _have_terminal():
            os.tcsetpgrp(0, group)


def _take_terminal(group: int) -> bool:
    """Take the terminal back; return False if the command did not have it."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with suppress(OSError):
            if os.tcgetpgrp(0) == group:
                os.tcsetpgrp(0, os.getpgrp())
                return True
    finally:
        signal.signal(signal.SIGTTOU, before)
    return False
