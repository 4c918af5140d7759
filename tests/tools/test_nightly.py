"""What `make nightly` plays, and what it leaves in its record."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dev.soak import nightly, verdict
from dev.soak.nightly import DATE, ENTRIES, FOLDER, REPORT, SEED, Entry
from dev.soak.verdict import Played
from tests.docs.pages import ROOT, cells


def entry(name: str, text: str, limit: float = 600.0) -> Entry:
    """An entry whose command is some Python."""
    return Entry(name, "What it plays.", "one play", [sys.executable, "-c", text, SEED], limit)


def rows(record: Path) -> list[list[str]]:
    """Entry, N, seed and result of each row of a record."""
    text = record.read_text(encoding="utf-8")
    assert text.startswith(nightly.HEADER)
    found = [cells(line) for line in text.removeprefix(nightly.HEADER).splitlines()]
    assert {len(row) for row in found} == {9}
    return [list(row[3:7]) for row in found]


def test_each_entry_leaves_its_row_also_behind_one_that_failed(tmp_path, capsys):
    """One fails, one finds no end, one passes: each is in the record, and the status tells it.

    The next play of an entry takes the place of its last one, and then nothing is due.
    """
    record = tmp_path / "record.md"
    failing = "import os, sys\nprint('by', sys.argv[1])\nprint(os.getcwd() + '/a|b')\nexit(7)"
    played = [
        entry("failing", failing),
        entry("endless", "import signal; signal.pause()", limit=0.01),
        entry("passing", "print('RabbitMQ: not played')"),
    ]
    assert nightly.main(["--seed", "417", "--record", str(record)], played) == 1
    assert rows(record) == [
        ["endless", "one play", "417", "FAILED: no end within 0.01 s"],
        ["failing", "one play", "417", "FAILED: `a|b`"],
        ["passing", "one play", "417", "passed, 1 not played"],
    ]
    printed = capsys.readouterr().out
    assert "by 417\n" in printed  # the output of what failed
    assert printed.endswith("--seed 417 --only failing endless\n")
    assert nightly.main(["--seed", "5", "--only", "passing", "--record", str(record)], played) == 0
    assert [row[::2] for row in rows(record)][2:] == [["passing", "5"]]
    assert nightly.main(["--record", str(record)], played[2:]) == 0
    assert capsys.readouterr().out.endswith("0 of 0 failed, 0 inconclusive\n")


ENDS = """
import sys
from dev.soak import verdict
sys.exit(verdict.end([], verdict.Played(18, 100, "kills")))
"""


def test_an_entry_that_played_too_little_is_inconclusive(tmp_path):
    """The record has the sentence of the soak; a program that fails by this status fails."""
    record, played = tmp_path / "record.md", [entry("few", ENDS), entry("odd", "exit(3)")]
    assert nightly.main(["--only", "few", "--record", str(record)], played) == 3
    assert rows(record)[0][3] == "inconclusive: `18 of 100 kills`"
    assert nightly.main(["--record", str(record)], played) == 1
    assert rows(record)[1][3] == "FAILED: `exit status 3`"


def test_no_entry_begins_when_the_time_is_over(tmp_path, capsys):
    """So a night can be played in parts."""
    played = [entry("passing", "")]
    assert nightly.main(["--minutes", "0", "--record", f"{tmp_path}/record.md"], played) == 0
    assert "1 entries are left" in capsys.readouterr().out
    assert not (tmp_path / "record.md").exists()


@pytest.mark.parametrize(
    ("days", "tested", "result", "reason"),
    [
        (13, "", "passed, 2 skipped", ""),
        (15, "", "passed", "played 15 days ago"),
        (0, "0", "passed", "what it tests has changed"),
        (0, "", "FAILED: `a.py`", "FAILED"),
        (0, "", "inconclusive: `18 of 100 kills`", "inconclusive"),
    ],
)
def test_an_entry_is_due(tmp_path, days, tested, result, reason):
    """When it did not pass, what it tests has changed, or it was played long ago; or never."""
    record, played = tmp_path / "record.md", [entry("played", "0"), entry("other", "0")]
    date = datetime.now(UTC) - timedelta(days=days)
    told = (tested or nightly.tested(played[0]), "played", "one play", "-", result, "3", "-")
    nightly.write(record, nightly.Row(f"{date:{DATE}}", "abc", *told))
    found = nightly.due(played, record)
    assert [*found.items()] == [("other", "never played"), ("played", reason)]


def test_an_entry_tests_its_own_files_and_the_rooms_that_it_names():
    """A change of Celery's part makes no entry due that does not use it."""
    by_name = {each.name: {*nightly.files(each)} for each in ENTRIES}
    task, core = ROOT / "django_redlock/celery/task.py", ROOT / "django_redlock/core/quorum.py"
    assert task.exists()
    assert {name for name in by_name if task in by_name[name]} == {
        *("tests-celery", "tests-docs", "soak-celery")
    }
    assert all(core in found for found in by_name.values())
    assert ROOT / "dev/soak/celery/rules.py" in by_name["soak-celery"]
    assert ROOT / "dev/soak/faults/handing.py" in by_name["soak-handles"]
    assert ROOT / "tests/simulation/world.py" in by_name["soak"]
    for folder in ("tests/nodes", "dev/soak/nodes"):  # parameters are marked there, tests are here
        assert ROOT / folder / "test_aio.py" in by_name["tests-nodes"]


