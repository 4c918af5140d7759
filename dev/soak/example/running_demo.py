"""The demo as a process: in a pipe or in a terminal, what it leaves behind, and what it logs."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SECONDS = 60.0  # of a run with an end: half of them on a machine that has nothing else to do
PATIENCE = 240.0  # seconds, with anything that may hang
ROOT = Path(__file__).parents[3]


@contextmanager
def demo_home() -> Iterator[Path]:
    """The directory for all that the demo writes; short, since a socket may be among it."""
    with tempfile.TemporaryDirectory(prefix="demo-") as home:
        yield Path(home)


@contextmanager
def started(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo with its stdout in a pipe; whatever it starts inherits TMPDIR."""
    with ExitStack() as stack:
        demo = subprocess.Popen(
            [sys.executable, "-m", "example_project.demo", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(home), "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(end, demo)
        yield demo


def end(demo: subprocess.Popen[str]) -> None:
    """End the demo of a test that failed."""
    if demo.poll() is None:
        demo.terminate()
    demo.communicate(timeout=PATIENCE)


def await_line(demo: subprocess.Popen[str], what: str) -> str:
    """Read until a line has this in it."""
    assert demo.stdout is not None
    seen = []
    for line in demo.stdout:
        seen.append(line)
        if what in line:
            return line
    raise AssertionError(f"no {what!r} in {seen}")


def left_running(home: Path) -> list[str]:
    """The command lines of all processes that have this TMPDIR, or work in it."""
    return list(processes(home).values())


def processes(home: Path) -> dict[int, str]:
    """The same, by process id.

    A node writes its title over its environment, but its working directory stays telling.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            works_there = (process / "cwd").readlink().is_relative_to(home)
            if works_there or f"TMPDIR={home}".encode() in variables:
                command = (process / "cmdline").read_text().replace("\0", " ")
                found[int(process.name)] = command
        except OSError:  # ended by now, or somebody else's
            continue
    return found


def web_log(home: Path) -> str:
    """What the web server of a running demo has logged."""
    (log,) = home.glob("redlock-demo-*/web.log")
    return log.read_text()


class Terminal:
    """A command in a pseudo-terminal of its own, as a shell would start it there."""

    def __init__(self, home: Path, *command: str) -> None:
        self.seen = ""
        self._pid, self._screen = pty.fork()
        if self._pid == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, for children as well
            os.environ |= {"TMPDIR": str(home), "TERM": "xterm-256color"}
            for name in ("ARGS", "MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # of the make around
                os.environ.pop(name, None)
            for name in ("COLUMNS", "LINES"):  # the terminal says how large it is
                os.environ.pop(name, None)
            os.chdir(ROOT)
            os.execvp(command[0], command)  # noqa: S606 - no shell is wanted

    def type(self, keys: str) -> None:
        """Press these."""
        os.write(self._screen, keys.encode())

    def await_text(self, what: str) -> None:
        """Read until this is on the screen."""
        deadline = time.monotonic() + PATIENCE
        while what not in self.seen:
            assert time.monotonic() < deadline, f"no {what!r} in {self.seen}"
            self._read(1.0)

    def await_end(self) -> int:
        """Read to the end; the exit status."""
        deadline = time.monotonic() + PATIENCE
        while self._read(1.0):
            assert time.monotonic() < deadline, f"no end: {self.seen}"
        return os.waitstatus_to_exitcode(self._wait())

    def close(self) -> None:
        """Hang up, which ends a command that is still there."""
        os.close(self._screen)
        if self._pid:
            self._wait()

    def _read(self, seconds: float) -> bool:
        """Read what is there now or within so many seconds; False at the end."""
        if not select.select([self._screen], [], [], seconds)[0]:
            return True
        try:
            found = os.read(self._screen, 65536)
        except OSError:  # Linux's way to say that nobody has it open any more
            return False
        self.seen += found.decode(errors="replace")
        return bool(found)

    def _wait(self) -> int:
        pid, self._pid = self._pid, 0
        return os.waitpid(pid, 0)[1]
