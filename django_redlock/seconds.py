"""A number of seconds from outside, checked once and in one way."""

from __future__ import annotations

import math


def check_seconds(what: str, seconds: float, *, zero: bool = False, endless: bool = False) -> float:
    """A number of seconds that makes sense.

    Args:
        what: the argument's or setting's name, for the error.
        zero: whether 0 will do.
        endless: whether infinity will do.

    Raises:
        TypeError: not a number.
        ValueError: negative, NaN, and what is not allowed.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        hint = ": use .total_seconds()" if hasattr(seconds, "total_seconds") else ""
        msg = f"{what} must be a number of seconds, not {type(seconds).__name__}{hint}"
        raise TypeError(msg)
    try:
        seconds = float(seconds)
    except OverflowError:  # an integer of more than 308 digits
        seconds, endless = (math.inf if seconds > 0 else -math.inf), False
    least = "0 or more" if zero else "more than 0"
    enough = seconds >= 0 if zero else seconds > 0
    if not enough or (math.isinf(seconds) and not endless):  # NaN is not enough
        msg = f"{what} must be {least} seconds{'' if endless else ', finite'}, not {seconds:g}"
        raise ValueError(msg)
    return seconds
