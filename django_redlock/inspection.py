"""What is held, by whom, on which nodes, until when; what is wrong with a node.

The one source of these facts, for the command and for pages. It reads each node's index of held
names (``{prefix}held``), so it costs what is held and not what the database contains. What the
index shows on some nodes only is looked up by its name on all of them: another client's key is
in no index, and a lock may have been taken or released between two nodes' answers.

Nothing here is a decision: what a survey says is over when it is read.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .naming import LONGEST, check_names
from .node import guarded
from .protocol import Answer, Ask, Ballot, Command, Vote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backend import Backend
    from .node import NodeState
    from .protocol import Steps

LIMIT: Final = 1000  # names shown of an index, unless told otherwise …
MOST: Final = 10_000  # … and at most: a node serves nobody else while it reads them
BATCH: Final = 64  # names in one question: of the longest ones, half of what a channel takes
AGAIN: Final = 2  # times that nodes which were only too slow are asked again
LABEL: Final = 200  # characters of an owner label; whoever can write a key may write more
DIGITS: Final = 16  # of a grant number: 2^53
GUARDED: Final = (
    "restart guard: started or emptied a short while ago; votes by itself when its seconds are over"
)
MINUTE, HOUR, DAY = 60, 3600, 86400


class Kind(enum.StrEnum):
    """What a name is, as far as the nodes that answered can tell."""

    HELD = "held"  # one owner on a majority
    RESTING = "resting"  # released, and taken by nobody until its ``min_hold`` is over
    PARTIAL = "partial"  # one owner on fewer nodes than a majority: nobody holds it
    SPLIT = "split"  # several owners, none on a majority: nobody holds it
    UNCLEAR = "unclear"  # held or not: the nodes that did not answer decide
    FREE = "free"  # on no node; only names that were asked for


class Health(enum.StrEnum):
    """Whether locks can be taken."""

    OK = "ok"
    DEGRADED = "degraded"
    NO_MAJORITY = "no_majority"


class Cell(NamedTuple):
    """A lock's key on one node.

    Attributes:
        left: seconds until it expires there; None when it never does.
        owner: a digest of what owns it, the same on all nodes; the nonce is never read.
        label: who that is, in its own words; "" for other clients' values.
        number: the node's grant number; None for other clients' values.
    """

    left: float | None
    owner: str
    label: str
    number: int | None


class Owner(NamedTuple):
    """Who has keys of a lock.

    Attributes:
        owner: the digest of its cells.
        label: who that is, "" if it left no label.
        on: how many nodes carry its value.
    """

    owner: str
    label: str
    on: int


Table: TypeAlias = dict[bytes, list[Cell | None]]  # by name; one cell for each node


class HeldLock(NamedTuple):
    r"""A name and what the nodes have of it. *The owner* is the one on most nodes.

    Attributes:
        name: bytes that are no UTF-8 are written as ``\xff``.
        kind: what it is.
        holder: the owner's label, "" if it left none.
        fence: the owner's highest grant number; it is the lease's fence when the nodes that
            granted agreed in one round, else that may be another. None for other clients.
        on: how many nodes carry the owner's value.
        of: how many nodes there are.
        lowest, highest: seconds left on those nodes; None: it never expires.
        cells: one for each node; None where there is no key, or no answer.
    """

    name: str
    kind: Kind
    holder: str
    fence: int | None
    on: int
    of: int
    lowest: float | None
    highest: float | None
    cells: tuple[Cell | None, ...]

    @property
    def owners(self) -> tuple[Owner, ...]:
        """Everybody who has keys of it, by how many and then as the nodes: first *the owner*."""
        counts = Counter(cell.owner for cell in self.cells if cell is not None)
        labels = {cell.owner: cell.label for cell in self.cells if cell is not None}
        return tuple(Owner(owner, labels[owner], on) for owner, on in counts.most_common())


@dataclass(frozen=True, slots=True)
class Survey:
    """One look at the nodes of an alias.

    Attributes:
        alias: its name.
        nodes: what is known of each node; one that did not answer says why.
        heard: for each node, whether it answered; if not, its cells are unknown.
        locks: by name; those that were asked for, or those that are held.
        truncated: whether more is held than ``limit`` allowed to show.
        majority: how many nodes must vote for a lock.
    """

    alias: str
    nodes: tuple[NodeState, ...]
    heard: tuple[bool, ...]
    locks: tuple[HeldLock, ...]
    truncated: bool
    majority: int

    def state(self, i: int) -> str:
        """Node ``i`` in a word: it is *up*, or answers and has *no vote*, or is *down*."""
        if self.nodes[i].voting:
            return "up"
        return "no vote" if self.heard[i] else "down"

    def why(self, i: int) -> str:
        """Why it is not up, or "", for a place that has ``guard_left`` and advice beside it."""
        node = self.nodes[i]
        if node.clock_off and self.heard[i]:
            word = "ahead" if node.clock_off > 0 else "behind"
            return f"clock {abs(node.clock_off):.1f} s {word}"
        return node.why.replace(guarded(node.guard_left), "restart guard")

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do about nodes that are not up, in sentences."""
        found = []
        if any(
            heard and node.guard_left for node, heard in zip(self.nodes, self.heard, strict=True)
        ):
            found.append(GUARDED)
        pairs = zip(self.nodes, self.heard, strict=True)
        clocks = [f"clock: {node.why}" for node, heard in pairs if heard and node.clock_off]
        found += dict.fromkeys(clocks)
        if not all(self.heard):
            place = f"REDLOCK[{self.alias!r}]['NODES']"
            found.append(f"down: start the server, or correct its entry in {place}")
        return tuple(found)

    @property
    def voting(self) -> int:
        """How many nodes vote now."""
        return sum(node.voting for node in self.nodes)

    @property
    def complete(self) -> bool:
        """Whether enough nodes answered that no held lock can be missing."""
        return self.heard.count(False) < self.majority

    @property
    def health(self) -> Health:
        """Whether locks can be taken, and whether a node needs attention."""
        if self.voting == len(self.nodes):
            return Health.OK
        return Health.DEGRADED if self.voting >= self.majority else Health.NO_MAJORITY

    @property
    def summary(self) -> str:
        """The health in a few words, for people."""
        words = {
            Health.OK: "healthy",
            Health.DEGRADED: "degraded",
            Health.NO_MAJORITY: "no majority, no lock can be taken",
        }
        votes = f"{self.voting} of {len(self.nodes)} nodes vote, {self.majority} are needed"
        return f"{words[self.health]} ({votes})"


