"""Each sentence of the page "Promises and their tests" names tests, and they exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.docs.pages import README, ROOT, names_in, whole
from tests.support import promises as promises_page
from tests.support.promises import IDS, promises, sentence
from tests.support.verdicts import nightly_in

NOTED = re.compile(f"`{IDS.pattern}`" + r"( \*\(nightly\)\*)?")
LEAD = re.compile(r"- \*\*(.+?)\*\*", re.DOTALL)
PAGE = ROOT / promises_page.PAGE
MOST = 3  # tests of a sentence: nobody reads more
ITEM = "- {}\n  <!-- generated: tests\n  dev/soak/test_it.py::{}\n  -->\n"
SENTENCES = {"One\n  holder.": "test_two", "No lock is left.": "test_two", "Else.": "test_tw"}
FAILING = """
import pytest
@pytest.mark.parametrize("nodes", [3, 5])
def test_two(nodes):
    assert nodes == 3
"""


def missing(text: str) -> list[str]:
    """The tests that are named and are not there."""
    return [f"{file}::{name}" for file, name in IDS.findall(text) if name not in names_in(file)]


def is_nightly(file: str, name: str) -> bool:
    """Whether `make nightly` alone plays the test, with all its parameters."""
    marked = nightly_in(file)
    return marked is None or name in marked


def leads(text: str) -> set[str]:
    """What the items of a page say in bold, on one line."""
    return {" ".join(lead.split()).rstrip(".,:") for lead in LEAD.findall(text)}


def test_every_promise_names_one_to_three_tests():
    """The first shows it best; one of them at least is played for each change."""
    named = {sentence(item): IDS.findall(item) for item in promises(PAGE.read_text())}
    assert len(named) > 40
    assert [said for said, tests in named.items() if not 1 <= len(tests) <= MOST] == []
    assert [said for said, tests in named.items() if all(is_nightly(*each) for each in tests)] == []


def test_every_test_that_is_named_exists():
    """Each id on the page is a test of this repository."""
    assert missing(PAGE.read_text()) == []


def test_the_page_says_which_tests_are_nightly():
    """A reader can tell which promises no test shows for each change."""
    noted = NOTED.findall(whole(PAGE))
    wrong = [(file, name) for file, name, note in noted if bool(note) != is_nightly(file, name)]
    assert wrong == []
    assert any(note for *_, note in noted)


def test_the_readme_promises_nothing_else():
    """What the README lists as promised and not promised stands on the page, in these words."""
    _, section = README.read_text().split("## What it promises", 1)
    section, _ = section.split("\n## ", 1)
    short = leads(re.sub(r"^> ?", "", section, flags=re.MULTILINE))
    assert len(short) >= 8
    said = [sentence(item) for item in promises(whole(PAGE))]
    assert [lead for lead in short if not any(each.startswith(lead) for each in said)] == []


def test_a_test_that_fails_prints_its_promises(tmp_path, pytestconfig):
    """Each sentence that names it, from a worker of pytest-xdist, with parameters, below dev/."""
    page = "## Promised\n" + "".join(ITEM.format(*each) for each in SENTENCES.items())
    files = {"dev/soak/test_it.py": FAILING, promises_page.PAGE: page, "pytest.ini": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    words = ["-m", "pytest", "dev", "-n", "1", "-p", "xdist.plugin", "-p", promises_page.__name__]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    played = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={name: value for name, value in environ.items() if "XDIST" not in name},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    told = re.findall(r"- Promise \(\S+promises.md\) -+\n(.*\n.*)\n[_=]", played)
    assert told == ["One holder.\nNo lock is left."], played
    assert pytestconfig.pluginmanager.has_plugin(promises_page.__name__)
