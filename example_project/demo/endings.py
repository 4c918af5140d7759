"""End the demo on Ctrl-C and the like: once, and never while something is being started."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

_endings = [signal.SIGINT, signal.SIGTERM]
_starting: list[bool] = []
_asked: list[int] = []


def install() -> None:
    """Let each of these signals raise SystemExit."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        _endings.append(signal.SIGHUP)
    for each in _endings:
        signal.signal(each, _leave)


@contextmanager
def foreground() -> Iterator[None]:
    """Let Ctrl-C in a terminal be for this process alone.

    `make`, which started it, would take the same Ctrl-C for a failure. A process that has left the
    group of `make` would not go on after a Ctrl-Z, so it ignores that.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # there is no terminal
            terminal = os.open("/dev/tty", os.O_RDWR)
            stack.callback(os.close, terminal)
            group = os.getpgrp()
            if group != os.getpid() and group == os.tcgetpgrp(terminal):
                for each in (signal.SIGTSTP, signal.SIGTTOU):  # sent at the give-back
                    signal.signal(each, signal.SIG_IGN)
                os.setpgid(0, 0)
                os.tcsetpgrp(terminal, os.getpid())
                stack.callback(_give, terminal, group)
        yield


@contextmanager
def after_this() -> Iterator[None]:
    """Defer the end until the block is over: a half-started process could not be ended."""
    _starting.append(True)
    try:
        yield
    finally:
        _starting.pop()
    _raise()


def _give(terminal: int, group: int) -> None:
    with suppress(OSError):  # the process that started the demo has ended
        os.tcsetpgrp(terminal, group)


def _leave(number: int, _frame: FrameType | None) -> None:
    for each in _endings:  # a second Ctrl-C must not interrupt the clean-up
        signal.signal(each, signal.SIG_IGN)
    _asked.append(number)
    _raise()


def _raise() -> None:
    if _asked and not _starting:
        raise SystemExit(128 + _asked.pop())
