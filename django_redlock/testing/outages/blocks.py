"""``with unavailable():`` the blocks in which the nodes of an alias cannot be asked.

Blocks may be nested and overlap, also in several threads: the outage of a group lasts until the
last one ends. A block counts no more when it is gone, at whatever call an interruption ended it:
see ``interruption``.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django_redlock import conf
from django_redlock.concurrency.forking import call_in_child
from django_redlock.core.names import check_alias
from django_redlock.interruption import AsyncBlockExit, Block, BlockExit
from django_redlock.locks.callables import finished, is_async

from .outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from django_redlock.backend import Group

F = TypeVar("F", bound="Callable[..., Any]")

_changing = threading.RLock()
_outages: Final[dict[int, Outage]] = {}  # by the identity of the group, which each keeps alive


def _after_fork() -> None:
    global _changing  # noqa: PLW0603 - the state of this module
    _changing = threading.RLock()


call_in_child(_after_fork)


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
        """Tell whether its block is still there."""
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
