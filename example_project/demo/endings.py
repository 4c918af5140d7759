"""End the demo on Ctrl-C and the like, and tell what happens until then.

A signal only sets a flag, so that nothing is left half-started. All that waits does so here.
"""

import signal
import threading
import time
from types import FrameType

_asked: list[int] = []
_ending = threading.Event()
_began = time.monotonic()


class Ending(Exception):  # noqa: N818 - it is no error
    """Somebody asked for the end."""

    @property
    def status(self) -> int:
        return 128 + _asked[0]


def install() -> None:
    """Let these signals end the next `wait`."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(each) is not signal.SIG_IGN:  # as SIGHUP is under nohup
            signal.signal(each, _ask)


def _ask(number: int, _frame: FrameType | None) -> None:
    _asked.append(number)
    _ending.set()


def wait(seconds: float) -> None:
    """Wait; raise `Ending` if the end was asked for."""
    if _ending.wait(seconds):
        raise Ending


def tell(text: str) -> None:
    """Write a line, with the seconds since the demo began."""
    print(f"{time.monotonic() - _began:6.1f} s  {text}", flush=True)
