"""Start the offices, tell them what to do, read what they did, and end them."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from . import endings

START_SECONDS = 180.0


class Staff:
    """The processes of the offices, numbered from 1; all write lines to one pipe."""

    def __init__(self, size: int, home: Path) -> None:
        self._size = size
        self._home = home
        self._processes: list[subprocess.Popen[str]] = []
        self._resources = ExitStack()
        self._rest = b""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._pipe, written = os.pipe()
            stack.callback(os.close, self._pipe)
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._selector.register(self._pipe, selectors.EVENT_READ)
            for number in range(1, self._size + 1):
                with self._complaints(number).open("wb") as complaints, endings.after_this():
                    process = subprocess.Popen(
                        [sys.executable, "-m", "example_project.demo.office", str(number)],
                        stdin=subprocess.PIPE,
                        stdout=written,
                        stderr=complaints,
                        text=True,
                        process_group=0,  # Ctrl-C in the terminal is for the play alone
                    )
                    self._processes.append(process)
                    stack.callback(_end, process)
            os.close(written)
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._resources.close()

    def await_ready(self) -> None:
        """Wait until every office can begin."""
        deadline = time.monotonic() + START_SECONDS
        missing = self._size
        while missing:
            missing -= sum(fact["event"] == "ready" for fact in self.listen(0.1))
            if time.monotonic() > deadline:
                raise TimeoutError(f"{missing} offices have not started in {START_SECONDS:g} s")

    def command(self, number: int, **what: object) -> None:
        """Tell one office what to do next."""
        pipe = self._processes[number - 1].stdin
        assert pipe is not None
        pipe.write(json.dumps(what) + "\n")
        pipe.flush()

    def wake(self, number: int) -> None:
        """Let an office that stopped itself go on."""
        self._processes[number - 1].send_signal(signal.SIGCONT)

    def listen(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield what the offices tell now, or within so many seconds."""
        if self._selector.select(seconds):
            *lines, self._rest = (self._rest + os.read(self._pipe, 65536)).split(b"\n")
            yield from map(json.loads, lines)
        for number, process in enumerate(self._processes, start=1):
            if process.poll() is not None:
                why = self._complaints(number).read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"office {number} ended by itself:\n{why}")

    def _complaints(self, number: int) -> Path:
        return self._home / f"office-{number}.err"


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()  # also ends a stopped one
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
