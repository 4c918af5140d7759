"""What clients and faults did, in one file: a line of JSON for each event.

The times are of CLOCK_MONOTONIC, which all processes of a machine share. A line is written at once
and whole, so a process that is killed leaves all that it did.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

# What a client writes.
ASKS: Final = "asks"  # for the lock
HOLDS: Final = "holds"  # it has the lock; with ``until`` and ``fence``
REFUSED: Final = "refused"  # it does not get the lock
READS: Final = "reads"  # with ``value``
WRITES: Final = "writes"  # with ``value``, and ``done``: False where the row refused it
RELEASES: Final = "releases"  # before it sends anything for that
RELEASED: Final = "released"
LOST: Final = "lost"  # it learns that the lock is no longer its own
FAILS: Final = "fails"  # with ``why``
POINT: Final = "point"  # it stops itself between two steps; with ``where``

# What is done to clients and servers; ``client`` is the one to which it is done.
STOPPED: Final = "stopped"
GOES_ON: Final = "goes on"
KILLED: Final = "killed"
HANGS: Final = "hangs"  # its work does not go on, though its process lives
CHANGED: Final = "changed"  # with ``words``
FINAL: Final = "final"  # with the ``value`` that the lock guarded in the end


@dataclass(frozen=True)
class Event:
    """One event; ``more`` has what only events of this kind have."""

    at: float
    client: str
    kind: str
    more: dict[str, Any] = field(default_factory=dict)


class History:
    """The file, as one process appends to it. The processes of one play share the path."""

    def __init__(self, path: str, client: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._client = client

    def note(self, kind: str, client: str = "", **more: Any) -> None:
        """Append an event, of now."""
        event = [time.monotonic(), client or self._client, kind, more]
        os.write(self._file, f"{json.dumps(event)}\n".encode())

    def close(self) -> None:
        """Append no more."""
        os.close(self._file)


def read(lines: Iterable[str]) -> list[Event]:
    """Return the events in the order of their times."""
    return sorted((Event(*json.loads(line)) for line in lines), key=lambda event: event.at)
