"""A waiter's place in the queue of one node, as the rules of waiting use it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from django_redlock.core.protocol import BlockOnNode, Wakeup


class Place(ABC):
    """A place in a node's queue, kept until there is an outcome or it is given up.

    Attributes:
        index: the node's, in its group.
        pid: of the process that has it.
        told: called, in the event loop that watches, when there is an outcome.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = os.getpid()
        self.told: Callable[[], object] | None = None

    @abstractmethod
    def outcome(self) -> Wakeup | None:
        """Return the outcome; None while the place is kept."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Block this thread until there is an outcome, for at most so long."""

    @abstractmethod
    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have an event loop call ``told``."""

    @abstractmethod
    def withdraw(self, *, looped: bool) -> bool:
        """Ask the node to let the waiter go; return whether its answer is worth waiting for.

        Args:
            looped: whether a task asks, not a thread.
        """

    @abstractmethod
    def end(self) -> None:
        """Give the place up. May be called again."""

    @abstractmethod
    def abandon(self) -> None:
        """Give it up, for its waiter is gone; any thread may come to know."""


class Places(Protocol):
    """Where places come from: a group of nodes."""

    def open(self, effect: BlockOnNode) -> Place | None:
        """Take a place, for a thread; None: the node cannot be asked."""

    def aopen(
        self,
        effect: BlockOnNode,
        loop: asyncio.AbstractEventLoop,
        *,
        wanted: Callable[[], bool],
        then: Callable[[Place | None], object],
    ) -> float:
        """The same for a task; return the seconds after which ``then`` may be given up.

        Args:
            wanted: tells whether the task still waits.
            then: called with the place, now or later, in the loop.
        """
