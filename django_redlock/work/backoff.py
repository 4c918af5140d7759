"""Decide when a message that was refused comes back: later each time, by some chance.

So messages that wait for one key do not all come back at once, and one that waits for long costs
the queue little.
"""

from __future__ import annotations

import random
from typing import Final

LONGEST_PAUSE: Final = 60.0  # seconds
LONGEST_DOUBLING: Final = 10


def pause(times: int, *, longest: float = LONGEST_PAUSE, least: float = 0.0) -> float:
    """Return the seconds until a refused message comes back: 1, 2, 4 … less some chance.

    Args:
        times: how often the message has come back before.
        longest: the most seconds.
        least: the shortest pause that can be asked for, in seconds.
    """
    seconds = min(2.0 ** min(times, LONGEST_DOUBLING), LONGEST_PAUSE, longest)
    spread = random.uniform(0.5, 1.0)  # noqa: S311 - guards nothing
    return max(spread * seconds, least)
