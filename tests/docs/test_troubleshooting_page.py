"""The page "Troubleshooting": its texts are those of the package, and it has each check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.docs.pages import ROOT, codes, tables

PAGE = "docs/how-to/troubleshooting.md"
PACKAGE = ROOT / "django_redlock"
COMPOSED = {  # of texts of two modules
    "this process holds … already",
    "lock not renewed: …",
}


def quoted() -> list[str]:
    """What the page quotes, but for the ids of checks."""
    rows = [row for each in tables(PAGE) if each.header[0] == "You read" for row in each.rows]
    return [code for row in rows for code in codes(row[0])[:1] if "django_redlock." not in code]


def texts() -> Iterator[str]:
    """What the package may say: its strings, with … in the place of what is filled in."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "…"
                    for each in node.values
                )


def test_each_text_of_the_page_is_one_of_the_package():
    """The package says each error, log line and status that the page quotes, word by word."""
    said = "\n".join(" ".join(re.sub(r"{[^}]*}|%\S", "…", each).split()) for each in texts())
    assert len(quoted()) > 30
    parts = [part.strip() for text in set(quoted()) - COMPOSED for part in text.split("…")]
    assert [part for part in parts if part not in said] == []
