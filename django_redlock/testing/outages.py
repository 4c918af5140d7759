"""``with unavailable():`` the blocks in which the nodes of an alias cannot be asked.

While an outage lasts, the methods by which a group is asked are replaced, so that no request of a
thread or a task of this process reaches a node. Servers, connections and threads are left as they
are: other processes may use the servers, and when the outage is over all is as it was before. An
undo that is asked for meanwhile, such as a release, is kept and carried out at the end, as it is
when real nodes come back.

Blocks may be nested and overlap, also in several threads: the outage of a group lasts until the
last one ends. A block that is gone counts no more, at whatever call an interruption ended it: see
``interruption``.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from django_redlock.interruption import AsyncBlockExit, Block, BlockExit
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
        users: those that began it and have not ended it.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.users: set[Entry] = set()
        self._real: dict[str, Any] = {name: getattr(group, name) for name in CUT}
        # What a test has replaced already, as by ``monkeypatch``, is put back at the end.
        self._own = {name: vars(group)[name] for name in CUT if name in vars(group)}
        self._labels = [state.label for state in group.states()]
        self._kept: deque[Request] = deque()

    def lasts(self) -> bool:
        """Return True while one of its blocks is there."""
        return any(user.lasts() for user in tuple(self.users))

    def begin(self) -> None:
        """Make requests fail: attributes of the group hide the methods of its class."""
        vars(self.group).update({name: getattr(self, name) for name in CUT})

    def end(self) -> None:
        """Make requests reach the nodes again; may be called twice."""
        mine = vars(self.group)
        mine.update(self._own)
        for name in CUT:
            if name not in self._own:
                mine.pop(name, None)

    # -- in the place of the group's methods ----------------------------------------------------

    def ask(self, request: Request) -> list[Vote]:
        """Return an unknown vote for each node; keep what is to be undone."""
        votes = self._refuse(request) if self.lasts() else None
        if not self.lasts():  # a block is gone, or a caller has looked the method up before the end
            self.carry_out()
        return self._real["ask"](request) if votes is None else votes

    def aask(self, request: Request) -> asyncio.Future[list[Vote]]:
        """Do the same for a task."""
        votes = self._refuse(request) if self.lasts() else None
        if not self.lasts():
            self.start_to_carry_out()
        return self._real["aask"](request) if votes is None else _future(votes)

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
            return _future(Wakeup(broken=True))
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
        # A request is forgotten after it was sent: an interruption between the two sends it twice,
        # which an undo allows.
        for request in tuple(self._kept):
            self._real["ask"](request)
            self._forget(request)

    def start_to_carry_out(self) -> list[asyncio.Future[Any]]:
        """Send what was to be undone, in an event loop; return what to wait for."""
        sent = []
        for request in tuple(self._kept):
            sent.append(asyncio.ensure_future(self._real["aask"](request)))
            self._forget(request)
        return sent

    def _forget(self, request: Request) -> None:
        with suppress(ValueError):  # another thread has done it, too, which does no harm
            self._kept.remove(request)


def _future(result: Any) -> asyncio.Future[Any]:
    """Return a future that has this result."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


class Entry:
    """One ``with`` block in which the nodes of a group cannot be asked.

    Attributes:
        block: returns None once the block is gone; None: entered by hand.
    """

    def __init__(self, group: Group) -> None:
        self.block: Callable[[], object] | None = None
        with _changing:
            self._outage = _outages.get(id(group)) or Outage(group)

    def begin(self) -> None:
        """Begin the outage, unless it has begun."""
        with _changing:
            outage = _outages.setdefault(id(self._outage.group), self._outage)
            self._outage = outage
            outage.users.add(self)
            outage.begin()

    def end(self) -> None:
        """End the outage, unless another block goes on; may be called twice."""
        if self._leave():
            self._outage.carry_out()

    def aend(self) -> list[asyncio.Future[Any]]:
        """End it in an event loop; return what to wait for."""
        return self._outage.start_to_carry_out() if self._leave() else []

    def lasts(self) -> bool:
        """Return True while its block is there."""
        return self.block is None or self.block() is not None

    def _leave(self) -> bool:
        """Leave the outage; return whether it is over."""
        with _changing:
            outage = self._outage
            outage.users.discard(self)
            if outage.lasts():
                return False
            if _outages.get(id(outage.group)) is outage:
                outage.end()
                del _outages[id(outage.group)]
            return True


def _end(block: Block, *_: object) -> None:
    block.held.end()


async def _aend(block: Block, *_: object) -> None:
    await asyncio.gather(*block.held.aend())


def _last(entries: list[Any]) -> Any:
    return entries[-1]


leave: Final = BlockExit(_end, _end, _last)  # ending it twice does no harm
aleave: Final = AsyncBlockExit(_aend, _aend, _last)


class Unavailable:
    """What ``unavailable`` returns: for ``with`` and ``async with``, or to decorate a function."""

    def __init__(self, alias: str) -> None:
        check_alias(alias)
        self._alias = alias

    def __repr__(self) -> str:
        return f"<unavailable {self._alias!r}>"

    def _begin(self, block: Block) -> None:
        entry = Entry(conf.backend(self._alias).group)
        block.keep(entry)
        entry.begin()

    async def _abegin(self, block: Block) -> None:
        self._begin(block)

    def __enter__(self) -> None:
        leave.enter(self, self._begin)

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        return aleave.aenter(self, self._abegin)

    if TYPE_CHECKING:

        def __exit__(self, *error: object) -> None: ...

        async def __aexit__(self, *error: object) -> None: ...

    else:
        __exit__ = leave
        __aexit__ = aleave

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
