"""A command that runs only while a lease lasts.

    this process   holds the lease, has it renewed, and says how long it lasts
    guardian       starts the command, and ends it before the last deadline it has heard of
    the command    in the guardian's process group, with most of what it starts itself

Out of reach is a whole machine that stands still and goes on later: there the fencing token
protects the data. So is what has left the group, when the guardian itself is killed.
"""

from __future__ import annotations

import errno
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from django.utils.translation import gettext

from django_redlock.leases.lease import Lease

from . import LOST, guardian

GUARDIAN: Final = (sys.executable, "-I", "-S", guardian.__file__)
LOOKS: Final = 20  # at the lease, in each ttl
LONGEST_LOOK: Final = 0.5  # seconds
MARGIN: Final = 20  # the part of a ttl, of at most half a second, before the deadline for SIGKILL
FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ROUNDS: Final = 3  # of killing: what is started during one is there in the next
NOT_FOUND, NOT_RUN = 127, 126  # exit statuses, as a shell has them


class Signals:
    """What a signal does to this process: it ends the waiting, or goes to the command."""

    def __init__(self) -> None:
        self.group: int | None = None

    @contextmanager
    def caught(self) -> Iterator[Signals]:
        """Catch SIGTERM, SIGINT and SIGHUP, unless they are ignored, as under ``nohup``."""
        before = {each: signal.getsignal(each) for each in FORWARDED}
        for each, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(each, self._handle)
        try:
            yield self
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.group is None:  # leave the queue, or release
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        with suppress(ProcessLookupError):
            os.killpg(self.group, number)
            os.killpg(self.group, signal.SIGCONT)  # it may be stopped, and is to end


def run(lease: Lease, command: Sequence[str], *, grace: float, signals: Signals) -> int:
    """Run a command to its end while the lease lasts.

    Args:
        lease: held; its renewal is the watchdog's.
        command: the program and its arguments.
        grace: seconds before the deadline at which the group gets SIGTERM.
        signals: where the group is to get those of this process.

    Returns:
        The exit status: the command's; 128 and the signal's number if a signal ended it; 127 and
        126 as of a shell; 70 if the lease was over before the command.

    Raises:
        KeyboardInterrupt: SIGINT ended the command.
    """
    orders, say = os.pipe()
    hear, result = os.pipe()
    environment = {
        **os.environ,
        "REDLOCK_NAME": lease.name if isinstance(lease.name, str) else "\n".join(lease.name),
        "REDLOCK_FENCE": str(lease.fence),
    }
    ours = [say, hear]
    try:
        # No signal is lost: the guardian is born with them blocked, and has them from the moment
        # at which it can say that it was asked to end. Nothing is started before ``_watch``.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, guardian.ENDING)
        try:
            for each in (orders, result):
                os.set_inheritable(each, True)  # noqa: FBT003 - it takes no keyword
            process = subprocess.Popen(  # noqa: S603 - the command is what is asked for
                [*GUARDIAN, str(orders), str(result), *command],
                close_fds=False,  # the command is to have what a shell has opened for it
                process_group=0,
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(orders)
            os.close(result)
        signals.group = process.pid
        try:
            if os.isatty(1):  # ``| less`` is in our group, and needs the terminal itself
                _give_terminal(process.pid)
            told = _watch(lease, grace, say, hear, process.pid)
            late = told[0] == guardian.LATE or lease.lost
        finally:
            had_terminal = _take_terminal(process.pid)
            _end(process)
    finally:
        # Closing it ends the guardian wherever the lines above were interrupted.
        for each in ours:
            os.close(each)
    if told[0] == guardian.FAILED:
        sys.stderr.write(f"{command[0]}: {told[2]}\n")
        return NOT_FOUND if told[1] == errno.ENOENT else NOT_RUN
    if late:
        why = gettext("%(name)r: the lease was lost, and the command was ended")
        sys.stderr.write(f"{why % {'name': lease.name}}\n")
        return LOST
    status = int(told[0])
    if status == -signal.SIGINT:
        if had_terminal:  # it told the command's group only, and a script around us is to hear it
            os.killpg(0, signal.SIGINT)
        raise KeyboardInterrupt
    return status if status >= 0 else 128 - status


def _watch(lease: Lease, grace: float, say: int, hear: int, group: int) -> list[Any]:
    """Tell the guardian how long the lease lasts, until it tells what became of the command."""
    ttl, said = lease.grant.ttl, None
    clock, stopping = lease.backend.policy.clock, math.inf
    while True:
        kill = lease.grant.deadline - min(0.5, ttl / MARGIN)
        if lease.lost:  # somebody else may have the name already
            stopping = min(stopping, clock())
            kill = min(kill, stopping + grace)
        moments = (min(stopping, lease.grant.deadline - grace), kill)
        if moments != said:
            with suppress(BrokenPipeError):
                os.write(say, json.dumps(moments).encode() + b"\n")
            said = moments
        look = min(ttl / LOOKS, LONGEST_LOOK, max(0.0, kill - clock()))
        ready, _, _ = select.select([hear], [], [], look)
        if ready:
            text = os.read(hear, 4096)
            return list(json.loads(text)) if text else [guardian.LATE]
        if _has_stopped(group) and clock() < kill:
            _give_terminal(group)
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)
        if clock() >= kill:  # the guardian would have ended it, but stands still
            return [guardian.LATE]


def _has_stopped(group: int) -> bool:
    """Return True if the terminal has stopped the command, after the same was done to us.

    Ctrl-Z stops the processes that have the terminal: the command and the guardian. The shell
    waits for this process, so it stops, too, with the others of its own group. The lines after
    that run when the shell continues it, or at once where there is no shell that could.
    """
    with suppress(AttributeError, ChildProcessError):  # no waitid; it has ended
        stopped = os.waitid(os.P_PID, group, os.WSTOPPED | os.WNOHANG)
        # SIGSTOP comes from no terminal, and may be for the guardian only.
        if stopped and stopped.si_status in {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}:
            if stopped.si_status == signal.SIGTSTP or not _have_terminal():
                os.killpg(0, stopped.si_status)
            return True  # else it asks for the terminal, which it is now given
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what the guardian has not, and the guardian.

    Nothing must work on when the name is free. The guardian is not reaped yet, so its number,
    which is the group's, belongs to nobody else.
    """
    for _ in range(ROUNDS):
        guardian.send(signal.SIGKILL, guardian.started_by(process.pid))
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _await_empty(process.pid)


def _await_empty(group: int) -> None:
    """Wait until no process of the group is left; not long, for nobody may reap a zombie."""
    end = time.monotonic() + guardian.EMPTY
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.005)


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
