"""What clients and faults did, in one file: a line of JSON for each event.

The times are of CLOCK_MONOTONIC, which all processes of a machine share. A line is written at once
and whole, so a process that is killed leaves all that it did.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

# What a client writes.
ASKS: Final = "asks"  # for the lock
HOLDS: Final = "holds"  # it has the lock; with ``until`` and ``fence``
REFUSED: Final = "refused"  # it does not get the lock
READS: Final = "reads"  # with ``value``
WRITES: Final = "writes"  # with ``value``, and ``done``: False where the store refused it
RELEASES: Final = "releases"  # before it does anything for that
RELEASED: Final = "released"
LOST: Final = "lost"  # it learns that the lock is no longer its own
FAILS: Final = "fails"  # with ``why``
POINT: Final = "point"  # it stops itself between two steps; with ``where``

# What is done to clients and servers; ``who`` is the one it is done to.
STOPPED: Final = "stopped"
GOES_ON: Final = "goes on"
KILLED: Final = "killed"
HANGS: Final = "hangs"  # its work does not go on, though its process lives
CHANGED: Final = "changed"  # with ``what``, in words
FINAL: Final = "final"  # with the ``value`` of the store in the end


@dataclass(frozen=True)
class Event:
    """One event. ``more`` is what it has beside."""

    at: float
    who: str
    what: str
    more: dict[str, Any] = field(default_factory=dict)


class History:
    """The file, as one process appends to it. The processes of one run share the path."""

    def __init__(self, path: str, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._who = who

    def note(self, what: str, who: str = "", **more: Any) -> None:
        """Append an event, of now."""
        event = {"at": time.monotonic(), "who": who or self._who, "what": what} | more
        os.write(self._file, f"{json.dumps(event)}\n".encode())

    def close(self) -> None:
        """Append no more."""
        os.close(self._file)


def read(lines: Iterable[str]) -> list[Event]:
    """Return the events in the order of their times."""
    return sorted(_events(lines), key=lambda event: event.at)


def _events(lines: Iterable[str]) -> Iterator[Event]:
    for line in lines:
        said = json.loads(line)
        yield Event(said.pop("at"), said.pop("who"), said.pop("what"), said)
