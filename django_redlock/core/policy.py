"""The constants of one group of nodes, its keys, and how durations and clocks are read."""

from __future__ import annotations

import functools
import math
import random
import secrets
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .protocol import LockKeys
from .quorum import majority_of

COUNTERS: Final = 1024  # counters per node; names share them, so their number is bounded
LEAST_DRIFT: Final = 0.002  # seconds: the expiry's own granularity (redis.io's figure)
LONGEST: Final = 1e9  # seconds: 31 years. Timers and nodes can still count it in milliseconds.


def _steady_clock() -> Callable[[], float]:
    """Seconds that nobody sets, if possible counting the time a machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    return time.monotonic


boottime: Final = _steady_clock()


@functools.cache
def _everyone(size: int) -> frozenset[int]:
    return frozenset(range(size))


def microseconds() -> int:
    """The wall clock, in microseconds since 1970: a wish for a token, never a decision."""
    return time.time_ns() // 1000


def milliseconds(seconds: float) -> int:
    """Whole ones, as nodes count; what is left over is dropped.

    So a key ends less than one earlier than asked, which ``LEAST_DRIFT`` allows for.
    """
    return int(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Policy:
    """The constants of one group of nodes, and where time and chance come from.

    Attributes:
        size: number of nodes.
        max_ttl: seconds, the longest ttl; the restart guard counts on it.
        drift: the part of a ttl by which clocks may run apart (0.01 = 1 %).
        slack: seconds that a client's wall clock may be ahead of a node's before the node
            stops believing it.
        prefix: of every key.
    """

    size: int
    max_ttl: float = 60.0
    drift: float = 0.01
    slack: float = 5.0
    prefix: str = "redlock:"
    clock: Callable[[], float] = boottime
    wall: Callable[[], int] = microseconds
    nonce: Callable[[], str] = lambda: secrets.token_hex(16)
    uniform: Callable[[float, float], float] = random.uniform

    @property
    def majority(self) -> int:
        """How many of the nodes must agree."""
        return majority_of(self.size)

    def everyone(self) -> frozenset[int]:
        """The indices of all nodes."""
        return _everyone(self.size)

    def validity(self, ttl: float) -> float:
        """Seconds that a holder may believe in a ttl, counted from before the first message."""
        return ttl - (ttl * self.drift + LEAST_DRIFT)

    def target(self, names: Sequence[str]) -> LockKeys:
        """The keys and counters of ``names``; repeated names count once."""
        unique = tuple(dict.fromkeys(names))
        return LockKeys(
            names=unique,
            fences=f"{self.prefix}fences",
            held=f"{self.prefix}held",
            waits=f"{self.prefix}waits",
            keys=tuple(f"{self.prefix}lock:{name}" for name in unique),
            queues=tuple(f"{self.prefix}queue:{name}" for name in unique),
            fields=tuple(zlib.crc32(name.encode()) % COUNTERS for name in unique),
        )


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
