"""The ten longest tests of a run, each with what it waited for.

A test that takes long either works or waits. So each has the seconds of the clock, those that its
process worked meanwhile, and the longest wait of `eventually` with what was waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .waiting import waits

SHOWN = 10
LEAST = 1.0  # second; shorter tests are not named
WAIT = "longest_wait"
WORK = "worked"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Look at what a test works and waits for."""
    waits.clear()
    began = time.process_time()
    try:
        return (yield)
    finally:
        item.user_properties.append((WORK, f"{time.process_time() - began:.1f}"))
        if waits:
            seconds, what = max(waits)
            item.user_properties.append((WAIT, f"{seconds:.1f} s for {what}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the longest tests."""
    reports = {
        id(each): each
        for some in terminalreporter.stats.values()
        for each in some
        if getattr(each, "when", "") == "call" and each.duration >= LEAST
    }
    if reports:
        terminalreporter.section("longest tests: seconds, of these worked here, longest wait")
    for report in sorted(reports.values(), key=lambda each: -each.duration)[:SHOWN]:
        told = dict(report.user_properties)
        line = f"{report.duration:6.1f} {told.get(WORK, '-'):>6} {report.nodeid}"
        terminalreporter.write_line(f"{line}: {told[WAIT]}" if WAIT in told else line)
