"""What happened, in a file to which many processes append, one line of JSON each.

A line is one ``write`` to a file opened with O_APPEND: it is whole, and what was written before a
SIGKILL stays. Times are those of the monotonic clock, which all processes of a machine share.

Other people's packages are played in environments of their own, so this imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
