import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from example_project.demo.browser import Browser

from .waiting import slowness

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.Popen[str]]
SECONDS = 60.0  # half of them on a machine that has nothing else to do
ROOT = Path(__file__).parent.parent


@pytest.fixture
def home() -> Iterator[Path]:
    """The directory for all that the demo writes; short, since a socket may be among it."""
    with tempfile.TemporaryDirectory(prefix="demo-") as home:
        yield Path(home)


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start the demo with its stdout in a pipe; whatever it starts inherits TMPDIR."""
    with ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[str]:
            demo = subprocess.Popen(
                [sys.executable, "-m", "example_project.demo", *arguments],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(home), "COLUMNS": "80"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(end, demo)
            return demo

        yield start


def end(demo: subprocess.Popen[str]) -> None:
    """End the demo of a test that failed."""
    if demo.poll() is None:
        demo.terminate()
    demo.communicate(timeout=SECONDS)


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
    """The command lines of all processes that have this TMPDIR, or work in it.

    A node writes its title over its environment, but its working directory stays telling.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            works_there = (process / "cwd").readlink().is_relative_to(home)
            if works_there or f"TMPDIR={home}".encode() in variables:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # ended by now, or somebody else's
            continue
    return found


def figures(output: str) -> dict[str, list[str]]:
    """The rows of the summary: a label, and a figure with the lock and one without."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in output.splitlines())
    return {row[0]: row[1:] for row in rows if len(row) == 3}


def test_demo_shows_what_the_locks_are_good_for(home, start):
    """With the locks nothing overlaps, is lost or is done twice, without them much is."""
    slow, began = slowness(), time.monotonic()
    demo = start("--once")
    output, complaints = demo.communicate(timeout=5 * SECONDS)
    took = time.monotonic() - began
    slow = max(slow, slowness())

    assert (demo.returncode, complaints) == (0, ""), output
    shown = figures(output)
    assert shown["sales overlapping another"][0] == "0"
    assert shown["lost updates: seats sold twice"][0] == "0"
    assert shown["sales, counted by the offices"][0] == shown["seats sold, says the database"][0]
    assert shown["fences increase with each holder"][0] == "yes"
    assert int(shown["stale writes refused"][0]) >= 1
    assert shown["offices' nodes lost"][0] == "1 killed, 1 hung"
    assert all(int(turns) > 0 for turns in shown["sales per office"][0].split())
    assert int(shown["sales overlapping another"][1]) > 0
    assert int(shown["lost updates: seats sold twice"][1]) > 0

    clicks, orders = shown["double clicks of customers"], shown["orders in the database"]
    assert clicks[0] == orders[0] != "0"
    assert int(clicks[1]) < int(orders[1])
    assert shown["orders taken twice"][0] == "0"
    assert int(shown["second clicks refused (409)"][0]) >= int(clicks[0])
    assert shown["second clicks refused (409)"][1] == "0"
    messages, built, skipped = (
        int(shown[f"reports: {what}"][0]) for what in ("messages", "built", "skipped")
    )
    assert (built > 0, skipped > 0, built + skipped) == (True, True, messages)
    assert shown["two runs of one report at once"][0] == "0"
    assert shown["site's nodes lost"][0] == "1 killed"
    assert took < SECONDS * slow
    assert left_running(home) == []
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    "moment", ["Starting", "node 5 hangs", "freezes", "Act 2", "Act 3: the site"]
)
def test_ctrl_c_leaves_nothing_behind(home, start, moment):
    """Ctrl-C at any moment, also with stopped processes about, ends all: no file, no traceback."""
    demo = start("--once")
    await_line(demo, moment)
    deadline = time.monotonic() + SECONDS
    while not any("-server" in command for command in left_running(home)):
        assert time.monotonic() < deadline, "no node seen"

    demo.send_signal(signal.SIGINT)
    output, complaints = demo.communicate(timeout=SECONDS)

    assert (demo.returncode, complaints) == (128 + signal.SIGINT, "")
    assert output.endswith("Stopped. Nothing is left running.\n")
    assert left_running(home) == []
    assert list(home.iterdir()) == []


def test_the_site_is_open_until_ctrl_c(home, start):
    """Without an end: the printed addresses answer, orders go on over a node's death; Ctrl-C."""
    demo = start()
    address = await_line(demo, "Site").split()[1]
    locks = await_line(demo, "Locks").split()[1].removeprefix(address)
    _, _, user, _, password = await_line(demo, "Log in").split()
    assert Browser(address).ask("GET", "/") == 200
    assert log_in(address, f"/{locks}", user, password) == [302, 200]
    await_line(demo, "node 2 is killed")
    counts = [orders(await_line(demo, "double clicks")) for _ in range(2)]
    assert counts[0] < counts[1]

    demo.send_signal(signal.SIGINT)
    output, complaints = demo.communicate(timeout=SECONDS)

    assert (demo.returncode, complaints) == (0, "")
    assert output.endswith("Stopped. Nothing is left running.\n")
    assert left_running(home) == []
    assert list(home.iterdir()) == []


def log_in(address: str, path: str, user: str, password: str) -> list[int]:
    """The statuses of logging in, and of a page then."""
    browser = Browser(address)
    browser.ask("GET", "/admin/login/")
    fields = {"username": user, "password": password, "next": path}
    return [browser.ask("POST", "/admin/login/", fields), browser.ask("GET", path)]


def orders(line: str) -> int:
    """The orders under the lock, as a line of progress tells them."""
    found = re.search(r"orders: (\d+)", line)
    assert found
    return int(found[1])


def test_ctrl_c_in_a_terminal(home):
    """In a terminal, under `make`, Ctrl-C is how it is meant to end: exit status 0, a last line."""
    terminal = Terminal(home, "make", "demo", f"VENV={Path(sys.prefix)}")
    try:
        terminal.await_text("node 2 is killed")
        terminal.type("\x03")
        status = terminal.await_end()
    finally:
        terminal.close()

    assert status == 0, terminal.seen
    assert terminal.seen.endswith("Stopped. Nothing is left running.\r\n")
    assert "Traceback" not in terminal.seen
    assert left_running(home) == []
    assert list(home.iterdir()) == []


class Terminal:
    """A command in a pseudo-terminal of its own, as a shell would start it there."""

    def __init__(self, home: Path, *command: str) -> None:
        self.seen = ""
        self._pid, self._screen = pty.fork()
        if self._pid == 0:
            os.environ |= {"TMPDIR": str(home), "TERM": "xterm-256color"}
            for name in ("ARGS", "MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # of the make around
                os.environ.pop(name, None)
            os.chdir(ROOT)
            os.execvp(command[0], command)  # noqa: S606 - no shell is wanted

    def type(self, keys: str) -> None:
        """Press these."""
        os.write(self._screen, keys.encode())

    def await_text(self, what: str) -> None:
        """Read until this is on the screen."""
        deadline = time.monotonic() + SECONDS
        while what not in self.seen:
            assert time.monotonic() < deadline, f"no {what!r} in {self.seen}"
            self._read(1.0)

    def await_end(self) -> int:
        """Read to the end; the exit status."""
        deadline = time.monotonic() + SECONDS
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
