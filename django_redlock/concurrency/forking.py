"""Reset objects in a forked child.

A child has one thread: the one that forked. A lock that another thread of the parent held at
that moment is held for ever in the child. So each object that outlives a call and has a lock
makes a new one in the child.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Resettable(Protocol):
    """An object with a lock."""

    def reset(self) -> None:
        """Replace what a forked child must not share with its parent."""


_things: weakref.WeakSet[Resettable] = weakref.WeakSet()


def call_in_child(function: Callable[[], object]) -> None:
    """Call ``function`` in every child that is forked from now on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def reset_in_child(thing: Resettable) -> None:
    """Call ``thing.reset`` in every child that is forked while ``thing`` is alive."""
    _things.add(thing)


def _reset() -> None:
    for thing in tuple(_things):
        thing.reset()


call_in_child(_reset)
