"""An outage of a group of nodes, as this process sees it.

While it lasts, the methods by which the group is asked are replaced, so that no request of a
thread or a task reaches a node. Servers, connections and threads are left as they are: other
processes may use the servers, and when the outage is over all is as it was before.

An undo that is asked for meanwhile, such as a release, is kept and carried out at the end, as it
is when real nodes come back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from django_redlock.core.protocol import UNDO, Answer, BlockOnNode, Vote, Wakeup
from django_redlock.core.reasons import ReasonCode, because

if TYPE_CHECKING:
    from django_redlock.backend import Group
    from django_redlock.core.protocol import JoinQueue, LeaveQueue, Request
    from django_redlock.transport.node import NodeStatus

CUT: Final[tuple[str, ...]] = ("ask", "aask", "queue", "aqueue", "states")
DOWN: Final = because(ReasonCode.DOWN)


class User(Protocol):
    """A block in which the nodes cannot be asked."""

    def lasts(self) -> bool:
        """Tell whether its block is still there."""


class Outage:
    """Take the place of a group's methods, and put them back.

    Attributes:
        group: whose nodes cannot be asked.
        users: those that began it and have not ended it.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.users: set[User] = set()
        self._real: dict[str, Any] = {name: getattr(group, name) for name in CUT}
        self._own = {name: vars(group)[name] for name in CUT if name in vars(group)}
        self._labels = [state.label for state in group.states()]
        self._kept: deque[Request] = deque()

    def lasts(self) -> bool:
        """Whether a block is there in which the nodes cannot be asked."""
        return any(user.lasts() for user in tuple(self.users))

    def begin(self) -> None:
        """Let nobody reach the nodes."""
        vars(self.group).update({name: getattr(self, name) for name in CUT})

    def end(self) -> None:
        """Let everybody reach them again; may be called twice."""
        mine = vars(self.group)
        mine.update(self._own)
        for name in CUT:
            if name not in self._own:
                mine.pop(name, None)

    # -- in the place of the group's methods ----------------------------------------------------

    def ask(self, request: Request) -> list[Vote]:
        """Return an unknown vote for each node; keep what is to be undone."""
        if not self.lasts():  # a block is gone, or a caller has looked the method up before the end
            self.carry_out()
            return self._real["ask"](request)  # type: ignore[no-any-return]
        votes = self._refuse(request)
        if not self.lasts():
            self.carry_out()
        return votes

    def aask(self, request: Request) -> asyncio.Future[list[Vote]]:
        """Do the same for a task."""
        if not self.lasts():
            self.start_to_carry_out()
            return self._real["aask"](request)  # type: ignore[no-any-return]
        answered: asyncio.Future[list[Vote]] = asyncio.get_running_loop().create_future()
        answered.set_result(self._refuse(request))
        if not self.lasts():
            self.start_to_carry_out()
        return answered

    def _refuse(self, request: Request) -> list[Vote]:
        if request.command in UNDO:
            self._kept.append(request)
        to = range(len(self._labels)) if request.to is None else request.to
        return [
            Vote(label, Answer.UNKNOWN, reason=DOWN if i in to else None, sent=False)
            for i, label in enumerate(self._labels)
        ]

    def queue(self, effect: JoinQueue | BlockOnNode | LeaveQueue) -> Any:
        """Let a waiter join and leave the queue of this process, and no queue of a node."""
        if self.lasts() and isinstance(effect, BlockOnNode):
            return Wakeup(broken=True)
        return self._real["queue"](effect)

    def aqueue(self, effect: JoinQueue | BlockOnNode | LeaveQueue) -> Any:
        """Do the same for a task."""
        if self.lasts() and isinstance(effect, BlockOnNode):
            broken: asyncio.Future[Wakeup] = asyncio.get_running_loop().create_future()
            broken.set_result(Wakeup(broken=True))
            return broken
        return self._real["aqueue"](effect)

    def states(self) -> list[NodeStatus]:
        """Return what is known of each node: that it is down."""
        real: list[NodeStatus] = self._real["states"]()
        if not self.lasts():
            return real
        return [state._replace(voting=False, reason=DOWN) for state in real]

    # -- afterwards -----------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Carry out what was to be undone."""
        for request in tuple(self._kept):
            self._real["ask"](request)
            self._done(request)

    def start_to_carry_out(self) -> list[asyncio.Future[Any]]:
        """Send what was to be undone, in an event loop; return what to wait for."""
        sent = []
        for request in tuple(self._kept):
            sent.append(asyncio.ensure_future(self._real["aask"](request)))
            self._done(request)
        return sent

    def _done(self, request: Request) -> None:
        with suppress(ValueError):  # another thread has done it, too, which does no harm
            self._kept.remove(request)
