from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from django_redlock.testing.server import DEAD, process_state
from tests.docs.pages import ROOT
from tests.support.waiting import eventually

COMMAND = [sys.executable, "-m", "dev.museum"]


def children(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have, now."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # a thread or a process that has ended
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found |= {child} | children(child)
    return found


@contextmanager
def museum(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start the museum, and end it."""
    running = subprocess.Popen(
        [*COMMAND, *words], cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield running
    finally:
        running.kill()
        running.communicate()  # which closes what was read from it


def assert_interrupted(running: subprocess.Popen[str]) -> None:
    """It ends soon, and says why."""
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said.splitlines()[-1] == "interrupted: all processes are ended"
    assert "Traceback" not in said


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_who_interrupts_it_leaves_nothing(how):
    """Clients, also stopped ones, and servers end with it; the exit status says why."""
    with museum("--only", "paused", "--runs", "9") as running:
        eventually(lambda: any(process_state(each) == "T" for each in children(running.pid)),
                   within=60, what="a client that is stopped")  # fmt: skip
        started = children(running.pid)
        os.killpg(running.pid, how)  # as a terminal does: for its process group
        assert_interrupted(running)
    assert len(started) > 6
    eventually(lambda: all(process_state(each) in DEAD for each in started))


@pytest.mark.timeout(300)
def test_who_interrupts_it_while_it_installs_waits_for_no_installation(tmp_path):
    """Other people's locks are installed at their first use, which takes minutes on a slow line."""
    with museum("--only", "redlock-py", REDLOCK_PEERS_CACHE=str(tmp_path)) as running:

        def installing() -> list[int]:
            """Those that make the environment, then those that fill it."""
            return [each for each in children(running.pid) if str(tmp_path) in command_of(each)]

        installers = eventually(installing, within=120, what="an installation")
        running.send_signal(signal.SIGINT)
        assert_interrupted(running)
    eventually(lambda: all(process_state(each) in DEAD for each in installers))


def command_of(pid: int) -> str:
    """The command line of a process, its words separated by NUL; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
