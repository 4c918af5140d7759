"""A shell in a terminal, into which a test types what a page says."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PROMPT = re.compile(r"^.*\[ready:(\d+)\] \Z", re.MULTILINE)
OF_PYTHON = re.compile(r"^(?:>>>|\.\.\.) \Z", re.MULTILINE)
COLUMNS = 400  # nothing is wrapped
LAST_SECONDS = 15.0


class Terminal:
    """An interactive bash on a terminal of its own.

    Args:
        home: where it begins.
        environment: its variables, all of them.
        patience: seconds that one command may take.
    """

    def __init__(self, home: Path, environment: dict[str, str], patience: float) -> None:
        self._patience = patience
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=home,
            env={**environment, "TERM": "dumb", "LC_ALL": "C.UTF-8", "PS1": "[ready:$?] "},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._wait_for(PROMPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the terminal: what runs in it gets the signal of that, and its end of input."""
        self._type("\x04")
        os.killpg(self._process.pid, signal.SIGHUP)
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(LAST_SECONDS)
        finally:
            os.close(self._master)

    def run(self, command: str, *, codes: tuple[int, ...] = (0,)) -> str:
        """Type a command and wait for the prompt; return what it printed."""
        self._type(f"{command}\n")
        said, code = self._wait_for(PROMPT)
        assert int(code) in codes, f"{command} ended with {code}:\n{said}"
        return said

    def open(self, command: str, prompt: str) -> str:
        """Type a command that asks for input; return what it printed before it asked."""
        self._type(f"{command}\n")
        return self._wait_for(re.compile(rf"^{re.escape(prompt)}\Z", re.MULTILINE))[0]

    def python(self, text: str) -> str:
        """Type lines into an open Python shell; an empty one ends the last statement."""
        said = ""
        for line in [*text.splitlines(), ""]:
            self._type(f"{line}\n")
            said += self._wait_for(OF_PYTHON)[0]
        assert "Traceback" not in said, said
        assert "SyntaxError" not in said, said
        return said

    def _type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _wait_for(self, prompt: re.Pattern[str]) -> tuple[str, str]:
        """Read up to a prompt; return what was printed, without echoes, and the prompt's group."""
        said, deadline = "", time.monotonic() + self._patience
        while (found := prompt.search(said)) is None:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no prompt within {self._patience} s after:\n{said}"
            said += os.read(self._master, 65536).decode(errors="replace").replace("\r\n", "\n")
        group = found.group(1) if prompt.groups else ""
        _, _, printed = said[: found.start()].partition("\n")  # the first line is what was typed
        return printed, group
