"""A group of N independent masters, as threads and event loops ask it."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from . import admission
from .background import CLOSE_TIMEOUT, call_in_child, end, end_all, notice_fork
from .loops import Loops
from .node import Node, NodeStatus
from .queue import NodePlaces, Waiters
from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .address import Address


class NodeGroup:
    """A group of independent masters, shared by all threads of a process.

    Args:
        addresses: one for each node.
        timeout: seconds that a node may take to answer.
        guard: seconds for which a restarted or emptied node has no vote; 0 switches it off.
        skew: seconds by which a node's wall clock may differ from this machine's, with a guard.
        failover: whether a promoted replica has a vote when the guard is over.
        prefix: of every key.
        alias: under which they are configured, for those that watch them.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        timeout: float,
        guard: float,
        prefix: str,
        skew: float = admission.SKEW,
        failover: bool = False,
        alias: str = "",
    ) -> None:
        self.nodes = tuple(
            Node(
                address,
                index=index,
                fences=f"{prefix}fences",
                guard=guard,
                skew=skew,
                failover=failover,
                timeout=timeout,
                welcomed=self._mark_duplicates,
                alias=alias,
                alone=len(addresses) == 1,
            )
            for index, address in enumerate(addresses)
        )
        self._threads = Threads(self.nodes, timeout)
        self._loops = Loops(self.nodes, timeout, self._threads)
        self.ask, self.aask = self._threads.ask, self._loops.ask
        self._waiters = Waiters(
            NodePlaces(self.nodes, self._loops.put, self._threads, timeout), timeout
        )
        self.queue, self.aqueue = self._waiters.queue, self._waiters.aqueue
        self.waiting = self._waiters.local.waiting
        _ALL.add(self)

    def states(self) -> list[NodeStatus]:
        """What is known of each node, without asking."""
        now = time.monotonic()
        return [node.state(now) for node in self.nodes]

    def close(self, timeout: float = CLOSE_TIMEOUT) -> list[str]:
        """End the background work, and close the idle connections; the nodes can still be asked.

        What a node has not undone is sent once more, if the node can be reached. A connection in
        use, or still being opened, closes when nothing refers to the group any more.

        Args:
            timeout: seconds for which it waits for the end of the work; 0: the work goes on.

        Returns:
            The kinds of work that had not ended by then.
        """
        left: list[str] = []
        if timeout:
            self.prepare_end()
            left = end([self._threads.threads, *(each.threads for each in self.nodes)], timeout)
        self._loops.close()
        self._threads.close()
        for node in self.nodes:
            node.close()
        return left

    def prepare_end(self) -> None:
        """Let the background work hear, and send, what is still owed to undos."""
        self._threads.close()
        for node in self.nodes:
            node.undos.hurry()

    def reset(self) -> None:
        """Forget every connection, as a forked child must."""
        self._threads.reset()
        self._loops.reset()
        self._waiters.reset()
        for node in self.nodes:
            node.reset()

    def _mark_duplicates(self) -> None:
        """Take the vote from every node that is the same server as one before it."""
        seen: dict[str, str] = {}
        for node in self.nodes:
            if node.facts is not None:
                first = seen.setdefault(node.facts.run_id, node.label)
                node.duplicate_of = first if first != node.label else ""


_ALL: weakref.WeakSet[NodeGroup] = weakref.WeakSet()


def close_all(timeout: float = CLOSE_TIMEOUT) -> list[str]:
    """End all background work of this process, and close the idle connections of all groups.

    Args:
        timeout: seconds for which it waits for the end of the work.

    Returns:
        The kinds of work that had not ended by then.
    """
    notice_fork()
    groups, until = tuple(_ALL), time.monotonic() + timeout
    for group in groups:
        group.prepare_end()
    end_all(timeout)
    for group in groups:
        group.close(0)
    return end_all(until - time.monotonic())


def _after_fork() -> None:
    for group in _ALL:
        group.reset()


call_in_child(_after_fork)
