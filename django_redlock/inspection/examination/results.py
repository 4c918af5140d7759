"""What an examination has found, by alias and node."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from django_redlock.core.reasons import Reason, ReasonCode, because
from django_redlock.inspection.results import Health

if TYPE_CHECKING:
    from django_redlock.inspection.eviction import Eviction
    from django_redlock.transport.address import Address


class Level(enum.StrEnum):
    """How bad a finding is."""

    NOTE = "note"  # nothing must be done
    WARNING = "warning"  # locks work, and may fail or be lost some day
    ERROR = "error"  # the node has no vote


class Expected(NamedTuple):
    """What the settings of an alias say of its nodes.

    Attributes:
        alias: its name.
        addresses: of the nodes; empty if they are in memory.
        size: how many nodes there are.
        majority: how many must vote.
        timeout: seconds that a node may take to answer: NODE_TIMEOUT.
        guard: seconds of the restart guard; 0: there is none.
        skew: seconds by which clocks may differ, with a guard.
        prefix: of every key.
    """

    alias: str
    addresses: tuple[Address, ...]
    size: int
    majority: int
    timeout: float
    guard: float
    skew: float
    prefix: str


class Finding(NamedTuple):
    """Something that is wrong or risky.

    Attributes:
        level: how bad it is.
        reason: what it is; most sentences say what to do, for the others see ``reasons.action``.
    """

    level: Level
    reason: Reason


class NodeFacts(NamedTuple):
    """What a node told, and what was found.

    Attributes:
        label: ``host:port/db``.
        reached: whether it told anything of itself.
        voting: whether it votes now.
        guard_left: seconds left of the restart guard; infinite: nobody has begun to count them;
            None: it did not tell.
        software, role: as it said; "" if it did not.
        uptime: seconds, or None.
        round_trip: seconds of a small command, or None.
        ahead: seconds that its clock is ahead of this machine's (negative: behind), or None.
        eviction: what it does when its memory is full, or None.
        append_only, snapshots: whether it keeps its data in this way; None: it did not tell.
        rights: whether its user may do all that locks need; None: it could not be tried.
        findings: the worst first.
    """

    label: str
    reached: bool
    findings: tuple[Finding, ...]
    voting: bool = False
    guard_left: float | None = None
    software: str = ""
    role: str = ""
    uptime: float | None = None
    round_trip: float | None = None
    ahead: float | None = None
    eviction: Eviction | None = None
    append_only: bool | None = None
    snapshots: bool | None = None
    rights: bool | None = None

    @property
    def level(self) -> Level | None:
        """The worst level of its findings; None: there are none."""
        return self.findings[0].level if self.findings else None


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found of an alias.

    Attributes:
        alias: its name.
        size, majority: how many nodes there are, and how many must vote.
        guard: seconds of the restart guard.
        nodes: the nodes, in the order of the settings; empty if they are in memory.
        findings: about all of them together.
    """

    alias: str
    size: int
    majority: int
    guard: float
    nodes: tuple[NodeFacts, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def usable(self) -> int:
        """How many nodes can vote, now or when the restart guard is over."""
        return self.size - sum(node.level is Level.ERROR for node in self.nodes)

    @property
    def voting(self) -> int:
        """How many nodes vote now; nodes in memory do."""
        return self.size - sum(not node.voting for node in self.nodes)

    @property
    def votes_in(self) -> float | None:
        """Seconds until a majority votes by itself, 0: it does; infinite: nobody counts them yet.

        None: it never will.
        """
        if self.voting >= self.majority:
            return 0.0
        left = sorted(
            0.0 if node.voting else node.guard_left or 0.0
            for node in self.nodes
            if node.level is not Level.ERROR
        )
        return left[self.majority - 1] if len(left) >= self.majority else None

    @property
    def health(self) -> Health:
        """Whether locks can be taken, and whether something is to be done."""
        if self.usable < self.majority:
            return Health.NO_MAJORITY
        if self.voting < self.majority:
            return Health.NOT_YET
        levels = {each.level for each in self.findings} | {node.level for node in self.nodes}
        return Health.DEGRADED if levels & {Level.WARNING, Level.ERROR} else Health.OK

    @property
    def summary(self) -> Reason:
        """The health as a reason, with the nodes that vote."""
        codes = {
            Health.OK: ReasonCode.READY,
            Health.DEGRADED: ReasonCode.TO_DO,
            Health.NO_MAJORITY: ReasonCode.NOT_READY,
        }
        votes: dict[str, int] = {"votes": self.voting, "size": self.size, "needed": self.majority}
        if self.health is not Health.NOT_YET:
            return because(codes[self.health], **votes)
        left = self.votes_in
        if left is None or left == math.inf:
            return because(ReasonCode.NOT_COUNTED, **votes, seconds=self.guard)
        return because(ReasonCode.NOT_YET, **votes, seconds=left)
