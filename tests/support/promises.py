"""The page "Promises and their tests" as data; a test of the page that fails tells its promise."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

PAGE: Final = Path("docs/explanation/promises.md")
IDS: Final = re.compile(r"((?:tests|dev)/[^\s`:]+\.py)::(\w+)")
TITLE: Final = f"Promise ({PAGE})"


def promises(text: str) -> list[str]:
    """Return the items below the two headings; nothing else may stand there."""
    _, *sections = re.split(r"^## .*\n", text, flags=re.MULTILINE)
    items: list[str] = []
    for line in "".join(sections).splitlines():
        if line.startswith("- "):
            items.append(line)
        elif line.startswith("  "):
            items[-1] += f"\n{line}"
        else:
            assert not line or line.startswith("### "), f"outside of the list: {line}"
    return items


def sentence(item: str) -> str:
    """Return what an item promises, on one line, without its tests."""
    said, _, _ = item.removeprefix("- ").partition("\n  <")
    return " ".join(said.split())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, pytest.TestReport]:
    """Add the sentences that a failed test shows to its report."""
    report: pytest.TestReport = yield
    if report.failed:
        test = item.nodeid.partition("[")[0]
        items = promises((item.config.rootpath / PAGE).read_text(encoding="utf-8"))
        shown = [sentence(each) for each in items if test in map("::".join, IDS.findall(each))]
        report.sections += [(TITLE, "\n".join(shown))] if shown else []
    return report
