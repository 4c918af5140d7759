"""Five nodes, how hard to try, and which processor is whose."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from django_redlock.testing import EmbeddedNodes

NODES = 5
HUNG = 2  # the index of the node to which things happen
READINGS = 20  # of the nodes' processors, to know what one costs them


class Effort(NamedTuple):
    """How much is measured.

    Attributes:
        rounds: turns of each client, after one to warm up; at least 30 for figures to be quoted.
        pairs: acquire + release in a turn.
        tasks: how many tasks at once, where that is what is measured.
        patience: seconds that one client may spend on turns with an ill node.
        node_timeout: our NODE_TIMEOUT.
        waiters: processes that want one name, few and many.
        crowds: how often each such crowd gathers.
        turns: seconds for which a crowd begins new turns.
        hang: seconds for which a node hangs under a crowd.
        leases: how many leases are held at one time.
        ttl: seconds of their ttl.
        renewing: seconds for which their renewal is measured.
    """

    rounds: int = 30
    pairs: int = 50
    tasks: tuple[int, ...] = (1, 100, 1000)
    patience: float = 3.0
    node_timeout: float = 0.05
    waiters: tuple[int, int] = (8, 50)
    crowds: int = 4
    turns: float = 5.0
    hang: float = 2.0
    leases: int = 10_000
    ttl: float = 30.0
    renewing: float = 10.0


FULL = Effort()
QUICK = Effort(6, 20, patience=1.5, crowds=1, turns=3, leases=2000, ttl=6, renewing=4)
TINY = Effort(2, 4, (1, 5), 0.5, 2.0, (3, 6), 1, 0.5, 0.5, 100, 3.0, 0.5)  # tries it out


class Stage:
    """The nodes, ready to vote, and the effort."""

    def __init__(self, nodes: EmbeddedNodes, effort: Effort) -> None:
        self.nodes = nodes
        self.effort = effort
        self.options: dict[str, Any] = {"MAX_TTL": 5, "NODE_TIMEOUT": effort.node_timeout}
        self.admit()

    def admit(self) -> None:
        """Wait until all nodes vote, and put them where they belong."""
        self.alias: dict[str, Any] = self.nodes.settings(**self.options)
        apart(self.nodes)

    @contextmanager
    def worked(self) -> Iterator[Callable[[], float]]:
        """Give what reads for how many seconds the processors of all nodes have worked so far."""
        with ExitStack() as stack:
            clients = [
                stack.enter_context(closing(node.client(socket_timeout=30))) for node in self.nodes
            ]

            def seconds() -> float:
                found = [client.info("cpu") for client in clients]
                return float(sum(each["used_cpu_user"] + each["used_cpu_sys"] for each in found))

            # A reading is work, too: each of the earlier ones is taken off.
            first = [seconds() for _ in range(READINGS)]
            own, earlier = (first[-1] - first[0]) / (READINGS - 1), itertools.count()
            yield lambda: seconds() - own * next(earlier)

    @contextmanager
    def hung(self) -> Iterator[None]:
        """One node accepts questions and says nothing."""
        self.nodes.pause(HUNG)
        try:
            yield
        finally:
            self.nodes.resume(HUNG)

    @contextmanager
    def refused(self) -> Iterator[None]:
        """One node is dead and its port closed."""
        self.nodes.kill(HUNG)
        try:
            yield
        finally:
            self.nodes.restart(HUNG)
            self.admit()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let all run on all processors: where many processes compete, one is not enough."""
        for pid in (os.getpid(), *(node.pid for node in self.nodes)):
            pin(pid, PROCESSORS)
        try:
            yield
        finally:
            apart(self.nodes)


PROCESSORS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def apart(nodes: EmbeddedNodes) -> None:
    """Clients and nodes on different processors, where there are two: as on different machines.

    Otherwise the scheduler may put a node in the client's place at each message, or may not,
    for the whole of a run; that would be measured. What we start from now on is where we are.
    """
    if len(PROCESSORS) > 1:
        for node in nodes:
            pin(node.pid, PROCESSORS[1:])
        pin(os.getpid(), PROCESSORS[:1])


def pin(pid: int, processors: list[int]) -> None:
    """Let all threads of a process run on these processors only; no list is no change."""
    if not processors:
        return
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(task.name), processors)
