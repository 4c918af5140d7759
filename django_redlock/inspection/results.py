"""Classify what a survey found: each held name, each node, and the health of the group."""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.commands import as_text
from django_redlock.core.protocol import Answer
from django_redlock.core.reasons import (
    Reason,
    ReasonCode,
    action,
    because,
    is_silent,
    printable,
)

from . import eviction
from .lookup import Cell
from .task_list import TaskList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_redlock.core.protocol import Vote
    from django_redlock.transport.node import NodeStatus

    from .eviction import Eviction

MINUTE, HOUR, DAY = 60, 3600, 86400
NO_TASKS: Final = TaskList()


class LockStatus(enum.StrEnum):
    """The status of a name, as far as the nodes that replied can tell."""

    HELD = "held"  # one owner on a majority
    RESTING = "resting"  # released, and not to be taken until its ``min_hold`` is over
    PARTIAL = "partial"  # one owner on fewer nodes than a majority: not held
    SPLIT = "split"  # several owners, none on a majority: not held
    UNCLEAR = "unclear"  # held or not: nodes that did not reply, or do not vote, decide
    FREE = "free"  # on no node; only names that were asked for


class Health(enum.StrEnum):
    """Whether locks can be taken; from good to bad."""

    OK = "ok"
    DEGRADED = "degraded"
    NOT_YET = "not_yet"  # only time is missing; a survey says no_majority
    NO_MAJORITY = "no_majority"

    @classmethod
    def worst(cls, found: Iterable[Health]) -> Health:
        """Return the worst of these."""
        return max(found, key=list(cls).index)


class NodeState(enum.StrEnum):
    """Whether a node votes."""

    UP = "up"
    NO_VOTE = "no vote"  # it replies, but may not vote
    DOWN = "down"


SUMMARIES: Final = {
    Health.OK: ReasonCode.HEALTHY,
    Health.DEGRADED: ReasonCode.DEGRADED,
    Health.NO_MAJORITY: ReasonCode.NO_LOCK,
}


class Owner(NamedTuple):
    """A client that has keys of a lock.

    Attributes:
        owner: the digest of its values.
        label: its owner label, as text; "" if it left none.
        on: how many nodes carry its value.
    """

    owner: str
    label: str
    on: int


