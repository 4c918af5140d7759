"""Run the algorithm's generators: here for threads; asyncio gets its own few lines beside it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from .protocol import Ask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .protocol import Steps, Vote

T = TypeVar("T")


def run(
    steps: Steps[T], ask: Callable[[Ask], Sequence[Vote]], sleep: Callable[[float], object]
) -> T:
    """Carry out ``steps`` by blocking calls and return their result.

    An exception that a signal handler raises, at whatever point, is handed to the generator,
    which says what to undo; then it goes on to the caller. Hence the inner loop: its jump
    back, where Python looks for signals, lies inside the ``try``.
    """
    step: Callable[[Any], Ask | Any] = steps.send
    value: Any = None
    while True:
        try:
            while True:
                effect = step(value)
                value = ask(effect) if isinstance(effect, Ask) else sleep(effect.seconds)
                step = steps.send
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException as error:  # rule: undo on every interruption, see algorithm
            if (
                inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED
            ):  # it is the generator's own, or already handled there
                raise
            step, value = steps.throw, error
