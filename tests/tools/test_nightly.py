"""What `make nightly` plays, and what it leaves in its record."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests import nightly
from tests.docs.pages import ROOT, cells
from tests.nightly import ENTRIES, FOLDER, REPORT, SEED, Entry

HERE = ROOT / "tests"
PAGE = ROOT / "docs/dev/what-was-run.md"


def entry(name: str, text: str, limit: float = 600.0) -> Entry:
    """An entry whose command is some Python."""
    return Entry(name, "What it plays.", "one play", [sys.executable, "-c", text, SEED], limit)


def rows(record: Path) -> list[list[str]]:
    """Entry, N, seed and result of each row of a record."""
    text = record.read_text(encoding="utf-8")
    assert text.startswith(nightly.HEADER)
    found = [cells(line) for line in text.removeprefix(nightly.HEADER).splitlines()]
    assert {len(row) for row in found} == {8}
    return [list(row[2:6]) for row in found]


def test_each_entry_leaves_its_row_also_behind_one_that_failed(tmp_path, capsys):
    """One fails, one finds no end, one passes: each is in the record, and the status tells it."""
    record = tmp_path / "record.md"
    failing = "import os, sys\nprint('by', sys.argv[1])\nprint(os.getcwd() + '/a|b')\nexit(7)"
    played = [
        entry("failing", failing),
        entry("endless", "import signal; signal.pause()", limit=0.01),
        entry("passing", "print('RabbitMQ: not played')"),
    ]
    assert nightly.main(["--seed", "417", "--record", str(record)], played) == 1
    assert rows(record) == [
        ["failing", "one play", "417", "FAILED: `a|b`"],
        ["endless", "one play", "417", "FAILED: no end within 0.01 s"],
        ["passing", "one play", "417", "passed, 1 not played"],
    ]
    printed = capsys.readouterr().out
    assert "by 417\n" in printed  # the output of what failed
    assert printed.endswith("--seed 417 --only failing endless\n")
    assert nightly.main(["--only", "passing", "--record", str(record)], played) == 0
    assert [row[0] for row in rows(record)] == ["failing", "endless", "passing", "passing"]


REPORTS = {  # of which tests with which outcome, pytest's exit status, and the row
    "failed": (["line failure", "error", "line"], 1, "3 tests", "FAILED: `a.py::[…/b|c]`, `a.py`"),
    "skipped": (["line skipped", "line"], 0, "1 tests", "passed, 1 skipped"),
    "empty": ([], 5, "0 tests", "no test is marked"),
    "broken": ([], 3, "0 tests", "FAILED: `exit status 3`"),
}


@pytest.mark.parametrize(("cases", "status", "amount", "result"), REPORTS.values(), ids=REPORTS)
def test_the_row_of_tests_is_what_their_report_says(tmp_path, cases, status, amount, result):
    """How many ran, which failed, how many were skipped; and it may fail without a failed test."""
    report = ET.Element("testsuites")
    for facts in map(str.split, cases):
        line = {"line": "1"} if "line" in facts else {}  # a module that is not imported has none
        case = ET.SubElement(report, "testcase", {"file": "a.py", "name": "[/x/b|c]"} | line)
        for what in set(facts) - {"line"}:
            ET.SubElement(case, what)
    text = f"import pathlib, sys\npathlib.Path(sys.argv[2]).write_text(sys.argv[3])\nexit({status})"
    played = entry("tests", text)
    played.command.extend([f"{FOLDER}/{REPORT}", ET.tostring(report, encoding="unicode")])
    failed = nightly.main(["--record", f"{tmp_path}/record.md"], [played])
    assert failed == result.startswith("FAILED")
    ((_, found, _, said),) = rows(tmp_path / "record.md")
    assert (found, said) == (amount, result)


def test_each_test_that_is_marked_belongs_to_one_entry():
    """Each folder and each module at the top is a path of one entry, and no path leads nowhere."""
    played = Counter(
        word for each in ENTRIES if "nightly" in each.command for word in each.command
        if word.startswith("tests/")
    )  # fmt: skip
    modules = [path.relative_to(HERE).parts for path in HERE.rglob("test_*.py")]
    assert played == dict.fromkeys((f"tests/{parts[0]}" for parts in modules), 1)


def test_the_page_has_the_table_of_entries():
    """As `python -m tests.nightly --markdown` prints it."""
    assert nightly.table(ENTRIES) in PAGE.read_text(encoding="utf-8")