@pytest.mark.parametrize(
    ("wrong", "count", "status", "last"),
    [
        ([], 100, 0, "passed: 100 kills"),
        ([], 18, 3, "inconclusive: 18 of 100 kills"),
        (["a again"], 18, 1, "FAILED: 1 wrong"),
    ],
)
def test_a_soak_has_three_verdicts(capsys, wrong, count, status, last):
    """What is wrong is wrong, however little was played."""
    assert verdict.end(wrong, Played(count, 100, "kills")) == status
    assert capsys.readouterr().out.splitlines()[-1] == last


REPORTS = {  # of which tests with which outcome, pytest's exit status, and the row
    "failed": (["line failure", "error", "line"], 1, "3 tests", "FAILED: `a.py::[…/b|c]`, `a.py`"),
    "skipped": (["line skipped", "line"], 0, "1 tests", "passed, 1 skipped"),
    "few": (["line few", "line"], 0, "1 tests", "inconclusive: `9 of 10 rounds`, 1 skipped"),
    "all": (["line skipped"], 0, "0 tests", "inconclusive: no test could be played, 1 skipped"),
    "empty": ([], 5, "0 tests", "passed: no test is marked"),
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
            message = {"message": "inconclusive: 9 of 10 rounds"} if what == "few" else {}
            ET.SubElement(case, "skipped" if message else what, message)
    text = f"import pathlib, sys\npathlib.Path(sys.argv[2]).write_text(sys.argv[3])\nexit({status})"
    played = entry("tests", text)
    played.command.extend([f"{FOLDER}/{REPORT}", ET.tostring(report, encoding="unicode")])
    status = nightly.main(["--record", f"{tmp_path}/record.md"], [played])
    assert status == {"FAILED": 1, "inconclusive": 3, "passed": 0}[re.split("[:,]", result)[0]]
    ((_, found, _, said),) = rows(tmp_path / "record.md")
    assert (found, said) == (amount, result)


def test_each_test_that_is_marked_belongs_to_one_entry():
    """Each folder and each module at the top is a path of one entry, and no path leads nowhere."""
    played = Counter(
        word for each in ENTRIES if "nightly" in each.command for word in each.command
        if word.startswith(("dev/", "tests/"))
    )  # fmt: skip
    places = [*ROOT.glob("tests/test_*.py"), ROOT / "dev/models"]
    places += {path.parent for path in ROOT.glob("tests/*/test_*.py")}
    places += {path.parent for path in ROOT.glob("dev/soak/*/test_*.py")}
    assert played == {str(each.relative_to(ROOT)): 1 for each in places}


def test_a_folder_decides_about_the_tier_of_its_tests():
    """Models and the example are never quick; what is in `dev/soak` is nightly without a mark."""
    model, soak = "dev/models/test_slots.py", "dev/soak/museum/test_limits.py"
    others = [model, "tests/example/test_example.py"]
    assert collected("not slow and not tools and not nightly", soak, *others) == set()
    assert {soak} <= collected("nightly", soak, *others) <= {soak, model}


def collected(marks: str, *paths: str) -> set[str]:
    """The files with a test that has these marks."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, *paths]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert " collected" in found.stdout or "deselected" in found.stdout, found.stdout
    return {line.partition("::")[0] for line in found.stdout.splitlines() if "::test_" in line}
