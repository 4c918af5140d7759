"""N masters: write to all sockets, read as they answer, stop when decided.

For threads each request is a ``BlockingRequest`` on the caller's own thread, no pool of threads;
for tasks of an event loop see ``aio``.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING

from django_redlock.core.quorum import majority_of
from django_redlock.transport import admission
from django_redlock.transport.node import Node, NodeStatus

from .aio import Loops
from .blocking import BlockingRequest
from .waiters import Waiters

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from django_redlock.core.protocol import Request, Vote
    from django_redlock.transport.address import Address


class NodeGroup:
    """A group of independent masters, shared by all threads of a process.

    Args:
        addresses: one for each node.
        timeout: seconds that a node may take to answer.
        guard: seconds for which a restarted or emptied node has no vote; 0 switches it off.
        skew: seconds by which a node's wall clock may differ from this machine's, with a guard.
        prefix: of every key.
        alias: under which they are configured, for who watches them.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        timeout: float,
        guard: float,
        prefix: str,
        skew: float = admission.SKEW,
        alias: str = "",
    ) -> None:
        self.timeout = timeout
        self._skew = skew
        self.nodes = tuple(
            Node(
                address,
                place=place,
                fences=f"{prefix}fences",
                guard=guard,
                skew=skew,
                timeout=timeout,
                welcomed=self._compare,
                alias=alias,
                alone=len(addresses) == 1,
            )
            for place, address in enumerate(addresses)
        )
        self._loops = Loops(self.nodes, timeout)
        standing = Waiters(self.nodes, self._loops, timeout)
        self.queue, self.aqueue = standing.queue, standing.aqueue
        self._waiters = standing
        _ALL.add(self)

    def ask(self, ask: Request) -> list[Vote]:
        """Put a question to the nodes and return one vote for each, in order."""
        work = BlockingRequest(self.nodes, ask, self.timeout)
        try:
            work.gather()
            work.write()
            work.listen()
            while work.more():
                work.write()
                work.listen()
            return work.question.votes()
        except BaseException:  # rule: an interrupted stream serves for undoing, nothing else
            work.spoil()
            raise
        finally:
            work.give_back()

    def aask(self, ask: Request) -> asyncio.Future[list[Vote]]:
        """Put a question to the nodes, for a task of the running event loop."""
        return self._loops.ask(ask)

    def states(self) -> list[NodeStatus]:
        """What is known of each node, without asking."""
        now = time.monotonic()
        return [node.state(now) for node in self.nodes]

    def close(self) -> None:
        """Close the idle connections; the nodes can still be asked afterwards."""
        for node in self.nodes:
            node.close()

    def reset(self) -> None:
        """Forget every connection, as a forked child must."""
        self._loops.reset()
        self._waiters.reset()
        for node in self.nodes:
            node.reset()

    def _compare(self) -> None:
        """Look at what the nodes said of themselves, one beside the other."""
        self._mark_twins()
        offs = [node.facts.off if node.facts else 0.0 for node in self.nodes]
        ours = admission.ours_off(offs, majority_of(len(offs)), self._skew)
        for node in self.nodes:
            node.ours_off = ours

    def _mark_twins(self) -> None:
        """Take the vote from every node that is the same server as one before it."""
        seen: dict[str, str] = {}
        for node in self.nodes:
            if node.facts is not None:
                first = seen.setdefault(node.facts.run_id, node.label)
                node.duplicate_of = first if first != node.label else ""


_ALL: weakref.WeakSet[NodeGroup] = weakref.WeakSet()


def _after_fork() -> None:
    for group in _ALL:
        group.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
