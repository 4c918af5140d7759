"""Play a test again whose broken variant did not show.

A broken variant says that a check can fail, not that it fails each time: threads and nodes decide
when it shows its defect. So a test that fails after it has broken something is played again, and
fails if no play shows the defect. A test that fails before it has broken anything fails at once:
what is right is right each time. Each test that took more than one play is listed at the end of
the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.runner import runtestprotocol

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
