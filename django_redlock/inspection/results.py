"""What a survey found: each held name, each node, and what they say about the locks."""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.protocol import Answer
from django_redlock.transport.node import guarded
from django_redlock.transport.wire.replies import as_text

from . import eviction
from .lookup import Cell

if TYPE_CHECKING:
    from django_redlock.core.protocol import Vote
    from django_redlock.transport.node import NodeStatus

    from .eviction import Eviction

GUARDED: Final = (
    "restart guard: started or emptied a short while ago; votes by itself when its seconds are over"
)
MINUTE, HOUR, DAY = 60, 3600, 86400


class LockStatus(enum.StrEnum):
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
    kind: LockStatus
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
    nodes: tuple[NodeStatus, ...]
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


# -- understanding the answers --------------------------------------------------------------------


def judge(name: bytes, found: list[Cell | None], heard: int, majority: int) -> HeldLock:
    """What a name is, from its keys."""
    cells = tuple(found)
    counts = Counter(cell.owner for cell in cells if cell is not None)
    owner = max(counts, key=counts.__getitem__, default="")
    own = [cell for cell in cells if cell is not None and cell.owner == owner]
    left = [cell.left for cell in own if cell.left is not None]
    unheard = len(cells) - heard
    if len(own) >= majority:
        kind = LockStatus.RESTING if _rests(own[0]) else LockStatus.HELD
    elif len(own) + unheard >= majority:
        kind = LockStatus.UNCLEAR
    elif len(counts) > 1:
        kind = LockStatus.SPLIT
    else:
        kind = LockStatus.PARTIAL if own else LockStatus.FREE
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
    """Whether this is the mark that ``rest.lua`` leaves, which nobody owns."""
    mark = f"rest::{cell.label}".encode()
    digest = hashlib.sha1(mark, usedforsecurity=False).hexdigest()
    return cell.number is None and digest.startswith(cell.owner)


def told(state: NodeStatus, vote: Vote) -> NodeStatus:
    """What is known of a node, after what it said this time."""
    if vote.answer is Answer.YES:
        return state
    why = vote.why if state.uptime is None else state.why or vote.why
    return state._replace(voting=False, why=why, uptime=None, round_trip=None)
