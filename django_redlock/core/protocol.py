"""The data that the algorithm shares with the code that runs it: requests, votes, grants.

No decisions: ``acquire``, ``hold`` and ``wait`` make them.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import (
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    dataclass_transform,
)

from .reasons import Reason, code_of, describe
from .slots import Slot

T = TypeVar("T")
NONCE: Final = re.compile(r"[0-9a-f]{32}")  # what ``Policy.nonce`` makes


class Answer(enum.Enum):
    """What a vote is worth."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Vote(NamedTuple):
    """One node's part in a ``Request``.

    Attributes:
        node: the node's label, ``host:port/db``; never with a password.
        answer: YES, NO or UNKNOWN.
        fence: the grant number that the node gave, with a YES to ``Acquire``.
        left: the seconds until the key on the node expires, 0 when there is none; None: never.
        holder: the owner label in the key for which the node refused; the other task
            id where a mark was refused.
        owner: a digest that tells owners apart; "" when the key is reserved for a woken waiter.
        which: the index of the refused name.
        reason: the reason why it is not a YES, where more is known than that.
        sent: True if the node may have received the command.
        woken: the number of names for which a release found a waiter.
        result: the rest of the reply; the class of the request says of which type it is.
    """

    node: str
    answer: Answer
    fence: int = 0
    left: float | None = None
    holder: str = ""
    owner: str = ""
    which: int = 0
    reason: Reason | None = None
    sent: bool = True
    woken: int = 0
    result: Any = None

    @property
    def code(self) -> str:
        """Return the reason's code, for programs; "" without one."""
        return code_of(self.reason)

    @property
    def why(self) -> str:
        """Return the reason as a sentence, for people; "" without one."""
        return describe(self.reason)


Votes = Sequence[Vote | None]  # None: not heard yet


class Command(enum.StrEnum):
    """What a request tells a node to do; each but the last three is one script of ``scripts``."""

    __hash__ = str.__hash__  # that of an enum is Python code, run for every reply

    GRANT = "grant"
    RAISE = "raise"  # the fence counters, to a token
    EXTEND = "extend"
    HEAL = "heal"  # a lease, on nodes where its names are free
    RELEASE = "release"
    REST = "rest"  # a release with min_hold: the names stay taken for a while
    RETURN = "return"  # an adopter's keys to the giver
    MARK = "mark"  # a queued task
    UNMARK = "unmark"
    REVOKE = "revoke"  # a lock from its holder
    COMPLETE = "complete"  # a release that leaves a record: the work is done
    LOOK = "look"
    CLAIM = "claim"  # a wake-up that no waiter took
    SURVEY = "survey"
    MEMORY = "memory"
    BLOCK = "block"  # BLPOP
    UNBLOCK = "unblock"  # CLIENT UNBLOCK
    LOAD = "load"  # SCRIPT LOAD


UNDO: Final = frozenset(
    {Command.RELEASE, Command.REST, Command.RETURN, Command.COMPLETE, Command.UNMARK}
)
# An undo must not overtake these.
TAKING: Final = frozenset({Command.GRANT, Command.HEAL, Command.MARK})
# Their last argument is the node's epoch, as it was when the connection was opened.
WITH_EPOCH: Final = frozenset({Command.GRANT, Command.HEAL, Command.MEMORY})

# The others change nothing: of a server that refuses these only people want to know why.
CHANGING: Final = frozenset(Command) - {
    Command.SURVEY,
    Command.MEMORY,
    Command.UNBLOCK,
    Command.LOAD,
}

Wire: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass_transform(frozen_default=True)
def message(cls: type[T]) -> type[T]:
    """Make a class of messages: fields that are never set again.

    That is for mypy to see. At run time a frozen dataclass costs three times as much to make, and
    each lock makes two.
    """
    return dataclass(slots=True)(cls)


