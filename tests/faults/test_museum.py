from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from django_redlock.testing.server import DEAD, process_state
from tests.docs.pages import ROOT
from tests.support.waiting import eventually, slowness

pytestmark = pytest.mark.slow

SHORT_SECONDS = 60.0
COMMAND = [sys.executable, "-m", "museum"]


def children(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have, now."""
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | children(child)
    return found


def test_the_short_form_takes_a_minute():
    """Each of its cells shows what it must; on a busy machine a minute is longer."""
    start, before = time.monotonic(), slowness()
    ended = subprocess.run(
        [*COMMAND, "--short"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    seconds = time.monotonic() - start
    assert seconds <= SHORT_SECONDS * max(before, slowness()), ended.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_who_interrupts_it_leaves_nothing(how):
    """Clients, also stopped ones, and servers end with it; the exit status says why."""
    running = subprocess.Popen(
        [*COMMAND, "--only", "paused", "--runs", "9"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        eventually(lambda: any(process_state(each) == "T" for each in children(running.pid)),
                   within=60, what="a client that is stopped")  # fmt: skip
        started = children(running.pid)
        os.killpg(running.pid, how)  # as a terminal does: for its process group
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130
    assert said.splitlines()[-1] == "interrupted: all processes are ended"
    assert "Traceback" not in said
    assert len(started) > 6
    eventually(lambda: all(process_state(each) in DEAD for each in started))


def test_a_museum_that_is_killed_leaves_nothing_that_runs():
    """SIGKILL asks nobody: clients and servers end by themselves, also those that are stopped."""
    running = subprocess.Popen(
        [*COMMAND, "--only", "paused", "--runs", "9"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(lambda: any(process_state(each) == "T" for each in children(running.pid)),
                   within=60, what="a client that is stopped")  # fmt: skip
        started = children(running.pid)
    finally:
        running.kill()
        running.wait()
    eventually(lambda: all(process_state(each) in DEAD for each in started))
