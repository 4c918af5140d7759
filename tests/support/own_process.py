"""Play a test that is marked `alone` in a fresh process of its own, with all its fixtures.

A worker of pytest-xdist has the threads, descriptors and objects of the tests before, and its
tracers. Who counts one of these, or traces, needs a process in which nothing else has run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAYED = "REDLOCK_TESTS_ALONE"  # set in the fresh process
ROOT = Path(__file__).parents[2]
STOP = (KeyboardInterrupt, pytest.exit.Exception)  # ends the run, here as well
LONGEST = 15_000  # characters of what the process printed


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the test elsewhere, and report its outcome as if it had run here."""
    if PLAYED in os.environ or item.get_closest_marker("alone") is None:
        return None

    def leave() -> None:
        """End the fixtures of earlier tests that the next one does not share."""
        item.session._setupstate.teardown_exact(nextitem)

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    steps = {"setup": lambda: None, "call": lambda: _play(item), "teardown": leave}
    for when, step in steps.items():
        call = pytest.CallInfo.from_call(step, when, reraise=STOP)  # type: ignore[arg-type] # of three
        report = pytest.TestReport.from_item_and_call(item, call)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _play(item: pytest.Item) -> None:
    command = [sys.executable, "-m", "pytest", item.nodeid, "--no-header", "-p", "no:cacheprovider"]
    seed = item.config.getoption("randomly_seed", None)
    if isinstance(seed, int):
        command += [f"--randomly-seed={seed}"]
    environ = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    played = subprocess.run(
        command,
        cwd=ROOT,
        env=environ | {PLAYED: "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if played.returncode:
        pytest.fail(played.stdout[-LONGEST:], pytrace=False)
    last = played.stdout.strip().rpartition("\n")[2]
    if " passed" not in last:
        pytest.skip(last)
