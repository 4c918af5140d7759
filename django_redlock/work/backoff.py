"""Decide when a message that was refused comes back: later each time, by some chance.

So messages that wait for one key do not all come back at once, and one that waits for long costs
the queue little. One that waits for a slot of a limit comes back soon each time: several runs end
in the time of one, and a pause that grows would leave their slots idle.
"""

from __future__ import annotations

import random
from typing import Final

LONGEST_PAUSE: Final = 60.0  # seconds
LONGEST_DOUBLING: Final = 10
FOR_A_SLOT: Final = 5.0  # seconds; so runs of 3 s use 86 % of a limit, and come back 8 times each


def pause(
    times: int, *, for_slot: bool = False, longest: float = LONGEST_PAUSE, least: float = 0.0
) -> float:
    """Return the seconds until a refused message comes back: 1, 2, 4 … less some chance.

    Args:
        times: how often the message has come back before.
        for_slot: whether it waits for a slot of a limit: then they are 5 less some chance.
        longest: the most seconds.
        least: the shortest pause that can be asked for, in seconds.
    """
    doubled = FOR_A_SLOT if for_slot else 2.0 ** min(times, LONGEST_DOUBLING)
    seconds = min(doubled, LONGEST_PAUSE, longest)
    spread = random.uniform(0.5, 1.0)  # noqa: S311 - guards nothing
    return max(spread * seconds, least)
