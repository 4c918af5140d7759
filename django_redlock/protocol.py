"""The words that the algorithm and whoever runs it share: votes, questions, tenancies.

No decisions: what the words are used for stands in ``algorithm``.
"""

from __future__ import annotations

import enum
import functools
import random
import re
import secrets
import time
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

COUNTERS: Final = 1024  # counters per node; names share them, so their number is bounded
NONCE: Final = re.compile(r"[0-9a-f]{32}")  # what ``Policy.nonce`` makes
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
        number: the grant number, with a YES to a grant; how many names a survey looked at; where
            the next page of an index begins, 0 at its end; for how many names a release found
            somebody waiting.
        left: seconds until the key that we met expires, 0 when there is none; None: never.
        holder: the owner label in the key that refused us.
        owner: a digest that tells owners apart; "" when the key is reserved for who comes next.
        which: the index of the name that refused us.
        why: for people, why it is not a YES.
        sent: whether the node may have received the command at all.
        data: what a reading command brought.
    """

    node: str
    answer: Answer
    number: int = 0
    left: float | None = None
    holder: str = ""
    owner: str = ""
    which: int = 0
    why: str = ""
    sent: bool = True
    data: Sequence[object] = ()


Ballot = Sequence[Vote | None]  # None: not heard yet


class Command(enum.StrEnum):
    """What can be asked of a node; each is one script of ``scripts``, but for the last three."""

    __hash__ = str.__hash__  # that of an enum is Python code, run for every answer

    GRANT = "grant"
    RAISE = "raise"
    EXTEND = "extend"
    RELEASE = "release"
    REST = "rest"
    RETURN = "return"
    LOOK = "look"
    CLAIM = "claim"
    SURVEY = "survey"
    INDEX = "index"
    MEMORY = "memory"
    STAND = "stand"  # BLPOP
    UNBLOCK = "unblock"  # CLIENT UNBLOCK
    LOAD = "load"  # SCRIPT LOAD


UNDO: Final = frozenset({Command.RELEASE, Command.REST, Command.RETURN})


class Ask(NamedTuple):
    """A question to the nodes.

    Attributes:
        command: what to do.
        nonce: the asker's value; every answer echoes it.
        keys, args: as the script's head comment lists them (without the nonce).
        decided: told the ballot after each answer; True ends the waiting.
        to: indices of the nodes to ask; None is all of them.
        each: one more last argument for each asked node, by its index.
        first: index of the node to be written to first; the others follow in order.
        worth: told the ballot once it is decided; True while it is worth waiting for more, for
            about as long again. Undoing always waits so for the nodes that are prompt.
        touched: of what undoes, indices of the nodes that may have what it takes back: these are
            asked until they have answered. The others have nothing to undo; they are asked once,
            to wake who waits there. None is all of ``to``.
        lasts: of what undoes, seconds after which the nodes have dropped it by themselves.
    """

    command: Command
    nonce: str
    keys: tuple[str, ...]
    args: tuple[str | int, ...]
    decided: Callable[[Ballot], bool]
    to: frozenset[int] | None = None
    each: dict[int, int] | None = None
    first: int = 0
    worth: Callable[[Ballot], bool] | None = None
    touched: frozenset[int] | None = None
    lasts: float = 0.0


class Wait(NamedTuple):
    """Let this many seconds pass."""

    seconds: float


class Ticket:
    """Somebody's place in the line for a queue; who forgets it has left.

    Attributes:
        parked: the connection that stands in the queue, for those who perform the effects.
    """

    __slots__ = ("__weakref__", "parked", "queue")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.parked: Any = None


class Line(NamedTuple):
    """Wait for being the first of this process in the line; sent back: whether we are.

    Attributes:
        seconds: for which to wait; may be infinite.
    """

    ticket: Ticket
    seconds: float


class Stand(NamedTuple):
    """Stand in a node's queue until woken; sent back: a ``Stood``.

    Attributes:
        place: the node's index.
        seconds: for which to wait now. The place in the queue is kept.
        longest: seconds after which the node forgets us; may be infinite.
    """

    ticket: Ticket
    place: int
    seconds: float
    longest: float


class Stood(NamedTuple):
    """What came of standing.

    Attributes:
        word: what we were woken by, the value of a tenancy that is over; or "".
        broken: whether we stand no more.
    """

    word: str = ""
    broken: bool = False


class Leave(NamedTuple):
    """Leave the line; sent back: the word, if one had come already, or ""."""

    ticket: Ticket


class Target(NamedTuple):
    """What is to be locked: the names, as keys and counters of one deployment."""

    names: tuple[str, ...]
    fences: str
    held: str
    waits: str
    keys: tuple[str, ...]
    queues: tuple[str, ...]
    fields: tuple[int, ...]

    def queue_place(self, size: int, which: int = 0) -> int:
        """The node, of so many, at which those stand in line who wait for that name."""
        return zlib.crc32(self.names[which].encode()) % size

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
        old: of an adopted tenancy, the giver's nonce; else "".
        unswapped: indices of the nodes that may carry that still, or will: the giver's grant may
            be on its way.
    """

    target: Target
    nonce: str
    fence: int
    deadline: float
    since: float
    ttl: float
    touched: frozenset[int]
    votes: Sequence[Vote] = ()
    old: str = ""
    unswapped: frozenset[int] = frozenset()


T = TypeVar("T")
Effect: TypeAlias = Ask | Wait | Line | Stand | Leave
Steps: TypeAlias = Generator[Effect, Any, T]  # sent what the effect's own text says


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


def majority_of(size: int) -> int:
    """More than half, for even sizes too: two majorities always share a node."""
    return size // 2 + 1


@functools.cache
def counting(rule: Callable[..., bool], majority: int, **facts: bool) -> Callable[[Ballot], bool]:
    """``rule`` for a ballot that this majority decides.

    One for all questions: with thousands at once, one more for each is work for the garbage
    collector, which looks at everything else that the process has as well.
    """
    return functools.partial(rule, majority=majority, **facts)


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

    def target(self, names: Sequence[str]) -> Target:
        """The keys and counters of ``names``; repeated names count once."""
        unique = tuple(dict.fromkeys(names))
        return Target(
            names=unique,
            fences=f"{self.prefix}fences",
            held=f"{self.prefix}held",
            waits=f"{self.prefix}waits",
            keys=tuple(f"{self.prefix}lock:{name}" for name in unique),
            queues=tuple(f"{self.prefix}queue:{name}" for name in unique),
            fields=tuple(zlib.crc32(name.encode()) % COUNTERS for name in unique),
        )
