import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SECONDS = 30.0
ROOT = Path(__file__).parent.parent


@pytest.fixture
def home() -> Iterator[Path]:
    """The directory for all that the demo writes; short, since a socket may be among it."""
    with tempfile.TemporaryDirectory(prefix="demo-") as home:
        yield Path(home)


def start(home: Path) -> subprocess.Popen[str]:
    """Start the demo with its stdout in a pipe; whatever it starts inherits TMPDIR."""
    return subprocess.Popen(
        [sys.executable, "-m", "example_project.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(home), "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
    """The rows of the summary: a label and one figure for each act."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in output.splitlines())
    return {row[0]: row[1:] for row in rows if len(row) == 3}


def test_demo_shows_what_the_lock_is_good_for(home):
    """With the lock nothing overlaps or is lost, without it much is; in 30 seconds."""
    began = time.monotonic()
    demo = start(home)
    output, complaints = demo.communicate(timeout=3 * SECONDS)
    took = time.monotonic() - began

    assert (demo.returncode, complaints) == (0, ""), output
    shown = figures(output)
    assert shown["sales overlapping another"][0] == "0"
    assert shown["lost updates: seats sold twice"][0] == "0"
    assert shown["sales, counted by the offices"][0] == shown["seats sold, says the database"][0]
    assert shown["fences increase with each holder"][0] == "yes"
    assert int(shown["stale writes refused"][0]) >= 1
    assert shown["nodes lost"][0] == "1 killed, 1 hung"
    assert all(int(turns) > 0 for turns in shown["sales per office"][0].split())
    assert int(shown["sales overlapping another"][1]) > 0
    assert int(shown["lost updates: seats sold twice"][1]) > 0
    assert took < SECONDS
    assert left_running(home) == []
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("moment", ["Starting", "node 5 hangs", "freezes", "Act 2"])
def test_ctrl_c_leaves_nothing_behind(home, moment):
    """Ctrl-C at any moment, also with stopped processes about, ends all: no file, no traceback."""
    demo = start(home)
    assert demo.stdout is not None
    assert any(moment in line for line in demo.stdout)
    deadline = time.monotonic() + SECONDS
    while not any("valkey-server" in command for command in left_running(home)):
        assert time.monotonic() < deadline, "no node seen"

    demo.send_signal(signal.SIGINT)
    output, complaints = demo.communicate(timeout=SECONDS)

    assert (demo.returncode, complaints) == (128 + signal.SIGINT, "")
    assert output.endswith("Stopped. Nothing is left running.\n")
    assert left_running(home) == []
    assert list(home.iterdir()) == []
