"""``with unavailable():`` the blocks in which the nodes of an alias cannot be asked.

While an outage lasts, the methods by which a group is asked are replaced, so that no request of a
thread or a task of this process reaches a node. Servers, connections and threads are left as they
are: other processes may use the servers, and when the outage is over all is as it was before. An
undo that is asked for meanwhile, such as a release, is kept and carried out at the end, as it is
when real nodes come back.

Blocks may be nested and overlap, also in several threads: the outage of a group lasts until the
last one ends.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from django_redlock import conf
from django_redlock.backend import Group
from django_redlock.core.names import check_alias
from django_redlock.core.protocol import (
    UNDO,
    Answer,
    BlockOnNode,
    JoinQueue,
    LeaveQueue,
    Request,
    Vote,
    Wakeup,
)
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.locks.callables import finished, is_async
from django_redlock.nodes.background import call_in_child
from django_redlock.nodes.node import NodeStatus

F = TypeVar("F", bound=Callable[..., Any])

CUT: Final[tuple[str, ...]] = ("ask", "aask", "queue", "aqueue", "states")
DOWN: Final = because(ReasonCode.DOWN)

_changing = threading.RLock()
_outages: Final[dict[int, Outage]] = {}  # by the identity of the group, which each keeps alive


def _after_fork() -> None:
    global _changing  # noqa: PLW0603 - the state of this module
    _changing = threading.RLock()


call_in_child(_after_fork)


class Outage:
    """Take the place of a group's methods, and put them back.

    Attributes:
        group: whose nodes cannot be asked.
        blocks: how many blocks have begun it and not ended it.
    """

    def __init__(self, group: Group) -> None:
        self.group, self.blocks = group, 0
        self._real: dict[str, Any] = {name: getattr(group, name) for name in CUT}
        # What a test has replaced already, as by ``monkeypatch``, is put back at the end.
        self._own = {name: vars(group)[name] for name in CUT if name in vars(group)}
        self._labels = [state.label for state in group.states()]
        self._kept: list[Request] = []

    @classmethod
    def begin(cls, group: Group) -> Outage:
        """Make requests fail, for one block more; return the outage."""
        with _changing:
            outage = _outages.get(id(group))
            if outage is None:
                outage = _outages[id(group)] = cls(group)
                # Attributes of the group hide the methods of its class.
                vars(group).update({name: getattr(outage, name) for name in CUT})
            outage.blocks += 1
            return outage

    def end(self) -> list[Request]:
        """End a block; after the last one requests reach the nodes. Return what is to be undone."""
        with _changing:
            self.blocks -= 1
            if self.blocks:
                return []
            del _outages[id(self.group)]
            mine = vars(self.group)
            for name in CUT:
                mine.pop(name, None)
            mine.update(self._own)
            return self._kept

    # -- in the place of the group's methods ----------------------------------------------------

    def ask(self, request: Request) -> list[Vote]:
        """Return an unknown vote for each node; keep what is to be undone."""
        return self._refuse(request) if self.blocks else self._real["ask"](request)

    def aask(self, request: Request) -> asyncio.Future[list[Vote]]:
        """Do the same for a task."""
        return _future(self._refuse(request)) if self.blocks else self._real["aask"](request)

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
        if self.blocks and isinstance(effect, BlockOnNode):
            return Wakeup(broken=True)
        return self._real["queue"](effect)

    def aqueue(self, effect: JoinQueue | BlockOnNode | LeaveQueue) -> Any:
        """Do the same for a task."""
        if self.blocks and isinstance(effect, BlockOnNode):
            return _future(Wakeup(broken=True))
        return self._real["aqueue"](effect)

    def states(self) -> list[NodeStatus]:
        """Return what is known of each node: that it is down."""
        real: list[NodeStatus] = self._real["states"]()
        if not self.blocks:
            return real
        return [state._replace(voting=False, reason=DOWN) for state in real]


def _future(result: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


class Unavailable:
    """What ``unavailable`` returns: for ``with`` and ``async with``, or to decorate a function."""

    def __init__(self, alias: str) -> None:
        if callable(alias):
            raise TypeError("unavailable needs its parentheses: @unavailable()")
        check_alias(alias)
        self._alias = alias
        self._outages: list[Outage] = []

    def __repr__(self) -> str:
        return f"<unavailable {self._alias!r}>"

    def __enter__(self) -> None:
        self._outages.append(Outage.begin(conf.backend(self._alias).group))

    def __exit__(self, *_: object) -> None:
        outage = self._outages.pop()
        for request in outage.end():
            outage.group.ask(request)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        outage = self._outages.pop()
        await asyncio.gather(*map(outage.group.aask, outage.end()))

    def __call__(self, function: F) -> F:
        """Run ``function`` during the outage.

        Raises:
            TypeError: not a function, or a generator function.
        """

        @functools.wraps(function)
        def cut(*args: Any, **kwargs: Any) -> Any:
            with self:
                return finished(function(*args, **kwargs), function)

        @functools.wraps(function)
        async def acut(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return acut if is_async(function) else cut  # type: ignore[return-value]


def unavailable(alias: str = "default") -> Unavailable:
    """Let no majority of an alias's nodes be asked, in a ``with`` or ``async with``.

    Attempts raise ``NodesUnavailable`` at once, or at the end of their ``wait``, in all threads and
    event loops of this process; other processes notice nothing. Leases that are held are not
    renewed, and are lost when their time is over. What is released meanwhile is free at the end of
    the block, where the connections are as they were.

    It can also decorate a function. The outage is that of the nodes which the alias has when the
    block begins.

    Raises:
        ImproperlyConfigured: at the entry: there is no such alias.
        TypeError: ``alias`` is no text.
    """
    return Unavailable(alias)
