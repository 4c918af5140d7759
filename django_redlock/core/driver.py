"""Run the algorithm's generators: for threads, and for asyncio."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .protocol import Effect, Steps

T = TypeVar("T")


def run(steps: Steps[T], perform: Callable[[Effect], Any]) -> T:
    """Carry out ``steps`` by blocking calls and return their result.

    An exception that a signal handler raises, at whatever point, is thrown into the generator,
    which yields what to undo; then it goes on to the caller. Hence the inner loop: its jump
    back, where Python looks for signals, lies inside the ``try``.
    """
    step: Callable[[Any], Effect] = steps.send
    value: Any = None
    while True:
        try:
            while True:
                value = perform(step(value))
                step = steps.send
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException as error:  # rule: undo on every interruption, see ``acquire``
            if (
                inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED
            ):  # it is the generator's own, or already handled there
                raise
            step, value = steps.throw, error


async def arun(steps: Steps[T], perform: Callable[[Effect], Awaitable[Any]]) -> T:
    """Carry out ``steps`` in a task and return their result.

    A cancellation is thrown into the generator, which yields what to undo; and so is, as in
    ``run``, the exception of a signal handler. ``perform`` sends before it is awaited, so a request
    that undoes is on its way even if a second cancellation ends the waiting.
    """
    step: Callable[[Any], Effect] = steps.send
    value: Any = None
    while True:
        try:
            while True:
                value = await perform(step(value))
                step = steps.send
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException as error:  # rule: undo on every interruption
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:  # the generator's own
                raise
            step, value = steps.throw, error
