"""Examine the nodes of a deployment, for ``redlock_check``: what is wrong or risky, what to do.

All nodes of all aliases are probed at once, each in a thread, and it ends within a bounded time. A
socket has its timeout, and looking a name up has none: so nobody waits for the threads. One that
is late ends by itself, or with the process.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from django_redlock.core.reasons import Reason, ReasonCode, because
from django_redlock.nodes import admission
from django_redlock.nodes.background import WorkerThreads

from .probe import LATE, Expected, Finding, Level, NodeReport, judge, probe
from .survey import PATIENCE, Health

MOST: Final = 10.0  # seconds for each step of a conversation, however large NODE_TIMEOUT is
STEPS: Final = 3  # times that, for all: connecting, TLS, and silence
SUMMARIES: Final = {
    Health.OK: ReasonCode.READY,
    Health.DEGRADED: ReasonCode.TO_DO,
    Health.NO_MAJORITY: ReasonCode.NOT_READY,
}


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
    nodes: tuple[NodeReport, ...]
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
        votes: dict[str, int] = {"votes": self.voting, "size": self.size, "needed": self.majority}
        if self.health is not Health.NOT_YET:
            return because(SUMMARIES[self.health], **votes)
        left = self.votes_in
        if left is None or left == math.inf:
            return because(ReasonCode.NOT_COUNTED, **votes, seconds=self.guard)
        return because(ReasonCode.NOT_YET, **votes, seconds=left)


def examine(aliases: Sequence[Expected]) -> list[Examination]:
    """Examine the nodes of these aliases.

    It takes at most three times NODE_TIMEOUT, which counts as at least 2 s and at most 10 s here.
    """
    patience = min(MOST, max([PATIENCE, *(each.timeout for each in aliases)]))
    until = time.monotonic() + STEPS * patience
    came: queue.SimpleQueue[tuple[int, int, NodeReport]] = queue.SimpleQueue()
    found = [[judge(each, LATE, alias) for each in alias.addresses] for alias in aliases]

    def ask(which: int, i: int) -> None:
        alias = aliases[which]
        came.put((which, i, probe(alias.addresses[i], alias, patience)))

    threads, count = WorkerThreads(), sum(map(len, found))
    for which, alias in enumerate(aliases):
        for i in range(len(alias.addresses)):
            threads.do("ask", partial(ask, which, i), most=count)
    for _ in range(count):
        try:
            which, i, report = came.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        found[which][i] = report
    return [compare(alias, nodes) for alias, nodes in zip(aliases, found, strict=True)]


def compare(expected: Expected, nodes: Sequence[NodeReport]) -> Examination:
    """Add what only a comparison shows: which two are one server."""
    first: dict[str, str] = {}  # by run_id, as far as a connection for locks would come
    compared = []
    for node in nodes:
        report = node
        if node.run_id in first:
            report = report.found(Finding(Level.ERROR, admission.duplicated(first[node.run_id])))
        elif node.run_id and report.level is not Level.ERROR:
            first[node.run_id] = node.label
        compared.append(report)
    in_memory = [Finding(Level.WARNING, because(ReasonCode.IN_MEMORY))] if not nodes else []
    return Examination(
        expected.alias,
        expected.size,
        expected.majority,
        expected.guard,
        tuple(compared),
        tuple(in_memory),
    )
