"""What happened, in a file to which many processes append, one line of JSON each.

A line is one ``write`` to a file opened with O_APPEND: it is whole, and what was written before a
SIGKILL stays. Times are those of the monotonic clock, which all processes of a machine share.

    rig       ttl, majority, seed           how it is played
    sent      key, number, id, before, at, duplicate, probe
    taken     id, times                     a worker has the message, which was put off so often
    put off   id, times                     a worker has sent the message for later
    begin     key, number, run, fence, pid, group, at
    end       key, run, pid, at             of the body
    returned  key, run, pid, at             the lock is released, and the result is stored
    lost      pid, fence, until, at         a lease was lost; its holder had it until then
    record    run, pid, at                  a majority of the nodes has the completion record
    dead      group, pids, at               these processes have been killed
    node      index, does, at               what was done to a lock node
    held      key, pid, until, at           a majority has the lock of a dead process for so long
    left      kind, key, id, nodes          what is on so many nodes at the end
    undrained messages                      so many were left when nobody waited any longer
    ready                                   a worker takes messages
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MODES = ("while_running", "until_started", "until_finished")


def key_of(modes: Sequence[str], index: int) -> str:
    """Return the key of this index; its mode is in front."""
    return f"{modes[index % len(modes)]}-{index}"


class Notebook:
    """Append to the file; a forked child may, too."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, what: str, **more: Any) -> None:
        """Write down what happens now."""
        line = {"what": what, "at": time.monotonic(), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Follower:
    """Read a file that grows; each line once."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open()
        self._rest = ""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield what was written since the last time."""
        *whole, self._rest = (self._rest + self._file.read()).split("\n")
        yield from map(json.loads, whole)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Return all lines of a finished history."""
    return [json.loads(line) for line in path.read_text().splitlines()]
