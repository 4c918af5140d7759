"""Each sentence of the page "Promises and their tests" names tests, and they exist."""

from __future__ import annotations

import re

from tests.docs.pages import README, ROOT, names_in, whole
from tests.support.verdicts import nightly_in

PAGE = ROOT / "docs/explanation/promises.md"
IDS = re.compile(r"`((?:tests|dev)/\S+\.py)::(\w+)`")
NOTED = re.compile(IDS.pattern + r"( \*\(nightly\)\*)?")
LEAD = re.compile(r"- \*\*(.+?)\*\*", re.DOTALL)


def promises(text: str) -> list[str]:
    """The items below the two headings; anything else there is no promise with a test."""
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
    """What an item promises, on one line, without its tests."""
    said, _, _ = item.removeprefix("- ").partition("<details")
    return " ".join(said.split())


def unproven(text: str) -> list[str]:
    """The items that name no test."""
    return [item for item in promises(text) if not IDS.search(item)]


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


def test_every_promise_names_a_test():
    """No sentence of the page stands without a test behind it."""
    assert len(promises(whole(PAGE))) > 40
    assert unproven(whole(PAGE)) == []


def test_every_test_that_is_named_exists():
    """Each id on the page is a test of this repository."""
    assert len(IDS.findall(whole(PAGE))) > 80
    assert missing(whole(PAGE)) == []


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