def survey(backend: Backend, names: Sequence[str] = (), *, limit: int = LIMIT) -> Survey:
    """Ask all nodes what is held.

    Nodes that do not answer cost NODE_TIMEOUT, or twice that before it is known what they are
    like; nodes known to be down cost nothing while there is a majority without them.

    Args:
        names: look up these and nothing else, whether they are in the index or not.
        limit: the most names to read from the index.

    Raises:
        ValueError: what cannot be a lock's name, or a limit not from 1 to 10,000.
    """
    if not 1 <= limit <= MOST:
        msg = f"limit must be from 1 to {MOST}, not {limit}"
        raise ValueError(msg)
    wanted = tuple(dict.fromkeys(check_names(list(names)))) if names else ()
    return backend.run(_survey(backend, wanted, limit))


def shown(text: str) -> str:
    """``text`` for people: what is invisible or turns the direction of writing is escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def age(seconds: float) -> str:
    """Seconds for people: the two largest units at most."""
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


# -- asking ---------------------------------------------------------------------------------------


def _survey(backend: Backend, names: tuple[str, ...], limit: int) -> Steps[Survey]:
    votes = yield from _hear(backend, names[:BATCH], limit)
    truncated = not names and any(vote.number > limit for vote in votes)
    table: Table = {name.encode(): [None] * len(votes) for name in names}
    for i, vote in enumerate(votes):
        _enter(table, i, vote, len(votes))
    unsure = names[BATCH:]
    if not names:
        table = dict(sorted(table.items())[:limit])
        unsure = _incomplete(table, len(_heard(votes)))
    for start in range(0, len(unsure), BATCH):
        batch = unsure[start : start + BATCH]
        to = _heard(votes)
        again = yield _ask(backend, batch, limit, to)
        for i in to:
            if again[i].answer is not Answer.YES:
                votes[i] = again[i]
                continue
            for name in batch:
                table[name.encode()][i] = None
            _enter(table, i, again[i], len(votes))
    heard, majority = _heard(votes), backend.policy.majority
    return Survey(
        alias=backend.alias,
        nodes=tuple(map(_told, backend.group.states(), votes)),
        heard=tuple(i in heard for i in range(len(votes))),
        locks=tuple(_judge(name, cells, len(heard), majority) for name, cells in table.items()),
        truncated=truncated,
        majority=majority,
    )


def _hear(backend: Backend, names: tuple[str, ...], limit: int) -> Steps[list[Vote]]:
    """Put the first question to all nodes, again to those that were only too slow."""
    votes = list((yield _ask(backend, names, limit)))
    patient = True
    for _ in range(AGAIN):
        prompt, slow = _worth_another_try(votes, backend.group.states())
        to = prompt or (slow if patient else frozenset())
        if not to:
            break
        patient = patient and to is not slow  # waiting for connections once more is enough
        again = yield _ask(backend, names, limit, to)
        votes = [again[i] if i in to else vote for i, vote in enumerate(votes)]
    return votes


def _heard(votes: Sequence[Vote]) -> frozenset[int]:
    return frozenset(i for i, vote in enumerate(votes) if vote.answer is Answer.YES)


def _ask(
    backend: Backend, names: tuple[str, ...], limit: int, to: frozenset[int] | None = None
) -> Ask:
    policy = backend.policy
    # One more than the limit, so that a node with exactly so many is not called truncated.
    args: tuple[str | int, ...] = (f"{policy.prefix}lock:", limit + 1, *names)
    held = (f"{policy.prefix}held",)
    return Ask(Command.SURVEY, policy.nonce(), held, args, _everybody_answered, to)


def _everybody_answered(ballot: Ballot) -> bool:
    return None not in ballot


def _worth_another_try(
    votes: Sequence[Vote], states: Sequence[NodeState]
) -> tuple[frozenset[int], frozenset[int]]:
    """The nodes that were only too slow: those connected by now, and those still connecting.

    A process that has just started connects to all nodes within the first question's time, and
    one node that takes all of it leaves nothing for the others' answers. Nodes known to be down,
    which say the same in their vote and their state, are let alone.
    """
    lost = frozenset(i for i, vote in enumerate(votes) if vote.answer is not Answer.YES)
    reached = frozenset(i for i in lost if states[i].uptime is not None)
    prompt = frozenset(
        i for i in reached if states[i].voting or states[i].guard_left > 0 or states[i].clock_off
    )
    slow = frozenset(i for i in lost - reached if states[i].why != votes[i].why)
    return prompt, slow


def _incomplete(table: Table, heard: int) -> tuple[str, ...]:
    """The names that not every node which answered has in its index."""
    found = [name for name, cells in table.items() if len(cells) - cells.count(None) < heard]
    # Nobody but a stranger writes other names into the index; they are shown as they are.
    return tuple(name.decode() for name in found if len(name) <= LONGEST and _is_utf8(name))


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- understanding the answers --------------------------------------------------------------------


def _enter(table: Table, i: int, vote: Vote, size: int) -> None:
    """Write down what node ``i`` of ``size`` found."""
    item: Any
    for item in vote.data:
        name, owner, milliseconds, number, label = item
        table.setdefault(name, [None] * size)[i] = Cell(
            left=None if milliseconds == -1 else max(milliseconds, 0) / 1000,
            owner=_text(owner),
            label=_text(label)[:LABEL],
            number=int(number) if 0 < len(number) <= DIGITS else None,
        )


def _text(found: bytes) -> str:
    return found.decode("utf-8", "backslashreplace")


def _judge(name: bytes, found: list[Cell | None], heard: int, majority: int) -> HeldLock:
    """What a name is, from its keys."""
    cells = tuple(found)
    counts = Counter(cell.owner for cell in cells if cell is not None)
    owner = max(counts, key=counts.__getitem__, default="")
    own = [cell for cell in cells if cell is not None and cell.owner == owner]
    left = [cell.left for cell in own if cell.left is not None]
    unheard = len(cells) - heard
    if len(own) >= majority:
        kind = Kind.RESTING if _rests(own[0]) else Kind.HELD
    elif len(own) + unheard >= majority:
        kind = Kind.UNCLEAR
    elif len(counts) > 1:
        kind = Kind.SPLIT
    else:
        kind = Kind.PARTIAL if own else Kind.FREE
    return HeldLock(
        name=_text(name),
        kind=kind,
        holder=own[0].label if own else "",
        fence=max((cell.number for cell in own if cell.number is not None), default=None),
        on=len(own),
        of=len(cells),
        lowest=min(left, default=None),
        highest=max(left) if left and len(left) == len(own) else None,
        cells=cells,
    )


def _rests(cell: Cell) -> bool:
    """Whether this is the mark that ``scripts.REST`` leaves, which nobody owns."""
    mark = f"rest::{cell.label}".encode()
    digest = hashlib.sha1(mark, usedforsecurity=False).hexdigest()
    return cell.number is None and digest.startswith(cell.owner)


def _told(state: NodeState, vote: Vote) -> NodeState:
    """What is known of a node, after what it said this time."""
    if vote.answer is Answer.YES:
        return state
    why = vote.why if state.uptime is None else state.why or vote.why
    return state._replace(voting=False, why=why, uptime=None, round_trip=None)
