"""The collectors of a thread and of a task, which differ in one rule: which nodes are prompt.

A thread has its connections for itself, and the tasks of an event loop share theirs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from django_redlock.core.commands import Acquire, Release
from django_redlock.core.protocol import Answer, Vote
from django_redlock.transport.pending import PendingReply
from django_redlock.transport.wire import replies

from .votes import LEAST_LINGER, OVER, VoteCollector

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from django_redlock.core.protocol import Command, Request
    from django_redlock.transport.node import Node

    from .votes import Hear, Verdict

YES: Final = Answer.YES  # an enum's member costs five times a name
NOTHING: Final = ()  # what no reply equals


class ThreadCollector(VoteCollector):
    """The request of a thread, which has its connections for itself.

    Attributes:
        prompt: the places of the nodes that owed nothing when they were asked. These are prompt:
            a node that owes an answer already may hang, and would cost every release a moment.
    """

    __slots__ = ("prompt",)

    def __init__(
        self,
        nodes: Sequence[Node],
        request: Request,
        timeout: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(nodes, request, timeout, clock=clock)
        self.prompt: set[int] = set()

    def _hear(self) -> Hear:
        return self.votes.__setitem__

    def _prompt(self) -> bool:
        return not self.prompt.isdisjoint(self.unheard)


class Driver(Protocol):
    """What carries the requests of tasks to the nodes."""

    def follow(self, collector: TaskCollector, verdict: Verdict) -> None:
        """Do what a verdict says."""


class TaskCollector(VoteCollector):
    """The request of a task, over connections that owe other tasks something at most times.

    A node is prompt if it had not been silent for longer than the majority took to answer.

    Connections may keep it in place of a ``PendingReply`` for each of them (``pending.Owed``). Then
    a reply that equals ``said`` is a YES without another look: to a grant, the first YES, nonce and
    number; to a release, that the names are free and nobody waited.

    Args:
        answered: the task's future.

    Attributes:
        answered: the future, until it has the votes; None from then on.
        driver: is told when a vote has changed the verdict.
        command: of the request.
        said: the reply that is known to be a YES; nothing equals it as long as there is none.
    """

    __slots__ = ("_number", "answered", "command", "driver", "said")
    late = True  # a loop reads what comes when the request is over

    def __init__(
        self,
        nodes: Sequence[Node],
        request: Request,
        timeout: float,
        answered: asyncio.Future[list[Vote]],
        driver: Driver | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(nodes, request, timeout, answered, clock=clock)
        self.answered: asyncio.Future[list[Vote]] | None = answered
        self.driver = driver
        self.command: Command = request.command
        self.said: object = NOTHING
        self._number = 0  # in ``said``, of a grant
        if isinstance(request, Release):
            self.said = [self.nonce, request.done, 0]

    # -- in the stream of each connection -------------------------------------------------------

    @property
    def since(self) -> float:
        """Return the ``time.monotonic`` when it was sent."""
        return self.start

    def vote_in(self, label: str, answer: object) -> Vote | None:
        """Return the vote in a reply of the node with this label; None: it is to something else."""
        request = self.request
        vote = replies.vote(request, label, self.nonce, answer)
        if self.said is NOTHING and vote and vote.answer is YES and isinstance(request, Acquire):
            self._number, self.said = vote.fence, answer
        return vote

    def alone(self) -> PendingReply:
        """Return the request as a tuple, to be sent once more or to be heard by another."""
        return PendingReply(
            self.command, self.nonce, self.hear, self.start, self.packed, self.asker
        )

    # -- hearing --------------------------------------------------------------------------------

    def _hear(self) -> Hear:
        return self.hear

    def hear(self, place: int, vote: Vote) -> None:
        """Note a vote."""
        answered = self.answered
        if answered is None:
            return
        if answered.done():
            self.forget()
            self.answered = None
            return
        self.votes[place] = vote
        self.unheard.pop(place, None)
        if len(self.unheard) >= self.majority:  # nothing can be clear yet
            return
        before, verdict = self.lingering, self.verdict()
        driver = self.driver
        if driver is not None and (verdict is OVER or self.lingering is not before):
            driver.follow(self, verdict)

    def hear_again(self, place: int) -> None:
        """Note that the node at this place replied what is in ``said``."""
        if self.answered is not None:
            node, number = self.nodes[place], self._number
            self.hear(place, Vote(node.label, YES, number) if number else node.freed)

    def forget(self) -> None:
        """Refer to no connection or caller any more; but to the future, which is told last."""
        super().forget()
        self.driver = None

    def end(self) -> None:
        """Give the future the votes; what still refers to the request keeps no event loop."""
        votes = self.result()
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(votes)
        self.answered = None

    def _prompt(self) -> bool:
        patience = LEAST_LINGER  # of all; a clock is read for few
        for each in self.unheard.values():
            silent = each.silent_for(self.start)
            if silent > patience:
                patience = self.linger(self.clock())
            if silent <= patience:
                return True
        return False
