"""Hear what visitors of the site want to be done to the nodes."""

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

LONGEST = 100  # bytes of a request
PATIENCE = 1.0  # seconds for a request that has begun


class Switch:
    """A Unix socket, on which the site's processes ask; one line, and one line as the answer."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.close()

    def serve(self, seconds: float, carry_out: Callable[[str], str]) -> None:
        """For so many seconds, carry out what is asked, in this thread: it commands the nodes."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._listener], [], [], left)[0]:
                with suppress(OSError):  # the asker has gone
                    self._answer(carry_out)

    def _answer(self, carry_out: Callable[[str], str]) -> None:
        asker, _ = self._listener.accept()
        with asker:
            asker.settimeout(PATIENCE)
            wanted = asker.recv(LONGEST).decode(errors="replace").strip()
            asker.sendall(f"{carry_out(wanted)}\n".encode())
