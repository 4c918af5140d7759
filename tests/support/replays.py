"""Play a test again: a broken variant that did not show, and a test that a busy machine upset.

A broken variant says that a check can fail, not that it fails each time: threads and nodes decide
when it shows its defect. So a test that fails after it has broken something is played again, and
fails if no play shows the defect. A test that fails before it has broken anything fails at once:
what is right is right each time. Each test that took more than one play is listed at the end of
the run.

With ``CI`` set, tests that are marked `load` and failed beside others are played once more, alone,
if nothing else failed; the second play decides, and both are printed. A test that the page of
promises names has one play, marked or not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

PROMISES = Path(__file__).parents[2] / "docs/explanation/promises.md"
PLAYS = 6
PROPERTY = "plays"

_broken: list[str] = []  # of the play that is going on


def note_broken(what: str) -> None:
    """Say that from here on the test that runs looks at a broken variant."""
    _broken.append(what)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test; report the last of its plays, with their number."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for reports in _plays(item, nextitem):
        last = reports
    for report in last:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _plays(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[list[pytest.TestReport]]:
    for play in range(1, PLAYS + 1):
        _broken.clear()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if play > 1:
            reports[-1].user_properties.append((PROPERTY, play))
        yield reports
        if not _broken or not any(each.failed for each in reports):
            return


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that took more than one play."""
    reports = [each for some in terminalreporter.stats.values() for each in some]
    for report in reports:
        plays = dict(getattr(report, "user_properties", ())).get(PROPERTY)
        if plays and report.when == "teardown":
            terminalreporter.write_line(f"BROKEN VARIANT {report.nodeid}: {plays} plays")


def promised() -> set[str]:
    """The tests that the page of promises names."""
    return set(re.findall(r"`(tests/\S+\.py::\w+)`", PROMISES.read_text(encoding="utf-8")))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Play what is marked `load` once more, after the failures of the first play are printed."""
    yield
    ids = _upset(session)
    if ids:
        print(f"marked load, so once more, alone: {' '.join(ids)}", flush=True)
        # A process of its own, without xdist: nothing runs beside it, and nothing is left over.
        command = [sys.executable, "-m", "pytest", *ids]
        again = subprocess.run(command, cwd=session.config.rootpath, check=False)
        session.exitstatus = again.returncode


def _upset(session: pytest.Session) -> list[str]:
    """The tests that failed beside others, all marked `load`, none of them promised."""
    beside_others = getattr(session.config.option, "numprocesses", None)
    if not os.environ.get("CI") or not beside_others:
        return []
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        return []
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    failed = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    # A crashed worker and a file that cannot be imported have no keywords: they stay failures.
    marked = all("load" in getattr(report, "keywords", ()) for report in failed)
    ids = {report.nodeid for report in failed}
    if not marked or promised().intersection(each.partition("[")[0] for each in ids):
        return []
    return sorted(ids)
