"""The event loop that runs here, if one does, and what is kept for each."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread; None where none does."""
    return asyncio._get_running_loop()  # noqa: SLF001 - the public one raises, slowly


class PerLoop(Generic[T]):
    """Something of which each event loop has one, made when it is first asked for.

    Weak both ways: a loop keeps its own, by what it waits for, and nothing keeps the loop.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[T]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, loop: asyncio.AbstractEventLoop) -> T:
        """The one of this loop, which runs in this thread."""
        reference = self._made.get(loop)
        made = reference() if reference else None
        if made is None:
            made = self._make()
            self._made[loop] = weakref.ref(made)
        return made