@message
class Request:
    """A request to the nodes; each command has a class of its own in ``commands``.

    Attributes:
        nonce: the nonce of the attempt; every reply echoes it.
        decided: a function, called with the votes after each reply; True ends the waiting.
        to: the indices of the nodes to ask; None is all of them.
        first: the index of the node to be written to first; the others follow in order.
        worth: a function, called with the votes once they are decided; True while it is worth
            waiting for more, for about as long again. A request in ``UNDO`` always waits so for the
            prompt nodes.
        touched: the indices of the nodes that may have the keys, of a request in ``UNDO``: these
            are asked until they have replied. The others have nothing to undo; they are asked once,
            to wake a waiter there. None is all of ``to``.
        lasts: the seconds after which the nodes have dropped the keys anyway, of a request in
            ``UNDO``.
        thorough: True if ``decided`` is asked also when a majority has sent the usual reply.
        still: a function, called right before a heal is written; False: the lease is over, and
            nothing is sent.
        each: the last argument of the command for each asked node, by its index.
    """

    command: ClassVar[Command]
    done: ClassVar[bytes]  # the outcome in a reply that is a YES
    usual: ClassVar[str] = ""  # what nearly every reply is, behind the nonce; see ``usual_reply``

    nonce: str
    decided: Callable[[Votes], bool]
    _: KW_ONLY
    to: frozenset[int] | None = None
    first: int = 0
    worth: Callable[[Votes], bool] | None = None
    touched: frozenset[int] | None = None
    lasts: float = 0.0
    thorough: bool = False
    still: Callable[[], bool] | None = None
    each: Mapping[int, int] | None = None

    def wire(self) -> Wire:
        """Return the keys and arguments of the script, as its head comment lists them.

        The arguments lack the nonce, which is the first, and what is each node's own, the last.
        """
        raise NotImplementedError

    @property
    def patience(self) -> float:
        """Return the seconds for which nodes that are being connected are waited for, at least."""
        return 0.0

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys."""
        return self.wire()[0]

    @property
    def count(self) -> int:
        """Return how many names, or leases, it is about: a reply tells of no more."""
        return 1

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        """Return the vote in a reply of a node; None: it makes no sense.

        Args:
            node: its label.
            reply: a list that begins with the nonce and an outcome; the rest may be anything.
        """
        raise NotImplementedError

    def usual_reply(self) -> bytes:
        """Return the bytes of nearly every reply, a YES; to ``Acquire``, how they begin.

        A majority of them decides. b"": there is no such reply.
        """
        usual = self.usual
        return f"*3\r\n$32\r\n{self.nonce}\r\n{usual}".encode() if usual else b""

    def usual_vote(self, node: str) -> Vote:
        """Return the vote in ``usual_reply``, to an extension."""
        raise NotImplementedError

    def later(self, seconds: float) -> Request:  # noqa: ARG002 - ``Rest`` needs it
        """Return an undo as it is sent when so many seconds have passed."""
        return self


class Sleep(NamedTuple):
    """Let this many seconds pass."""

    seconds: float


class Waiter:
    """One waiter in a wait queue; its place ends when the object is forgotten.

    Attributes:
        queue: the key of the list, by which the waiters of one process stand in line.
        queues: the keys of the lists to block on; several for a limited lock, one for each slot.
        template: the template of the lock's name, for the metrics of the process.
        blocked: the connection that is blocked on the lists; kept by what performs the effects.
        which: the index of the list in which the wake-up was; set by what performs the effects.
    """

    __slots__ = ("__weakref__", "blocked", "queue", "queues", "template", "which")

    def __init__(self, queue: str, template: str = "", queues: tuple[str, ...] = ()) -> None:
        self.queue = queue
        self.queues = queues or (queue,)
        self.template = template
        self.blocked: Any = None
        self.which = 0


class JoinQueue(NamedTuple):
    """Wait until the waiter is the first one of this process; sent back: whether it is.

    Attributes:
        seconds: the seconds for which to wait; may be infinite.
    """

    waiter: Waiter
    seconds: float


class BlockOnNode(NamedTuple):
    """Block on a node's queue until woken; sent back: a ``Wakeup``.

    Attributes:
        node_index: of the node.
        seconds: the seconds for which to wait now. The slot in the queue is kept.
        longest: the seconds after which the node forgets the waiter; may be infinite.
    """

    waiter: Waiter
    node_index: int
    seconds: float
    longest: float


class Wakeup(NamedTuple):
    """How blocking on a node ended.

    Attributes:
        wakeup: the nonce that woke the waiter, of a lease that is over; or "".
        broken: True if the connection is not in the queue any more.
        which: the index of the list in which the wake-up was.
    """

    wakeup: str = ""
    broken: bool = False
    which: int = 0


class LeaveQueue(NamedTuple):
    """Leave the queue; sent back: the wake-up, if one had come already, or ""."""

    waiter: Waiter


def one_or_all(names: tuple[str, ...]) -> str | tuple[str, ...]:
    """Return the name of a lock, or all of them if it has several, as errors and events have it."""
    return names[0] if len(names) == 1 else names


class LockKeys(NamedTuple):
    """The names of one lock, with their keys and counters on the nodes.

    Attributes:
        name: the single name, or all of them, as the user wrote them.
        entries: what stands for each name in the indexes of a node.
        queue: the text with which the key of each wait queue begins.
        fields: the counters of the names.
        queue_nodes: the index of the node on which the waiters of each name queue.
        template: the template of the names, for metrics; "": there is none. No node has it.
        slot: the slot, of a limited lock, which has one name; None: it is a plain lock.
    """

    name: str | tuple[str, ...]
    entries: tuple[str, ...]
    fences: str
    held: str
    waits: str
    queue: str
    keys: tuple[str, ...]
    fields: tuple[str, ...]
    queue_nodes: tuple[int, ...]
    template: str = ""
    slot: Slot | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names as the user wrote them, a tuple also where there is only one."""
        return (self.name,) if isinstance(self.name, str) else self.name

    @property
    def queues(self) -> tuple[str, ...]:
        """Return the keys of the wait queues; made when asked for, for a lease is to be small."""
        return tuple(map(self.queue.__add__, self.entries))


