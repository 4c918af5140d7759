"""Ctrl-C and its like: everything is unwound, once, and never in the middle of a start."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
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
def after_this() -> Iterator[None]:
    """Put it off until this is over: what was started half could not be ended."""
    _starting.append(True)
    try:
        yield
    finally:
        _starting.pop()
    _raise()


def _leave(number: int, _frame: FrameType | None) -> None:
    for each in _endings:  # a second Ctrl-C must not interrupt the tidying up
        signal.signal(each, signal.SIG_IGN)
    _asked.append(number)
    _raise()


def _raise() -> None:
    if _asked and not _starting:
        raise SystemExit(128 + _asked.pop())
