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
from typing import TYPE_CHECKING, Final, NamedTuple

from . import eviction, polling
from .answers import as_text
from .lookup import Cell, Lookup
from .naming import check_names
from .node import guarded
from .protocol import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .backend import Backend
    from .eviction import Eviction
    from .node import NodeState
    from .protocol import Steps, Vote

LIMIT: Final = 1000  # names shown of an index, unless told otherwise …
MOST: Final = 10_000  # … and at most: a node serves nobody else while it reads them
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
        beyond: how many more names match than ``limit`` allowed to show.
        unsearched: whether more names are held than were searched.
        evictions: what each node does when its memory is full; None: it was not asked, or did
            not tell. Empty: no node was asked.
    """

    alias: str
    nodes: tuple[NodeState, ...]
    heard: tuple[bool, ...]
    locks: tuple[HeldLock, ...]
    truncated: bool
    majority: int
    beyond: int = 0
    unsearched: bool = False
    evictions: tuple[Eviction | None, ...] = ()

    def state(self, i: int) -> str:
        """Node ``i`` in a word: it is *up*, or answers and has *no vote*, or is *down*."""
        if self.nodes[i].voting:
            return "up"
        return "no vote" if self.heard[i] else "down"

    def why(self, i: int) -> str:
        """Why it is not up, for a place that has the rest beside it; or what threatens."""
        node = self.nodes[i]
        if node.clock_off and self.heard[i]:
            word = "ahead" if node.clock_off > 0 else "behind"
            return f"clock {abs(node.clock_off):.1f} s {word}"
        return node.why.replace(guarded(node.guard_left), "restart guard") or self.warning(i)

    def warning(self, i: int) -> str:
        """The policy by which node ``i`` may delete locks that are held, or ""."""
        told = self.evictions[i] if self.evictions else None
        return told.policy if told and told.threatens else ""

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
        found.append(eviction.advice(self.evictions))
        return tuple(filter(None, found))

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


def survey(
    backend: Backend,
    names: Sequence[str] = (),
    *,
    limit: int = LIMIT,
    matching: Callable[[str], bool] | None = None,
    memory: bool = False,
) -> Survey:
    """Ask all nodes what is held.

    Nodes that do not answer cost NODE_TIMEOUT, or twice that before it is known what they are
    like; nodes known to be down cost nothing while there is a majority without them.

    Args:
        names: look up these and nothing else, whether they are in the index or not.
        limit: the most names to read from the index.
        matching: search the index for the names of which this is true, besides ``names``.
        memory: ask also what the nodes do when their memory is full; one more question.

    Raises:
        ValueError: what cannot be a lock's name, or a limit not from 1 to 10,000.
    """
    if not 1 <= limit <= MOST:
        msg = f"limit must be from 1 to {MOST}, not {limit}"
        raise ValueError(msg)
    wanted = tuple(dict.fromkeys(check_names(list(names)))) if names else ()
    return backend.run(_survey(backend, wanted, limit, matching, memory=memory))


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


def _survey(
    backend: Backend,
    names: tuple[str, ...],
    limit: int,
    matching: Callable[[str], bool] | None,
    *,
    memory: bool,
) -> Steps[Survey]:
    look = Lookup(backend, limit)
    if names or matching:
        yield from look.by_name(names, matching)
    else:
        yield from look.at_the_index()
    evictions = (yield from eviction.ask(backend, polling.heard(look.votes))) if memory else ()
    heard, majority = polling.heard(look.votes), backend.policy.majority
    locks = [_judge(name, cells, len(heard), majority) for name, cells in look.table.items()]
    return Survey(
        alias=backend.alias,
        nodes=tuple(map(_told, backend.group.states(), look.votes)),
        heard=tuple(i in heard for i in range(len(look.votes))),
        # What the index had may have been released before it was looked up.
        locks=tuple(lock for lock in locks if lock.kind is not Kind.FREE or lock.name in names),
        truncated=look.more or look.beyond > 0 or look.unsearched,
        majority=majority,
        beyond=look.beyond,
        unsearched=look.unsearched,
        evictions=evictions,
    )


# -- understanding the answers --------------------------------------------------------------------


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
        name=as_text(name),
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