class NextTry(NamedTuple):
    """What the next attempt asks for.

    Attributes:
        target: the names, or one slot of a limited lock.
        wakeup: the nonce that has woken the caller, of a lease that is over; or "".
        woken: the index of the name for which it was woken.
        pauses: True if some time is to pass before, so that callers do not chase each other.
        refused: how many slots were refused in a row, without a pause.
    """

    target: LockKeys
    wakeup: str = ""
    woken: int = 0
    pauses: bool = False
    refused: int = 0


class Grant(NamedTuple):
    """Proof that a majority gave the names to ``nonce``.

    Attributes:
        nonce: the nonce, which is the power to extend and release; never shown.
        fence: the fencing token.
        deadline: the time on ``Policy.clock`` at which the holder must have stopped.
        since: the time on ``Policy.clock`` at which the attempt began.
        ttl: the ttl that was asked for, in seconds.
        touched: the indices of the nodes that may have its keys.
        votes: the votes on the last request about it.
        old: the giver's nonce, of an adopted lease; else "".
        unswapped: the indices of the nodes that may have the giver's nonce still, or will: the
            giver's grant may be on its way.
        label: the label of the owner, for nodes on which a renewal puts the keys back.
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
    label: str = ""

    @property
    def owner(self) -> str:
        """Return the digest by which votes tell this holder."""
        return hashlib.sha1(self.nonce.encode(), usedforsecurity=False).hexdigest()[:16]


Effect: TypeAlias = Request | Sleep | JoinQueue | BlockOnNode | LeaveQueue
Steps: TypeAlias = Generator[Effect, Any, T]  # sent what the effect's docstring says
