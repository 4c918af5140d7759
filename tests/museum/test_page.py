from __future__ import annotations

import re

import pytest

from museum.table import CELLS
from tests.docs.pages import ROOT

pytestmark = pytest.mark.nightly

PAGE = ROOT / "docs/explanation/museum.md"
KEYS = {cell.key: cell for cell in CELLS}
SAID = re.compile(r"`([a-z0-9-]+/[a-z0-9-]+)`: ([a-z ,]+?)(?= *[;)|])")


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
