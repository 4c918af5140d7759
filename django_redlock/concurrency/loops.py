"""Find the running event loop, and keep one object for each loop."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


# Returns the event loop that runs in this thread, or None; the public one raises, slowly.
running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop  # noqa: SLF001


def _nothing() -> None:
    pass


class PerLoop(Generic[T]):
    """One object per event loop, made at the first use.

    Weak both ways: a loop keeps its object alive by waiting for it, and the object does not keep
    the loop alive.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[T]] = (
            weakref.WeakKeyDictionary()
        )
        # The loop that asked last, nearly always the only one, and its object.
        self._last: tuple[Callable[[], object], Callable[[], T | None]] = (_nothing, _nothing)

    def of(self, loop: asyncio.AbstractEventLoop) -> T:
        """Return the object of ``loop``, which runs in this thread."""
        last, latest = self._last
        if last() is loop and (made := latest()) is not None:
            return made
        reference = self._made.get(loop)
        made = reference() if reference else None
        if made is None:
            made = self._make()
            self._made[loop] = weakref.ref(made)
        self._last = weakref.ref(loop), weakref.ref(made)
        return made

    def made(self) -> list[tuple[asyncio.AbstractEventLoop, T]]:
        """Return the loops that have an object, each with its object."""
        found = []
        for reference in self._made.keyrefs():  # a list: other threads may add to it
            loop = reference()
            latest = self._made.get(loop) if loop is not None else None
            made = latest() if latest is not None else None
            if loop is not None and made is not None:
                found.append((loop, made))
        return found
