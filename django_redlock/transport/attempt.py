"""A connection that is being opened in the background, and for how long it may be waited for.

A node is silent when it gives no sign although somebody listens. A thread that does not get the
processor, or waits for the interpreter's lock, hears nothing: that time is this machine's.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from django_redlock.concurrency.latches import Latch

if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection import Connection

PARTS: Final = 8  # of a node timeout: after each a thread that waits notes whether it is late


class ConnectAttempt:
    """A connection on its way; ``channel`` is there once ``done`` is set, if it worked.

    Attributes:
        awaited: whether whoever wanted it still waits.
        wanted: when, on ``time.monotonic``.
        heard: when the node last gave a sign, or else when it was first asked for one; None while
            the thread that connects has not begun.
        then: called by the thread that connects when it is done.
    """

    def __init__(self, then: Callable[[ConnectAttempt], object] | None) -> None:
        self.done = Latch()
        self.channel: Connection | None = None
        self.awaited = True
        self.wanted = time.monotonic()
        self.heard: float | None = None
        self.then = then

    def progress(self) -> None:
        """Note that the node has given a sign, or is asked for the first one now."""
        self.heard = time.monotonic()

    def patience_ends(self, patience: float, longest: float) -> float:
        """``time.monotonic`` from which the node counts as silent, for who is never late.

        A thread that has not begun makes no node silent.

        Args:
            patience: seconds without a sign of the node.
            longest: ``time.monotonic`` that ends it in any case.
        """
        return longest if self.heard is None else min(longest, self.heard + patience)


class Listening:
    """For how long a thread that waits has listened: whatever it woke up late does not count.

    It sleeps in short parts. Where it comes back in time from one, so could the threads that
    connect. Where it is late, they were most likely kept from the processor as well.

    Args:
        timeout: the node timeout, in seconds.

    Attributes:
        waited: seconds of all parts together, however late it came back.
    """

    def __init__(self, timeout: float) -> None:
        self.waited = 0.0
        self._part = timeout / PARTS
        self._listened = 0.0
        self._times = [time.monotonic()]
        self._marks = [0.0]  # seconds listened until each of these times

    def silence(self, opening: ConnectAttempt) -> float:
        """Seconds that this thread has listened since the node gave a sign."""
        if opening.heard is None:
            return 0.0
        until_then = bisect_right(self._times, opening.heard) - 1
        return self._listened - self._marks[max(0, until_then)]

    def wait(self, opening: ConnectAttempt, seconds: float) -> None:
        """Wait until it is done, for at most so long, and for at most one part."""
        part, start = min(seconds, self._part), time.monotonic()
        if not opening.done.wait(part):
            late = max(0.0, time.monotonic() - start - part)
            self.waited += part
            self.note(max(0.0, part - late))

    def note(self, seconds: float) -> None:
        """Count so many seconds of listening until now."""
        self._listened += seconds
        self._times.append(time.monotonic())
        self._marks.append(self._listened)
