from __future__ import annotations

import re
import shlex
from pathlib import Path

from museum.__main__ import read_options
from museum.cells import CELLS
from museum.report import picture
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/explanation/museum.md"
REDLOCK = ROOT / "docs/explanation/redlock.md"
FOLDER = ROOT / "docs/_static/museum"
KEYS = {cell.key: cell for cell in CELLS}
SAID = re.compile(r"`([a-z0-9-]+/[a-z0-9-]+)`: ([a-z ,]+?)(?= *[;)|])")
MOST_PICTURES = 10


def wrong(page: str) -> list[str]:
    """What a page says of cells that is not so."""
    said = SAID.findall(" ".join(page.split()))
    expected = {key: ", ".join(sorted(cell.breaks)) or "holds" for key, cell in KEYS.items()}
    return [
        f"{key}: {what}"
        for key, what in said
        if expected.get(key) != ", ".join(sorted(what.strip().split(", ")))
    ]


def test_each_cell_of_the_page_has_what_is_said_of_it():
    """A cell that is named exists, and what is said to be seen in it must be seen."""
    text = PAGE.read_text()
    named = re.findall(r"`([a-z0-9-]+/[a-z0-9-]+)`", text.partition("# The table")[0])
    assert len(named) == len(SAID.findall(" ".join(text.split())))
    assert wrong(text) == []


def test_the_pictures_are_those_of_the_command():
    """The command of the page makes the pictures that pages name, and no others are there."""
    (command,) = re.findall(r"make museum ARGS=(\"--pictures docs/_static/museum .*\")$",
                            PAGE.read_text(), re.MULTILINE)  # fmt: skip
    asked = read_options(shlex.split(shlex.split(command)[0]), CELLS)
    assert asked.pictures == Path("docs/_static/museum")
    made = {picture(cell) for cell in asked.cells}
    pages = PAGE.read_text() + REDLOCK.read_text()
    assert set(re.findall(r"_static/museum/([\w.-]+)\)", pages)) == made
    assert {path.name for path in FOLDER.iterdir()} == made
    assert len(made) <= MOST_PICTURES
