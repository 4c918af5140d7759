"""Find and take in one step, which a signal handler cannot divide.

A signal handler, and what the garbage collector runs, may lock in the middle of any call. A lock of
ours is re-entrant, so it does not keep the handler out, which runs in the same thread. Code that
looks into a list or dictionary, calls something, and then changes what it has found would change
what the handler has changed meanwhile. These functions leave no call between the two.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableSequence

T = TypeVar("T")


def first(things: Iterable[T]) -> T | None:
    """Return the first of them, or None."""
    for each in things:  # ``next(iter(things))`` has a call between the two
        return each
    return None


def remove(thing: T, things: MutableSequence[T]) -> bool:
    """Remove it from a list or deque; return whether it was there."""
    try:
        things.remove(thing)
    except ValueError:
        return False
    return True


def taken(pop: Callable[[], T]) -> T | None:
    """Return what this call takes out of a list or dictionary; None where that is empty."""
    try:
        return pop()
    except LookupError:
        return None


def drain(*pops: Callable[[], T]) -> Iterator[T]:
    """Yield what each of these calls takes out of a list or dictionary, until that is empty."""
    for pop in pops:
        with suppress(LookupError):
            while True:
                yield pop()
