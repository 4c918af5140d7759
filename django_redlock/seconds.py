"""A number of seconds from outside, checked once and in one way."""

from __future__ import annotations

import math
from typing import Final

LONGEST: Final = 1e9  # seconds: 31 years. Timers and nodes can still count it in milliseconds.


def check_seconds(
    what: str,
    seconds: float,
    *,
    zero: bool = False,
    endless: bool = False,
    most: float = LONGEST,
) -> float:
    """A number of seconds that makes sense.

    Args:
        what: the argument's or setting's name, for the error.
        zero: whether 0 will do.
        endless: whether infinity will do.
        most: what is longer is refused, infinity apart.

    Raises:
        TypeError: not a number.
        ValueError: negative, NaN, too long, and what is not allowed.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        hint = ": use .total_seconds()" if hasattr(seconds, "total_seconds") else ""
        msg = f"{what} must be a number of seconds, not {type(seconds).__name__}{hint}"
        raise TypeError(msg)
    try:
        seconds = float(seconds)
        long = most < seconds < math.inf
    except OverflowError:  # an integer of more than 308 digits
        seconds, long = (math.inf if seconds > 0 else -math.inf), seconds > 0
    if long:
        hint = ", or float('inf') for no end" if endless else ""
        msg = f"{what} must be at most {most:,.0f} seconds{hint}"
        raise ValueError(msg)
    least = "0 or more" if zero else "more than 0"
    enough = seconds >= 0 if zero else seconds > 0
    if not enough or (math.isinf(seconds) and not endless):  # NaN is not enough
        msg = f"{what} must be {least} seconds{'' if endless else ', finite'}, not {seconds:g}"
        raise ValueError(msg)
    return seconds
