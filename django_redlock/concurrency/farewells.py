"""Run a job when an object is garbage-collected, even if a signal handler raises just then.

``weakref.finalize`` calls a function that is written in Python. If a signal handler raises an
exception as the function begins, Python swallows it, and what the function was to close stays open
until the program ends. Here a callback that is written in C, which cannot be interrupted, first
notes that the object is gone. A second one then runs the job. If that is interrupted, the next call
of ``settle`` runs it.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Self

from .one_step import first, remove

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES: Final = 3  # runs of a job that is interrupted

gone: Final[deque[Farewell]] = deque()  # their objects are gone, their jobs not done
_awaited: Final[dict[int, Farewell]] = {}  # all whose jobs are not done; this keeps them alive


class Farewell(weakref.ref[Any]):
    """A job that runs once its object is gone.

    It may run again after an interruption, and in two threads at the same time.
    """

    __slots__ = ("_job", "_second", "_tries")

    _job: Callable[[], object]
    _second: weakref.ref[Any]
    _tries: int

    def __new__(cls, thing: object, job: Callable[[], object]) -> Self:
        """Register the callback that is written in C last: Python calls it first."""
        second = weakref.ref(thing, settle)
        self = super().__new__(cls, thing, gone.append)
        self._second, self._job, self._tries = second, job, TRIES
        _awaited[id(self)] = self
        return self

    def cancel(self) -> bool:
        """Cancel the job; return whether it was still to be done."""
        return _awaited.pop(id(self), None) is not None

    def do(self) -> None:
        """Do the job, unless it is done; note that it is only afterwards."""
        if id(self) in _awaited and self._tries:
            self._tries -= 1
            self._job()
        self.cancel()


def settle(_: object = None) -> None:
    """Do the jobs of all objects that are gone."""
    while (farewell := first(gone)) is not None:
        farewell.do()
        remove(farewell, gone)  # unless another thread did it as well
