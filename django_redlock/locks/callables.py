"""What can be decorated: something whose body runs while it is called, or awaited."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine; also for an object with ``async def __call__``.

    Raises:
        TypeError: a class, a generator function, or nothing that can be called.
    """
    if isinstance(function, type) or not callable(function):
        msg = f"{function!r} is no function: @redlock(...) stands right above 'def'"
        raise TypeError(msg)
    called = (function, type(function).__call__)
    if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in called):
        name = getattr(function, "__qualname__", repr(function))
        msg = (
            f"{name} is a generator function: its body would run after the lock is released; "
            "use 'with' or 'async with' inside it"
        )
        raise TypeError(msg)
    return any(map(inspect.iscoroutinefunction, called))


def finished(result: object, function: Callable[..., object]) -> object:
    """What a plain function returned, if its body has run.

    Raises:
        TypeError: it returned a coroutine, which was to run after the release.
    """
    if not inspect.iscoroutine(result):
        return result
    result.close()
    name = getattr(function, "__qualname__", repr(function))
    msg = (
        f"{name} returned a coroutine, whose body would run after the lock is released; "
        "decorate the 'async def' itself"
    )
    raise TypeError(msg)
