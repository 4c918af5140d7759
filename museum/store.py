"""What the locks guard: a number in a file, which anybody may read and overwrite."""

from __future__ import annotations

import os
from pathlib import Path


class FileStore:
    """A number in a file, replaced as a whole by each write. It checks nothing."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self) -> int:
        """Return the number; 0 before the first write."""
        try:
            return int(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def write(self, value: int) -> bool:
        """Replace it."""
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        new.write_text(str(value), encoding="ascii")
        new.replace(self._path)
        return True
