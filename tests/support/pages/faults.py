"""What is wrong at one place of a page."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """Something that is wrong.

    Attributes:
        rule: its name, of axe-core or of the checks here.
        where: a CSS selector of the element.
        text: for the reader of a failed test.
        view: how the page was looked at.
    """

    rule: str
    where: str
    text: str
    view: str = ""

    def __str__(self) -> str:
        return f"[{self.view}] {self.rule} at {self.where}: {self.text}"
