"""Addresses of the documentation that texts name, and whether a page and a heading is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[2] / "docs"
SITE: Final = "https://django-redlock.readthedocs.io/en/latest/"
ADDRESS: Final = re.compile(rf"{re.escape(SITE)}[\w/.#-]*")


def addresses(text: str) -> list[str]:
    """The addresses in a text, without the full stop of a sentence."""
    return [each.rstrip(".") for each in ADDRESS.findall(text)]


def leads_nowhere(address: str) -> bool:
    """Tell whether there is no such page, or no such heading or target on it."""
    page, _, anchor = address.removeprefix(SITE).partition("#")
    source = DOCS / (page or "index.html").replace(".html", ".md")
    if not source.is_file():
        return True
    text = source.read_text()
    targets = set(re.findall(r"^\((.+)\)=$", text, re.MULTILINE))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
    return bool(anchor) and anchor not in targets | slugs


def explained(hint: str | None) -> bool:
    """Tell whether a hint names one address, which is there."""
    found = addresses(hint or "")
    return len(found) == 1 and not leads_nowhere(found[0])
