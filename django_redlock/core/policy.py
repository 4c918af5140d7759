"""The constants of one group of nodes, the names of its keys, its clocks, and durations."""

from __future__ import annotations

import functools
import math
import random
import secrets
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .protocol import LockKeys, one_or_all
from .quorum import majority_of
from .slots import Slot, entry_of

COUNTERS: Final = 1024  # counters per node; names share them, so their number is bounded
FIELDS: Final = tuple((str(each),) for each in range(COUNTERS))  # the name of each, in a tuple
LEAST_DRIFT: Final = 0.002  # seconds: the expiry's own granularity (redis.io's figure)
HEAD_START: Final = 0.001  # seconds at most that a woken waiter is left to itself, and …
HEAD_START_PART: Final = 0.1  # … the part of the time that the name was held: it may be idle
LEAST_HEAD_START: Final = 0.0002  # seconds; a sleep that is shorter costs more than it brings
LONGEST: Final = 1e9  # seconds: 31 years. Timers and nodes can still count it in milliseconds.


def _steady_clock() -> Callable[[], float]:
    """Return a clock that cannot be set and, if possible, counts while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    return time.monotonic


boottime: Final = _steady_clock()
new_nonce: Final = functools.partial(secrets.token_hex, 16)


def microseconds() -> int:
    """Return the wall clock, in microseconds since 1970: for tokens, never for a decision."""
    return time.time_ns() // 1000


def milliseconds(seconds: float) -> int:
    """Return seconds in whole milliseconds, as nodes count; the rest is dropped.

    So a key ends less than 1 ms before it should, which ``LEAST_DRIFT`` allows for.
    """
    return int(seconds * 1000)


class HandOver:
    """The last hand-over of this process: which names it released to a waiter, and when.

    A process that asks for a name again at once is refused by every node, since the name is
    reserved, and these messages delay the attempt of the woken waiter.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Sequence[str], float] = (), -math.inf  # one, for threads share it

    def note(self, names: Sequence[str], since: float, now: float) -> None:
        """Note that a waiter for one of these names, held since then, has just been woken."""
        self._last = names, now + min(HEAD_START, HEAD_START_PART * (now - since))

    def head_start(self, names: Sequence[str], now: float) -> float:
        """Return the seconds for which the names are left to the woken waiter; 0 if to nobody."""
        handed_over, until = self._last
        left = until - now
        return left if left > LEAST_HEAD_START and names == handed_over else 0.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The constants of one group of nodes, and its sources of time and randomness.

    Attributes:
        size: the number of nodes.
        max_ttl: the longest ttl, in seconds; the restart guard counts on it.
        drift: the part of a ttl by which clocks may run apart (0.01 = 1 %).
        slack: the seconds by which a client's wall clock may be ahead of a node's before the node
            stops believing it.
        prefix: the prefix of every key.
        clock: the clock that decides, in seconds; no other does.
        wall: the wall clock, in microseconds since 1970.
        nonce: a function that makes a new nonce.
        uniform: a function that draws a number between two.
        handed_over: the last hand-over of this process.
        majority: the number of nodes that must agree.
        everyone: the indices of all nodes.
    """

    size: int
    max_ttl: float = 60.0
    drift: float = 0.01
    slack: float = 5.0
    prefix: str = "redlock:"
    clock: Callable[[], float] = boottime
    wall: Callable[[], int] = microseconds
    nonce: Callable[[], str] = new_nonce
    uniform: Callable[[float, float], float] = random.uniform
    handed_over: HandOver = field(default_factory=HandOver, compare=False, repr=False)
    majority: int = field(init=False)
    everyone: frozenset[int] = field(init=False, repr=False)
    _shared: tuple[str, str, str, str] = field(init=False, repr=False)
    _nodes: tuple[tuple[int], ...] = field(init=False, repr=False)  # the index of each, in a tuple

    def __post_init__(self) -> None:
        object.__setattr__(self, "majority", majority_of(self.size))
        object.__setattr__(self, "everyone", frozenset(range(self.size)))
        shared = tuple(f"{self.prefix}{key}" for key in ("fences", "held", "waits", "queue:"))
        object.__setattr__(self, "_shared", shared)
        object.__setattr__(self, "_nodes", tuple((each,) for each in range(self.size)))

    @property
    def marks(self) -> str:
        """Return the key of the index of marks."""
        return f"{self.prefix}marks"

    def validity(self, ttl: float) -> float:
        """Return the validity of a ttl: seconds, counted from before the first message."""
        return ttl - (ttl * self.drift + LEAST_DRIFT)

    def target(
        self, names: Sequence[str], template: str = "", slot: Slot | None = None
    ) -> LockKeys:
        """Return the keys and counters of names, or of a slot; repeated names count once."""
        unique = tuple(names) if len(names) == 1 else tuple(dict.fromkeys(names))
        entries = unique if slot is None else (entry_of(unique[0], slot.number),)
        lock = f"{self.prefix}lock:"
        keys: tuple[str, ...] = ()
        fields: tuple[str, ...] = ()
        nodes: tuple[int, ...] = ()
        for each, entry in zip(unique, entries, strict=True):
            digest = zlib.crc32(each.encode())
            nodes += self._nodes[digest % self.size]
            if slot is not None:  # a counter of its own; a waiter waits for all slots at one node
                digest = zlib.crc32(entry.encode())
            keys += (lock + entry,)
            fields += FIELDS[digest % COUNTERS]  # all locks share these tuples: leases are small
        name = one_or_all(unique)
        return LockKeys(name, entries, *self._shared, keys, fields, nodes, template, slot)


def looks_like_milliseconds(seconds: float) -> bool:
    """Tell whether somebody may have written milliseconds: thousands, and no hours."""
    if not 1000 <= seconds < math.inf:  # noqa: PLR2004 - a second has as many
        return False
    return seconds % 1000 == 0 and (seconds % 3600 != 0 or seconds >= 1e6)  # noqa: PLR2004


def meant_seconds(seconds: float) -> str:
    """Return a question, if this looks like milliseconds that are given as seconds; else ""."""
    if looks_like_milliseconds(seconds):
        return f" (it is in seconds: did you mean {seconds / 1000:g}?)"
    return ""


def check_seconds(
    what: str,
    seconds: float,
    *,
    zero: bool = False,
    endless: bool = False,
    most: float = LONGEST,
) -> float:
    """Return a number of seconds as a float, if it is one that makes sense.

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
