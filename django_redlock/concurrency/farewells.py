"""What is to be done when an object is forgotten, also if a signal handler raises just then.

``weakref.finalize`` calls a function that is written in Python. An exception that a signal handler
raises as it begins is swallowed, and what it was to close stays open until the program ends. Here
a callback that is written in C, which nothing can interrupt, first notes that the object is gone. A
second one then does the job. Where that is interrupted, whoever looks next does it.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable

TRIES: Final = 3  # of a job, which an interruption may end

gone: Final[deque[Farewell]] = deque()  # their objects are forgotten, their jobs not done
_awaited: Final[dict[int, Farewell]] = {}  # all that may still be done; they live here


class Farewell(weakref.ref[Any]):
    """A job that is done once its object is forgotten.

    It may be begun again when it is interrupted, and by two threads at the same time.
    """

    __slots__ = ("_job", "_second", "_tries")

    _job: Callable[[], object]
    _second: weakref.ref[Any]
    _tries: int

    def __new__(cls, thing: object, job: Callable[[], object]) -> Self:
        """Have the callback that is written in C called first: it is the last one registered."""
        second = weakref.ref(thing, settle)
        self = super().__new__(cls, thing, gone.append)
        self._second, self._job, self._tries = second, job, TRIES
        _awaited[id(self)] = self
        return self

    def cancel(self) -> bool:
        """Do nothing when the object is forgotten; whether this is the first to say so."""
        return _awaited.pop(id(self), None) is not None

    def do(self) -> None:
        """Do the job, unless it is done; that it is, is said last."""
        if id(self) in _awaited and self._tries:
            self._tries -= 1
            self._job()
        self.cancel()


def settle(_: object = None) -> None:
    """Do the jobs whose objects are gone."""
    while gone:
        farewell = gone[0]
        farewell.do()
        with suppress(ValueError):  # another thread did it as well
            gone.remove(farewell)
