"""Measure for how long a thread or an event loop has listened, without the time it did not run.

A node is silent when it gives no sign while a thread listens. A thread that does not get the
processor, or waits for the interpreter's lock, hears nothing: that is not the node's fault. So
a wait is cut into short parts. If a part ends in time, the threads that connect could run as well;
the time by which it ends late does not count.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import Final

PARTS: Final = 8  # of a timeout


class Listening:
    """Measure the time for which one wait has listened.

    Args:
        timeout: seconds, of which one part is an eighth.

    Attributes:
        waited: seconds of all parts, without those by which the parts ended late.
        seconds: of these, those in which it listened. A part that ended late counts for so much
            less, for the thread did not listen in all of the part either.
    """

    def __init__(self, timeout: float) -> None:
        self.waited = 0.0
        self.seconds = 0.0
        self._part = timeout / PARTS
        self._times = [time.monotonic()]
        self._marks = [0.0]  # ``seconds`` at each of these times

    def part(self, seconds: float) -> float:
        """Return for how many seconds to wait next, where so many are left.

        It is not much less than a part: any thread ends a very short wait late.
        """
        return min(max(seconds, self._part / PARTS), self._part)

    def waited_for(self, part: float, start: float) -> float:
        """Count one part, waited for in vain since ``start``; return the seconds it was late.

        Args:
            part: seconds, as planned.
            start: ``time.monotonic`` when the wait began.
        """
        now = time.monotonic()
        late = max(0.0, now - start - part)
        self.waited += part
        self.seconds += max(0.0, part - late)
        self._times.append(now)
        self._marks.append(self.seconds)
        return late

    def silence(self, since: float | None) -> float:
        """Return the seconds of listening since a node's last sign.

        Args:
            since: ``time.monotonic`` of the sign; None while none can be expected.
        """
        if since is None:
            return 0.0
        mark = bisect_right(self._times, since) - 1
        listened = self.seconds - self._marks[max(0, mark)]
        return min(listened, max(0.0, self._times[-1] - since))