class HeldLock(NamedTuple):
    r"""A name and what the nodes have of it. *The owner* is the one on most nodes.

    Attributes:
        name: bytes that are no UTF-8 are written as ``\xff``.
        kind: its status.
        holder: the owner's label, "" if it left none.
        fence: the owner's highest grant number; it is the lease's fence when the nodes that
            granted it agreed at once, else the fence may differ. None for other clients.
        on: how many nodes carry the owner's value.
        of: how many nodes there are.
        lowest, highest: seconds left on those nodes; None: the key never expires.
        cells: one for each node; None if there is no key, or no reply.
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
        """All clients that have keys of it, *the owner* first: by the number of nodes."""
        counts = Counter(cell.owner for cell in self.cells if cell is not None)
        labels = {cell.owner: cell.label for cell in self.cells if cell is not None}
        return tuple(Owner(owner, labels[owner], on) for owner, on in counts.most_common())


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of an alias's nodes and locks at one moment.

    Attributes:
        alias: its name.
        nodes: what is known of each node; that of a node without a reply has the reason.
        heard: for each node, whether it replied; if not, its cells are unknown.
        locks: those that were asked for, or those that are held.
        truncated: whether more is held than ``limit`` allowed to show.
        majority: how many nodes must vote for a lock.
        beyond: how many more names match than ``limit`` allowed to show.
        unsearched: whether more names are held than were searched.
        evictions: what each node does when its memory is full; None: it did not tell. Empty: no
            node was asked.
        tasks: those that wait and run, if they were asked for.
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
    tasks: TaskList = NO_TASKS

    def state(self, i: int) -> NodeState:
        """Return whether node ``i`` votes, only replies, or is down."""
        if self.nodes[i].voting:
            return NodeState.UP
        return NodeState.NO_VOTE if self.heard[i] else NodeState.DOWN

    def reason(self, i: int) -> Reason | None:
        """Return why node ``i`` is not up, or else why it needs attention; None: it does not."""
        return self.nodes[i].reason or self.warning(i)

    def warning(self, i: int) -> Reason | None:
        """Return why node ``i`` may delete locks that are held; None: it does not."""
        return eviction.threat(self.evictions[i : i + 1])

    @property
    def advice(self) -> tuple[Reason, ...]:
        """What to do about nodes that need attention, each thing once."""
        found: list[Reason | None] = []
        replying = [node for node, heard in zip(self.nodes, self.heard, strict=True) if heard]
        if any(node.guard_left for node in replying):
            found.append(because(ReasonCode.ADVICE_GUARD))
        clocks = [node.reason for node in replying if node.clock_off and node.reason]
        told = {str(cause): cause for cause in clocks}  # texts may be equal
        found += [because(ReasonCode.ADVICE_CLOCK, cause=cause) for cause in told.values()]
        unheard = [self.nodes[i].reason for i, heard in enumerate(self.heard) if not heard]
        if any(map(is_silent, unheard)):
            found.append(because(ReasonCode.ADVICE_DOWN, alias=self.alias))
        running = {str(cause): cause for cause in unheard if cause and not is_silent(cause)}
        for cause in running.values():
            if do := action(cause):
                found.append(because(ReasonCode.ADVICE_NODE, cause=cause, action=do))
        found.append(eviction.threat(self.evictions))
        return tuple(filter(None, found))

    @property
    def places(self) -> frozenset[int]:
        """The places of the nodes that replied."""
        return frozenset(i for i, heard in enumerate(self.heard) if heard)

    @property
    def voting(self) -> int:
        """How many nodes vote now."""
        return sum(node.voting for node in self.nodes)

    @property
    def complete(self) -> bool:
        """Whether so many nodes replied that no held lock can be missing."""
        return self.heard.count(False) < self.majority

    @property
    def health(self) -> Health:
        """Whether locks can be taken, and whether a node needs attention."""
        if self.voting == len(self.nodes):
            return Health.OK
        return Health.DEGRADED if self.voting >= self.majority else Health.NO_MAJORITY

    @property
    def summary(self) -> Reason:
        """The health as a reason, with the votes."""
        votes, size = self.voting, len(self.nodes)
        return because(SUMMARIES[self.health], votes=votes, size=size, needed=self.majority)


shown = printable  # its name in earlier versions


def age(seconds: float) -> str:
    """Format seconds for people, by the two largest units at most."""
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


# -- classifying the replies -----------------------------------------------------------------------


def judge(
    name: bytes, found: list[Cell | None], nodes: Sequence[NodeStatus], majority: int
) -> HeldLock:
    """Classify a name by its keys.

    A node that does not vote, by the restart guard for one, may have forgotten a key: that it has
    none says nothing.
    """
    cells = tuple(found)
    counts = Counter(cell.owner for cell in cells if cell is not None)
    owner = max(counts, key=counts.__getitem__, default="")
    own = [cell for cell in cells if cell is not None and cell.owner == owner]
    left = [cell.left for cell in own if cell.left is not None]
    unheard = sum(cell is None and not node.voting for cell, node in zip(cells, nodes, strict=True))
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
    """Return True if this is the mark that ``rest.lua`` leaves; no client owns it."""
    mark = f"rest::{cell.label}".encode()
    digest = hashlib.sha1(mark, usedforsecurity=False).hexdigest()
    return cell.number is None and digest.startswith(cell.owner)


def told(state: NodeStatus, vote: Vote) -> NodeStatus:
    """Update what is known of a node by its vote in this survey."""
    if vote.answer is Answer.YES:
        return state
    reason = vote.reason if state.uptime is None else state.reason or vote.reason
    return state._replace(voting=False, reason=reason, uptime=None, round_trip=None)
