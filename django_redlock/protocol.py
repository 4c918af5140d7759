"""The words that the algorithm and whoever runs it share: votes, questions, tenancies.

Data only; what they are used for stands in ``algorithm``.
"""

from __future__ import annotations

import enum
import functools
import random
import secrets
import time
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

COUNTERS: Final = 1024  # counters per node; names share them, so their number is bounded
LEAST_DRIFT: Final = 0.002  # seconds: the expiry's own granularity (redis.io's figure)


class Answer(enum.Enum):
    """What a vote is worth."""

    YES = "yes"
    NO = "no"
    LOST = "lost"


class Vote(NamedTuple):
    """One node's part in an ``Ask``.

    Attributes:
        node: the node's label, ``host:port/db``; never with a password.
        answer: YES, NO or LOST.
        number: the grant number, with a YES to a grant; how many names a survey looked at.
        left: seconds until the key that refused us expires; None when it never does.
        holder: the owner label in the key that refused us.
        why: for people, why it is not a YES.
        sent: whether the node may have received the command at all.
        data: what a reading command brought.
    """

    node: str
    answer: Answer
    number: int = 0
    left: float | None = None
    holder: str = ""
    why: str = ""
    sent: bool = True
    data: Sequence[object] = ()


Ballot = Sequence[Vote | None]  # None: not heard yet


class Command(enum.StrEnum):
    """What can be asked of a node; each is one script of ``scripts``."""

    GRANT = "grant"
    RAISE = "raise"
    EXTEND = "extend"
    RELEASE = "release"
    REST = "rest"
    SURVEY = "survey"


UNDO: Final = frozenset({Command.RELEASE, Command.REST})


class Ask(NamedTuple):
    """A question to the nodes.

    Attributes:
        command: what to do.
        nonce: the asker's value; every answer echoes it.
        keys, args: as the script's head comment lists them (without the nonce).
        decided: told the ballot after each answer; True ends the waiting.
        to: indices of the nodes to ask; None is all of them.
        each: one more last argument for each asked node, by its index.
    """

    command: Command
    nonce: str
    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    decided: Callable[[Ballot], bool]
    to: frozenset[int] | None = None
    each: dict[int, int] | None = None


class Wait(NamedTuple):
    """Let this many seconds pass."""

    seconds: float


class Target(NamedTuple):
    """What is to be locked: the names, as keys and counters of one deployment."""

    names: tuple[str, ...]
    fences: str
    held: str
    keys: tuple[str, ...]
    fields: tuple[int, ...]

    @property
    def name(self) -> str | tuple[str, ...]:
        """The single name, or all of them."""
        return self.names[0] if len(self.names) == 1 else self.names


class Grant(NamedTuple):
    """A tenancy: proof that a majority gave the names to ``nonce``.

    Attributes:
        nonce: the power to extend and release; never shown.
        fence: the fencing token.
        deadline: on ``Policy.clock``, when the holder must have stopped.
        since: on ``Policy.clock``, when the attempt began.
        ttl: seconds, as asked of the nodes.
        touched: indices of the nodes that may carry our keys.
        votes: what the nodes said to the last question about it.
    """

    target: Target
    nonce: str
    fence: int
    deadline: float
    since: float
    ttl: float
    touched: frozenset[int]
    votes: Sequence[Vote] = ()


T = TypeVar("T")
Steps: TypeAlias = Generator[Ask | Wait, Sequence[Vote], T]


def _steady_clock() -> Callable[[], float]:
    """Seconds that nobody sets, if possible counting the time a machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    return time.monotonic


boottime: Final = _steady_clock()


def microseconds() -> int:
    """The wall clock, in microseconds since 1970: a wish for a token, never a decision."""
    return time.time_ns() // 1000


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
        """More than half, for even sizes too: two majorities always share a node."""
        return self.size // 2 + 1

    def everyone(self) -> frozenset[int]:
        """The indices of all nodes."""
        return frozenset(range(self.size))

    def validity(self, ttl: float) -> float:
        """Seconds that a holder may believe in a ttl, counted from before the first message."""
        return ttl - (ttl * self.drift + LEAST_DRIFT)

    def target(self, names: Sequence[str]) -> Target:
        """The keys and counters of ``names``; repeated names count once."""
        unique = tuple(dict.fromkeys(names))
        return Target(
            names=unique,
            fences=f"{self.prefix}fences",
            held=f"{self.prefix}held",
            keys=tuple(f"{self.prefix}lock:{name}" for name in unique),
            fields=tuple(zlib.crc32(name.encode()) % COUNTERS for name in unique),
        )
