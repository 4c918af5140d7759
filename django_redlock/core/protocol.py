"""The words that the algorithm and whoever runs it share: votes, questions, tenancies.

No decisions: what the words are used for stands in ``acquire``, ``hold`` and ``wait``.
"""

from __future__ import annotations

import enum
import re
import zlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

NONCE: Final = re.compile(r"[0-9a-f]{32}")  # what ``Policy.nonce`` makes


class Answer(enum.Enum):
    """What a vote is worth."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    LOST = UNKNOWN  # its name in earlier versions

    @classmethod
    def _missing_(cls, value: object) -> Answer | None:
        """Read the value that errors have which an earlier version stored."""
        return cls.UNKNOWN if value == "lost" else None


class Vote(NamedTuple):
    """One node's part in a ``Request``.

    Attributes:
        node: the node's label, ``host:port/db``; never with a password.
        answer: YES, NO or UNKNOWN.
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


Votes = Sequence[Vote | None]  # None: not heard yet


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


class Request(NamedTuple):
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
    decided: Callable[[Votes], bool]
    to: frozenset[int] | None = None
    each: dict[int, int] | None = None
    first: int = 0
    worth: Callable[[Votes], bool] | None = None
    touched: frozenset[int] | None = None
    lasts: float = 0.0


class Sleep(NamedTuple):
    """Let this many seconds pass."""

    seconds: float


class Waiter:
    """Somebody's place in the line for a queue; who forgets it has left.

    Attributes:
        blocked: the connection that stands in the queue, for those who perform the effects.
    """

    __slots__ = ("__weakref__", "blocked", "queue")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.blocked: Any = None


class JoinQueue(NamedTuple):
    """Wait for being the first of this process in the line; sent back: whether we are.

    Attributes:
        seconds: for which to wait; may be infinite.
    """

    ticket: Waiter
    seconds: float


class BlockOnNode(NamedTuple):
    """Stand in a node's queue until woken; sent back: a ``Wakeup``.

    Attributes:
        place: the node's index.
        seconds: for which to wait now. The place in the queue is kept.
        longest: seconds after which the node forgets us; may be infinite.
    """

    ticket: Waiter
    place: int
    seconds: float
    longest: float


class Wakeup(NamedTuple):
    """What came of standing.

    Attributes:
        word: what we were woken by, the value of a tenancy that is over; or "".
        broken: whether we stand no more.
    """

    wakeup: str = ""
    broken: bool = False


class LeaveQueue(NamedTuple):
    """Leave the line; sent back: the word, if one had come already, or ""."""

    ticket: Waiter


class LockKeys(NamedTuple):
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

    target: LockKeys
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
Effect: TypeAlias = Request | Sleep | JoinQueue | BlockOnNode | LeaveQueue
Steps: TypeAlias = Generator[Effect, Any, T]  # sent what the effect's own text says
